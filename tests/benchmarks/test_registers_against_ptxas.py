"""What is foretold of fused kernels is what the compiler says of them; compiled without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fusion import prediction, pruning
from benchmarks.fusion.prediction import OUT, Row, Taken, epilogue_of, kept, rows_of, summaries
from inductor_plugin.cost.prune import predict
from inductor_plugin.problem.target import target


@pytest.fixture(scope="module")
def store() -> dict[str, Any]:
    return json.loads(OUT.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rows(store: dict[str, Any]) -> list[Row]:
    return rows_of(store)


@pytest.mark.parametrize("table", [prediction.OUT, pruning.OUT], ids=lambda path: path.stem)
def test_the_tables_are_of_the_templates_of_today(table: Path) -> None:
    """Else the compiled numbers are compared with nothing: run the table's command again."""
    parsed = json.loads(table.read_text(encoding="utf-8"))
    assert parsed["made_by"]["templates"] == prediction.versions()["templates"]


def test_the_committed_table_is_what_is_foretold_now(
    store: dict[str, Any], rows: list[Row]
) -> None:
    """A change of the model shows here: run the command with ``--compare-only``."""
    assert summaries(rows) == store["summary"]
    foretold = {(row.pair.gpu, row.pair.name, row.pair.epilogue): row.foretold for row in rows}
    written = {
        (entry["gpu"], entry["name"], name): kernel["foretold"]
        for entry in store["kernels"].values()
        for name, kernel in entry["fused"].items()
    }
    assert foretold == written


@pytest.mark.parametrize("part", ["all", "triton"])
def test_registers_and_spills_are_foretold_rightly(rows: list[Row], part: str) -> None:
    assert kept(summaries(rows)[part])


def test_spills_are_foretold_rightly_of_kernels_the_model_has_not_seen(rows: list[Row]) -> None:
    held = [row for row in rows if not row.pair.calibration and row.pair.kernel.kind == "triton"]
    right = sum(kernel.spills_right for kernel in held)
    assert right >= 0.95 * len(held) > 0
    assert sum(kernel.close for kernel in held) >= 0.9 * len(held)


def test_the_table_is_large_enough_to_say_something(rows: list[Row]) -> None:
    assert len(rows) >= 60
    for gpu in ("A100", "H200"):
        assert sum(row.pair.gpu == gpu for row in rows) >= 20
    assert sum(row.pair.kernel.kind == "cutlass" for row in rows) >= 8
    assert sum(row.pair.fused.spilled_bytes > 0 for row in rows) >= 10
    assert {row.pair.calibration for row in rows} == {True, False}
    grown = [row for row in rows if not row.unchanged]
    assert len(grown) >= 60
    assert sum(kernel.close for kernel in grown) >= 0.85 * len(grown)


def test_a_wrong_row_is_seen(rows: list[Row]) -> None:
    precise = next(row for row in rows if row.close and row.spills_right)
    fused = precise.pair.fused
    more = replace(precise.pair, fused=replace(fused, registers=2 * fused.registers))
    assert not replace(precise, pair=more).close
    spilling = replace(
        precise.pair, fused=replace(fused, spilled_bytes=0 if fused.spilled_bytes else 8)
    )
    assert not replace(precise, pair=spilling).spills_right


@pytest.mark.compat
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize(
    ("gpu", "names"),
    [("A100", ("gelu", "row and column", "to float32")), ("H200", ("relu", "silu * gate", "gelu"))],
)
def test_kernels_compile_fused_without_a_gpu(
    gpu: str, names: tuple[str, ...], store: dict[str, Any], inductor_cache: Path
) -> None:
    from benchmarks.fusion.pairs import KERNELS, compiled
    from inductor_plugin.aot.fake_device import as_target

    facts = KERNELS[gpu][2 if gpu == "A100" else 0]
    entry = store["kernels"][f"{gpu} {facts.name}"]
    versions = prediction.versions()
    with as_target(gpu):
        alone = prediction.taken_of(compiled(facts, None, target(gpu)).taken)
        kernel = prediction.kernel_of(prediction.kernel_facts(facts, alone))
        for name in names:
            usages = compiled(facts, name, target(gpu))
            assert usages.epilogue is not None
            stated = epilogue_of(store["epilogues"][name])
            assert usages.epilogue.describe() == stated.describe()
            fused = predict(kernel, usages.epilogue, target(gpu)).fused
            assert abs(fused.registers / usages.taken.registers - 1) <= 0.3
            assert (fused.spilled_bytes > 0) == (usages.taken.spilled_bytes > 0)
            if versions == store["made_by"]:
                fused = {k: v for k, v in entry["fused"][name].items() if k != "foretold"}
                assert prediction.taken_of(usages.taken) == Taken(**fused)
