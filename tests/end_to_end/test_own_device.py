"""A device of another package (examples/custom_device, PrivateUse1): tuned, recorded, replayed, explained, shown.

The package is installed in a folder of its own, with an entry point; each step is a process of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import own_device
from tests.support.own_device import EXAMPLE, install

pytestmark = [pytest.mark.slow, pytest.mark.compat]

RUN = str(EXAMPLE / "run.py")
PLUGIN = ("-m", "inductor_plugin")
PRODUCTS = 2


def records(home: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the cache, by key."""
    files = home.glob("inductor_plugin/records/*/mm/*.json")
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def test_a_device_of_another_package_is_tuned_recorded_replayed_and_shown(tmp_path: Path) -> None:
    site, home = install(tmp_path), tmp_path / "home"

    first = own_device.run(site, home, tmp_path / "inductor", RUN)
    assert first.returncode == 0, first.stderr[-5000:]
    assert f"same numbers: True\n{PRODUCTS} products, 0 of them known\n" in first.stdout
    assert f"candidates measured: {2 * PRODUCTS}\n" in first.stdout

    kept = records(home)
    assert len(kept) == PRODUCTS
    for record in kept.values():
        measured: dict[str, Any] = record["candidates"]
        assert {each["status"] for each in measured.values()} == {"ok"}
        assert {name.rpartition("-")[0] for name in measured} == {"mm", "toy_npu_direct.direct"}
        for each in measured.values():
            # Of its own timer, in the worker.
            assert each["provenance"]["clock_mhz"] == 1000
            assert min(each["samples_ms"]) > 0
            assert each["error"] is not None or each["kind"] == "extern"

    second = own_device.run(site, home, tmp_path / "another", RUN)
    assert second.returncode == 0, second.stderr[-5000:]
    assert f"{PRODUCTS} products, {PRODUCTS} of them known\n" in second.stdout
    assert "candidates measured: 0\n" in second.stdout
    assert records(home) == kept

    key, record = next(iter(kept.items()))
    explained = own_device.run(site, home, tmp_path / "inductor", *PLUGIN, "explain", key)
    assert explained.returncode == 0, explained.stderr
    assert record["decision"]["winner"] in explained.stdout
    assert "toy_npu_direct.direct-" in explained.stdout

    found = own_device.run(site, home, tmp_path / "inductor", *PLUGIN, "doctor", "--json")
    (finding,) = (each for each in json.loads(found.stdout) if each["name"] == "devices")
    assert finding["state"] == "ok"
    assert finding["detail"] == (
        "npu:0: Toy NPU, toy_npu 1.0 (entry point npu = toy_npu.plugin:DEVICE of toy_npu 1.0)"
    )
    listed = own_device.run(site, home, tmp_path / "inductor", *PLUGIN, "ls", "--environments")
    assert re.search(r"this machine +Toy NPU$", listed.stdout, re.MULTILINE), listed.stdout


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("", "devices of type 'npu' are left to Inductor alone: no package describes them"),
        ("toy_npu.gone:DEVICE", "ModuleNotFoundError: No module named 'toy_npu.gone'"),
        ("faulty:DEVICE", "facts('npu:0') raised ValueError: no driver"),
    ],
)
def test_a_device_that_nobody_describes_rightly_is_left_to_inductor_with_one_line(
    tmp_path: Path, reference: str, said: str
) -> None:
    site = install(tmp_path, reference or "toy_npu.plugin:DEVICE")
    if not reference:
        (site / "toy_npu-1.0.dist-info" / "entry_points.txt").unlink()
    (site / "faulty.py").write_text(FAULTY, encoding="utf-8")
    done = own_device.run(site, tmp_path / "home", tmp_path / "inductor", RUN)
    assert done.returncode == 0, done.stderr[-5000:]
    assert (
        "same numbers: True\n0 products, 0 of them known\ncandidates measured: 0\n" in done.stdout
    )
    assert done.stderr.count("inductor-plugin: ") == 1, done.stderr
    assert said in done.stderr


FAULTY = """
import toy_npu.backend
from inductor_plugin.device import Device
from inductor_plugin.worker.event_timer import EventTimer

def facts(device):
    raise ValueError("no driver")

DEVICE = Device(facts, dict, EventTimer)
"""
