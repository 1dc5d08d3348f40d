"""The GPU benchmark of fusions: what is measured, what is noted beside it, the table, going on."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.fusion import fused, fused_arm
from benchmarks.fusion.shapes import EPILOGUES, fused_products
from benchmarks.harness import campaign
from benchmarks.harness.error import error_of
from benchmarks.harness.resume import Budget, Rows
from inductor_plugin.cache import Resources
from inductor_plugin.config import Config
from inductor_plugin.cost.limits import limits_of
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.kernels.call import ExternKernel, SequenceKernel
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.target import target
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support import gpu
from tests.support.lowering import Arg, Lab, is_visited

GELU = "bert-base fc1 m4096 bias gelu"


def test_each_model_and_each_epilogue_is_among_the_products() -> None:
    products = fused_products()
    names = [product.name for product in products]
    assert len(names) == len(set(names))
    assert {product.epilogue for product in products} == set(EPILOGUES)
    assert {product.layer.split("-")[0] for product in products} == {"bert", "llama3"}
    first = products[:6]
    assert len({product.layer for product in first}) == len(first)
    assert all(product.n % 16 == 0 for product in products)  # rows of fp8 end at 16 bytes


@pytest.mark.parametrize("name", EPILOGUES)
def test_a_wrong_result_is_told_from_a_right_one(name: str) -> None:
    shape = next(product for product in fused_products() if product.epilogue == name)
    tensors, again = (shape.tensors("cpu", 64) for _ in range(2))
    assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, again, strict=True))
    assert len(tensors) == 2 + len(shape.spec.operands)
    answer = shape.spec.function(*tensors)
    assert answer.dtype == shape.spec.dtype
    wide = shape.spec.function(*(tensor.float() for tensor in tensors))
    assert error_of(answer, wide) < shape.spec.accepted
    assert error_of(answer.float() * 1.1, wide) > shape.spec.accepted
    unfused = (tensors[0].float() @ tensors[1].float().t()).to(answer.dtype)
    assert error_of(unfused, wide) > shape.spec.accepted


def clock(candidate: BenchCandidate) -> float:
    """Say, in milliseconds, that CUTLASS with an epilogue wins, and that two kernels take 0.020."""
    if isinstance(candidate.kernel, SequenceKernel):
        if is_visited(candidate):
            return 0.009
        return 0.015 if len(candidate.kernel.parts) == 1 else 0.020
    return 0.0100 if isinstance(candidate.kernel, ExternKernel) else 0.0102


@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_what_is_foretold_and_found_is_noted(cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    notes, spec = fused_arm.Notes(), EPILOGUES["silu gate"]
    arguments = Arg((256, 128)), Arg((384, 128)), Arg((256, 384))
    with (
        gpu.installed(),
        Lab(clock, cache_dir).open() as lab,
        fused_arm.recorded(notes),
    ):
        lab.lower(
            lambda *tensors: (spec.function(*tensors),),
            *arguments,
            gemm_backends="ATEN,TRITON,CUTLASS",
            max_candidates=4,
        )
    line = notes.to_dict()
    assert line["measured_us"] == pytest.approx(
        {"product": 10.0, "unfused": 20.0, "triton": 15.0, "evt": 9.0}
    )
    assert line["winner"].startswith("fused.cutlass")
    assert {len(prediction["tile"]) for prediction in line["predicted"]} == {3}
    low, expected, high = line["predicted"][0]["separate_us"]
    assert 0 < low <= expected <= high
    assert {prediction["kept"] for prediction in line["predicted"]} >= {True}
    json.dumps(line)
    row = {"product": "one", "arms": {"ours": {"fusion": line}}}
    foretold, took = fused.separate_us(row)
    assert foretold == f"{expected:.1f} ({low:.1f} to {high:.1f})"
    assert took == pytest.approx(10.0)


def test_registers_are_noted_beside_the_compilers() -> None:
    relu = Epilogue(
        (4096, 4096),
        "bfloat16",
        (Step("product"), Step("relu", (0,)), Step("store", (1,), 0)),
        writes=(Access("full", "bfloat16", 1 << 24, (4096, 1)),),
    )
    kernel = Kernel(
        "triton_mm",
        (128, 128, 64),
        8,
        registers=120,
        spilled_bytes=0,
        shared_bytes=65536,
        operands=("bfloat16", "bfloat16"),
        shape=(4096, 4096, 4096),
    )
    limits = limits_of(Config.load({}), "cuda")
    estimate = FusionEstimate(kernel, relu, target("H200"), limits, 200.0)
    notes = fused_arm.Notes()
    with fused_arm.recorded(notes):
        assert estimate.why_not() is None
        assert estimate.why_not_compiled(Resources(128, 0, 65536, 256)) is None
    (predicted,) = notes.predicted
    (compiled_kernel,) = notes.compiled
    assert compiled_kernel["registers"] == 128
    assert compiled_kernel["registers_predicted"] == predicted["registers"] >= 120
    row = {"arms": {"ours": {"fusion": notes.to_dict()}}}
    text, error = fused.registers(row)
    assert text == f"{predicted['registers']}/128"
    assert error == pytest.approx(abs(predicted["registers"] - 128) / 128)


def good(us: float, **more: Any) -> dict[str, Any]:
    return {"median_ms": us / 1e3, "error": 0.002, "accepted": 0.01, **more}


FUSION = {
    "predicted": [{"separate_us": [4.0, 6.0, 9.0], "registers": 150}],
    "compiled": [{"registers": 160, "registers_predicted": 150}],
    "measured_us": {"product": 90.0, "unfused": 97.5},
    "winner": "fused.cutlass::kernel",
}


def test_the_table_has_times_gains_and_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    arms = {
        "apart": good(200.0),
        "stock": good(150.0),
        "ours": good(100.0, fusion=FUSION),
        "triton": {"failed": "no fused triton kernel is offered"},
        "evt": good(50.0) | {"error": 0.4},
    }
    fused.show([{"product": GELU, "arms": arms}])
    shown = capsys.readouterr().out
    for part in ("200.0", "150.0", "100.0", "2.00", "1.50", "6.0 (4.0 to 9.0)", "7.5", "150/160"):
        assert part in shown, part
    assert "cutlass" in shown
    assert f"{GELU}: triton: no fused triton kernel is offered" in shown
    assert f"{GELU}: evt: wrong by 0.4" in shown
    assert "50.0" not in shown.replace("150.0", "")


@pytest.mark.parametrize("error", [0.5, math.nan, math.inf])
def test_what_is_wrong_has_no_time_and_no_gain(error: float) -> None:
    row = {"arms": {"apart": good(200.0), "ours": good(50.0) | {"error": error}}}
    assert fused.time_us(row, "ours") is None
    assert fused.gain(row, "apart") is None


class FakeArm:
    """Answers at once; notes what it was asked."""

    def __init__(self, name: str, log: list[tuple[str, str]], failing: str) -> None:
        self.name = name
        self._log = log
        self._failing = failing

    def ask(self, request: Any, limit_s: float) -> dict[str, Any]:
        self._log.append((self.name, request["do"]))
        if self.name == self._failing:
            return {"failed": "it cannot"}
        return {"ms": 0.1} if request["do"] == "sample" else {"error": 0.0, "accepted": 0.01}


def ran(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, failing: str = ""
) -> tuple[list[tuple[str, str]], list[str]]:
    """Run over three products with arms that answer at once."""
    log: list[tuple[str, str]] = []

    @contextmanager
    def arms(names: Any, module: str, *, dry: bool) -> Generator[list[Any]]:
        assert module == fused.ARM_MODULE
        yield [FakeArm(name, log, failing) for name in names]

    monkeypatch.setattr(campaign, "arms", arms)
    arguments = SimpleNamespace(arms=fused.ARMS, dry=True, arm_s=9.0, rounds=2)
    left = fused.run(rows, fused_products()[:3], arguments, Budget(1e6))
    return log, left


def test_all_arms_compile_in_order_and_are_sampled_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(tmp_path / "fused.json", {})
    log, left = ran(rows, monkeypatch)
    assert left == []
    part = log[: len(log) // 3]
    assert [name for name, do in part if do == "prepare"] == list(fused.ARMS)
    sampled = [name for name, do in part if do == "sample"]
    assert sampled == [*fused.ARMS, *fused.ARMS[1:], fused.ARMS[0]]
    assert [row["product"] for row in rows.rows] == [
        product.name for product in fused_products()[:3]
    ]
    written = json.loads((tmp_path / "fused.json").read_text())["rows"]
    assert written == rows.rows
    assert written[0]["arms"]["evt"]["samples_ms"] == [0.1, 0.1]


def test_a_run_goes_on_where_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "fused.json"
    rows = Rows(out, {})
    ran(rows, monkeypatch)
    names = [row["product"] for row in rows.rows]
    del rows.rows[2:]
    rows.write()
    kept = Rows(out, {}, [out])
    log, _ = ran(kept, monkeypatch)
    assert [do for name, do in log if name == "ours"] == ["prepare", "sample", "sample"]
    assert [row["product"] for row in kept.rows] == names
    # What an arm could not do is tried again, and only that.
    failed = Rows(out, {})
    ran(failed, monkeypatch, failing="evt")
    assert all("failed" in row["arms"]["evt"] for row in failed.rows)
    log, _ = ran(failed, monkeypatch)
    assert len([do for _, do in log if do == "prepare"]) == 3 * len(fused.ARMS)
    assert not any("failed" in row["arms"]["evt"] for row in failed.rows)


def test_forced_arms_take_over_what_ours_has_built(tmp_path: Path) -> None:
    folders = {
        fused_arm.options_of(arm, tmp_path / arm)["cache_dir"] for arm in ("ours", "triton", "evt")
    }
    assert folders == {str(tmp_path / "ours" / "plugin")}
    assert "cache_dir" not in fused_arm.options_of("stock", tmp_path / "stock")
    assert fused_arm.options_of("apart", tmp_path / "apart") == {"max_autotune": False}


@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.filterwarnings("default")
def test_a_forced_arm_says_that_nothing_is_fused(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no fused evt kernel is offered"):
        fused_arm.prepare("evt", tmp_path / "evt", {"shape": GELU}, dry=True)


@pytest.mark.slow
def test_the_benchmark_of_fusions_runs_dry_and_goes_on(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "fused.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.fusion.fused",
        "--dry",
        "--rounds",
        "2",
        "--match",
        "relu",
    ]
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_CACHE_DIR"}

    def dry(limit: int) -> dict[str, Any]:
        subprocess.run(
            [*command, "--out", str(out), "--limit", str(limit)],
            cwd=repository,
            env=environment | {"TMPDIR": str(tmp_path)},
            timeout=500,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return json.loads(out.read_text())

    first = dry(1)
    (row,) = first["rows"]
    assert set(row["arms"]) == set(fused.DRY_ARMS)
    for answer in row["arms"].values():
        assert len(answer["samples_ms"]) == 2
        assert answer["error"] <= answer["accepted"]
    assert row["arms"]["ours"]["fusion"]["winner"] == ""
    assert {"gpu", "driver", "torch", "triton", "environment", "sources"} <= first.keys()
    second = dry(2)
    assert second["rows"][0] == row
    assert len(second["rows"]) == 2
