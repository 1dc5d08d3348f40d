"""A device of another package (examples/custom_device, PrivateUse1): tuned, trained on, recorded, replayed, explained, shown.

The package is installed in a folder of its own, with an entry point; each step is a process of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import own_device
from tests.support.own_device import EXAMPLE, install

pytestmark = [pytest.mark.slow, pytest.mark.compat, pytest.mark.alone]

RUN = str(EXAMPLE / "run.py")
PLUGIN = ("-m", "inductor_plugin")
PRODUCTS = 2
RESIDENT = "toy_npu_resident"
TOO_LARGE = "its operands take 464 KiB, a core has 256 KiB"
"""What the guardrail says of the first product; the second one fits."""


def records(home: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the cache, by key."""
    files = home.glob("inductor_plugin/records/*/mm/*.json")
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def offered(record: dict[str, Any]) -> set[str]:
    """Return template and kernel of all candidates of a record."""
    return {name.rpartition("-")[0] for name in record["candidates"]}


@dataclass(frozen=True)
class Tuned:
    """A machine on which the model of the example was tuned once.

    Attributes:
        folder: Everything is below it.
        site: Where the package is installed.
        said: What the process wrote.
        records: The records it left, by key.
    """

    folder: Path
    site: Path
    said: str
    records: dict[str, dict[str, Any]]

    def run(self, *arguments: str) -> str:
        """Run Python there with the plugin's cache and a new one of Inductor, and return what it writes."""
        fresh = Path(tempfile.mkdtemp(dir=self.folder))
        done = own_device.run(self.site, self.folder / "home", fresh, *arguments)
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("device")
    machine = Tuned(folder, install(folder), "", {})
    said = machine.run(RUN)
    return replace(machine, said=said, records=records(folder / "home"))


@pytest.mark.claim
def test_a_device_of_another_package_is_tuned_by_its_own_timer_and_recorded(tuned: Tuned) -> None:
    assert f"same numbers: True\n{PRODUCTS} products, 0 of them known\n" in tuned.said
    assert f"candidates measured: {2 * PRODUCTS + 1}\n" in tuned.said
    assert len(tuned.records) == PRODUCTS
    for record in tuned.records.values():
        measured: dict[str, Any] = record["candidates"]
        assert {each["status"] for each in measured.values()} == {"ok"}
        assert offered(record) - {f"{RESIDENT}.resident"} == {"mm", "toy_npu_direct.direct"}
        for each in measured.values():
            assert each["provenance"]["clock_mhz"] == 1000  # its own timer says so, in the worker
            assert min(each["samples_ms"]) > 0
            assert each["error"] is not None or each["kind"] == "extern"
        assert record["decision"]["winner"] in measured


def test_its_guardrail_leaves_a_template_out_where_it_does_not_fit(tuned: Tuned) -> None:
    large, small = sorted(tuned.records.values(), key=lambda record: len(offered(record)))
    assert large["rejected"][RESIDENT] == TOO_LARGE
    assert f"{RESIDENT}.resident" not in offered(large)
    assert RESIDENT not in small["rejected"]
    assert f"{RESIDENT}.resident" in offered(small)


def test_explain_shows_what_the_guardrail_says(tuned: Tuned) -> None:
    said = {
        key: re.search(rf"^ *{RESIDENT} +(.+)$", tuned.run(*PLUGIN, "explain", key), re.MULTILINE)
        for key in tuned.records
    }
    reasons = {key: match[1] for key, match in said.items() if match}
    (key,) = (each for each, record in tuned.records.items() if RESIDENT in record["rejected"])
    assert reasons == {key: TOO_LARGE}


def test_the_report_has_the_roofline_of_its_figures(tuned: Tuned) -> None:
    file = tuned.folder / "report.html"
    tuned.run(*PLUGIN, "report", str(file), "--force")
    text = re.search(r'<script id="data" type="application/json">(.+?)</script>', file.read_text())
    assert text is not None
    model: dict[str, Any] = json.loads(text[1])
    (environment,) = model["environments"]
    assert environment["peak"] == {
        "name": "Toy NPU",
        "bandwidth": 80e9,
        "rates": {"float32": 1e12},
        "sources": ["made up: the toy has the memory and the cores of the CPU"],
    }
    bound = model["columns"]["record"].index("bound")
    # 32 x 384 x 64 in float32 is bound by memory: 155,648 bytes at 80 GB/s; 32 x 256 x 384 by 6.29e6 operations at 1e12/s.
    least_ms = sorted(row[bound] for row in model["records"])
    assert least_ms == pytest.approx([1.9456e-3, 6.2915e-3], rel=1e-3)


def test_a_second_process_measures_nothing(tuned: Tuned, tmp_path: Path) -> None:
    # A copy: what a busy machine has left provisional is measured again, and the other tests read the records.
    shutil.copytree(tuned.folder / "home", tmp_path / "home")
    said = replace(tuned, folder=tmp_path).run(RUN)
    assert f"same numbers: True\n{PRODUCTS} products, {PRODUCTS} of them known\n" in said
    assert "candidates measured: 0\n" in said
    assert records(tmp_path / "home") == tuned.records


def test_a_training_step_is_tuned_with_its_gradients(tuned: Tuned, tmp_path: Path) -> None:
    shutil.copytree(tuned.folder / "home", tmp_path / "home")
    products = (
        PRODUCTS + PRODUCTS + 1
    )  # the gradients of each weight, and of what lies between them
    said = replace(tuned, folder=tmp_path).run("-c", TRAINED)
    assert f"same gradients: True\n{products} products\n" in said
    after = records(tmp_path / "home")
    assert len(after) == products  # the forward pass has the products of inference
    for key in after.keys() - tuned.records.keys():
        measured: dict[str, Any] = after[key]["candidates"]
        assert {each["status"] for each in measured.values()} == {"ok"}
        assert "toy_npu_direct.direct" in offered(after[key])


def test_tune_tunes_on_it_what_is_there_and_what_is_on_the_cpu(
    tuned: Tuned, tmp_path: Path
) -> None:
    machine = replace(tuned, folder=tmp_path)
    (tmp_path / "layer.py").write_text(LAYER, encoding="utf-8")
    for name in ("on_cpu", "there"):
        command = (*PLUGIN, "tune", f"layer:{name}", "--json", "--training")
        said: dict[str, Any] = json.loads(machine.run(*command))
        assert (said["device"], said["frozen"]) == ("npu:0", False)
        assert {problem["key"] for problem in said["problems"]} == set(records(tmp_path / "home"))
        assert len(said["problems"]) == 2


def test_its_decisions_are_pinned_and_replayed_without_records(tuned: Tuned) -> None:
    pins = tuned.folder / "pins.json"
    tuned.run("-c", RECORDED, str(pins), RUN)
    (environment,) = json.loads(pins.read_text(encoding="utf-8"))["environments"]
    winners = {pin["digest"]: pin["winner"] for pin in environment["pins"]}
    decided = {key: record["decision"]["winner"] for key, record in tuned.records.items()}
    assert winners == decided
    assert f"{PRODUCTS} of {PRODUCTS} pins apply here" in tuned.run(*PLUGIN, "check", str(pins))
    said = tuned.run("-c", PINNED, str(pins), RUN)
    assert f"same numbers: True\n{PRODUCTS} products, " in said
    assert "candidates measured: 0\n" in said


def test_pip_installs_the_package_as_these_tests_do(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "pip"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    flags = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = ("-m", "pip", "--quiet", "install", *flags, "--target", str(site), str(source))
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    ours = install(tmp_path)
    files = {each.name for each in (ours / "toy_npu").iterdir()}
    assert {each.name for each in (site / "toy_npu").iterdir()} - {"__pycache__"} == files
    points = [
        (each / "toy_npu-1.0.dist-info" / "entry_points.txt").read_text(encoding="utf-8").split()
        for each in (site, ours)
    ]
    assert points[0] == points[1]


def test_it_is_built_by_the_ninja_beside_python_where_the_path_has_none(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("as", "c++", "g++", "ld", "sh", "which"):
        (tools / name).symlink_to(shutil.which(name) or name)
    variables = own_device.variables(install(tmp_path), tmp_path / "home", tmp_path / "inductor")
    done = subprocess.run(
        [sys.executable, "-c", "import toy_npu.backend"],
        env={**variables, "PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]


def test_explain_and_the_list_of_environments_show_it(tuned: Tuned) -> None:
    key, record = next(iter(tuned.records.items()))
    explained = tuned.run(*PLUGIN, "explain", key)
    assert f"Runs: {record['decision']['winner']}\n" in explained
    assert "toy_npu_direct.direct-" in explained
    listed = tuned.run(*PLUGIN, "ls", "--environments")
    assert re.search(r"this machine +Toy NPU$", listed, re.MULTILINE), listed


def test_its_records_are_read_where_the_package_is_not_installed(
    tuned: Tuned, tmp_path: Path
) -> None:
    without = replace(tuned, site=tmp_path)
    find = "import importlib.util; print(importlib.util.find_spec('toy_npu'))"
    assert without.run("-c", find) == "None\n"
    listed: list[dict[str, Any]] = json.loads(without.run(*PLUGIN, "ls", "--json"))
    assert {row["key"] for row in listed} == tuned.records.keys()
    for key, record in tuned.records.items():
        winner = record["decision"]["winner"]
        assert f"Runs: {winner}\n" in without.run(*PLUGIN, "explain", key)


def test_a_call_on_it_becomes_a_script_that_imports_the_package(
    tuned: Tuned, tmp_path: Path
) -> None:
    key, record = next(iter(tuned.records.items()))
    file = tmp_path / "call.py"
    tuned.run(*PLUGIN, "repro", key, "--out", str(file))
    assert "\nimport toy_npu.plugin  # makes npu known to torch\n" in file.read_text("utf-8")
    first, *_, last = tuned.run(str(file)).splitlines()
    assert first.startswith(f"chosen: {record['decision']['winner']} (as recorded; ")
    assert last == "right"


def test_doctor_asks_it_what_a_compile_would(tuned: Tuned) -> None:
    done = own_device.run(
        tuned.site, tuned.folder / "home", tuned.folder / "inductor", *PLUGIN, "doctor", "--json"
    )
    (finding,) = (each for each in json.loads(done.stdout) if each["name"] == "devices")
    assert finding == {
        "name": "devices",
        "state": "ok",
        "detail": "npu:0: Toy NPU, toy_npu 1.0 (entry point npu = toy_npu.plugin:DEVICE of toy_npu 1.0)",
        "remedy": "",
    }


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


TRAINED = """
import copy
import torch
import toy_npu.backend
import inductor_plugin

torch.manual_seed(0)
layers = torch.nn.Linear(256, 384, bias=False), torch.nn.ReLU(), torch.nn.Linear(384, 64, bias=False)
plain = torch.nn.Sequential(*layers)
model, x = copy.deepcopy(plain).to("npu"), torch.randn(32, 256)

plain(x).square().sum().backward()
torch.compile(model, options=inductor_plugin.options())(x.to("npu")).square().sum().backward()
gradients = [each.grad for each in plain.parameters()]
errors = [
    (mine.grad.cpu() - right).abs().max() / right.abs().max()
    for mine, right in zip(model.parameters(), gradients, strict=True)
]
print("same gradients:", max(errors).item() < 1e-4)
print(f"{inductor_plugin.stats().problems} products")
"""

LAYER = """
import torch

def on_cpu():
    return torch.nn.Linear(96, 80, bias=False), (torch.randn(24, 96),)

def there():
    import toy_npu.backend
    model, inputs = on_cpu()
    return model.to("npu"), tuple(each.to("npu") for each in inputs)
"""

RECORDED = """
import runpy, sys
import inductor_plugin

with inductor_plugin.record(sys.argv[1]):
    runpy.run_path(sys.argv[2])
"""

PINNED = """
import os, runpy, sys

os.environ |= {
    "INDUCTOR_PLUGIN_POLICY": "pinned",
    "INDUCTOR_PLUGIN_PIN_FILE": sys.argv[1],
    "INDUCTOR_PLUGIN_STRICT": "1",
    "INDUCTOR_PLUGIN_CACHE": "off",
}
runpy.run_path(sys.argv[2])
"""

FAULTY = """
import toy_npu.backend
from inductor_plugin.device import Device
from inductor_plugin.worker.event_timer import EventTimer

def facts(device):
    raise ValueError("no driver")

DEVICE = Device(facts, dict, EventTimer)
"""
