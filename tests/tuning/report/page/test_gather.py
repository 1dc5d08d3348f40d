"""The peaks of devices that packages describe on this machine, for the roofline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import digest_of, open_store
from inductor_plugin.problem.target import Target, target
from inductor_plugin.tuning.report.page.gather import cache_source, peak_here
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.rows import RECORD
from inductor_plugin.tuning.report.page.source import CacheSource
from inductor_plugin.tuning.report.page.work import peak_of
from tests.support.cache.measured_gpu import H100, gpu_records
from tests.support.fakes.devices import described

NPU: dict[str, Any] = {"device": {"type": "npu", "name": "Fake NPU", "cores": 4}}


def figures(device: str) -> Target:
    """Return made-up ones, of which the report needs the name, the bandwidth and the rates."""
    return replace(target("H100"), name="Fake", device_name="Fake NPU", memory_bandwidth=1e9)


def test_a_described_device_has_the_peaks_of_its_target() -> None:
    assert peak_here(NPU) is None
    with described(target=figures):
        peak = peak_here(NPU)
        assert peak is not None
        assert (peak.name, peak.bandwidth) == ("Fake", 1e9)
        assert peak.rates == dict(target("H100").rates)
    with described():
        assert peak_here(NPU) is None  # it has none


@pytest.mark.parametrize("fields", [{"rates": ()}, {"memory_bandwidth": 0.0}])
def test_figures_without_a_peak_draw_no_roof(fields: dict[str, Any]) -> None:
    def bare(device: str) -> Target:
        return replace(figures(device), **fields)

    with described(target=bare):
        assert peak_here(NPU) is None


def test_figures_are_those_of_a_device_of_their_name_alone() -> None:
    with described(target=figures):
        assert peak_here({"device": {**NPU["device"], "name": "Fake NPU 2"}}) is None
        assert peak_here({"device": {"type": "xpu", "name": "Fake NPU"}}) is None
        assert peak_here({"device": {"type": "cpu", "name": "Fake NPU"}}) is None
        odd: list[dict[str, Any]] = [{}, {"device": "npu"}, {"device": {"type": ["npu"]}}]
        assert [peak_here(environment) for environment in odd] == [None] * 3
        assert peak_here(H100) == peak_of(H100)
    with described(name="hip", target=figures):
        assert peak_here({"device": {"type": "cuda", "name": "Fake NPU"}}) is not None


def test_a_wrong_description_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def raises(device: str) -> Target:
        raise ValueError("no driver")

    with described(target=raises):
        assert peak_here(NPU) is None
        assert peak_here(NPU) is None
    (line,) = (record.getMessage() for record in caplog.records)
    assert "target('npu:0') raised ValueError: no driver; the report has no roofline of it" in line


def test_a_page_has_the_bounds_of_these_peaks() -> None:
    (known,) = gpu_records(1)
    source = CacheSource("c", [replace(known, environment=digest_of(NPU))], {digest_of(NPU): NPU})
    with described(target=figures):
        (row,) = page_model([source], figures=peak_here)["records"]
    at = RECORD.index
    assert row[at("bound")] == pytest.approx(1e3 * row[at("bytes")] / 1e9, rel=1e-3)
    (row,) = page_model([source])["records"]
    assert row[at("bound")] == 0


def test_a_command_names_a_cache_that_is_not_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_source(open_store(tmp_path / "mine")).option == ""
    other = cache_source(open_store(Path("an other")))
    assert other.option == f"--cache-dir '{tmp_path}/an other'"
