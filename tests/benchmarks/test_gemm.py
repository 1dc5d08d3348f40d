"""The GPU benchmark of products: which numbers count as right, how arms are asked, what is sampled."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gemm import __main__, check
from benchmarks.gemm import arm as gemm_arm
from benchmarks.gemm.products import kind, problem
from benchmarks.gemm.shapes import LAYERS, Layer, Shape
from benchmarks.harness import campaign
from benchmarks.harness.resume import Budget, Rows
from inductor_plugin.problem import Problem


def layer(label: str) -> Layer:
    return next(layer_name for layer_name in LAYERS if layer_name.label == label)


def test_built_kernels_are_counted_up_to_the_first_good_one() -> None:
    tried = gemm_arm.Tried([1.0, None, 0.52, 0.505, 0.5], [False, True, True, True, True])
    assert tried.to_reach() == 3
    assert tried.to_reach(0.5) == 0
    assert gemm_arm.Tried().to_reach() is None


def test_what_stock_measures_is_noted() -> None:
    import torch._inductor.select_algorithm as selecting

    cache: Any = selecting.get_algorithm_selector_cache()
    tried = gemm_arm.Tried()
    kept = list(cache.feedback_saver_fns)
    try:
        gemm_arm.record_stock(tried)
        extern: Any = object.__new__(selecting.ExternKernelCaller)
        timings = {extern: 2.0, object(): 1.0, object(): float("inf")}
        for saver in cache.feedback_saver_fns[-1:]:
            saver(timings, "mm", [], [], None)
    finally:
        cache.feedback_saver_fns[:] = kept
    assert tried.times_ms == [2.0, 1.0, None]
    assert tried.built == [False, True, True]
    assert tried.to_reach() == 1


@pytest.mark.parametrize("label", ["llama3-8b o", "dit-xl fc1", "mixtral-8x7b grouped_w2"])
def test_a_product_computes_what_it_is_compared_with(label: str) -> None:
    shape = Shape(layer(label), 64)
    function, tensors = gemm_arm.product(shape, kind("bf16"), "cpu", dry=True)
    again = gemm_arm.product(shape, kind("bf16"), "cpu", dry=True)[1]
    assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, again, strict=True))
    if shape.layer.groups:
        parts = zip(tensors[0].chunk(8), tensors[1], strict=True)
        answer = torch.cat([rows @ weight.t() for rows, weight in parts])
    else:
        answer = function(*tensors)
    rows = check.rows_of(shape, tensors[0].shape[0])
    wanted = check.expected(shape, kind("bf16"), tensors, rows)
    assert check.error_of(answer, wanted, rows) < 0.01
    assert check.error_of(answer * 1.1, wanted, rows) > 0.05


@pytest.mark.parametrize("types", ["e4m3_row", "e4m3_tensor", "e4m3_block"])
def test_a_scaled_product_is_compared_with_scaled_operands(
    types: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_arm, "DRY_SIZE", 256)
    shape = Shape(layer("dit-xl fc1"), 1024)
    a, w, x, y, bias = gemm_arm.product(shape, kind(types), "cpu", dry=True)[1]
    described = problem(shape, kind(types), "tn", None)
    assert isinstance(described, Problem)
    columns = [tensor.stride()[0] == 1 for tensor in (x, y)]
    assert (
        columns == [operand.stride[0] == 1 for operand in described.inputs[2:4]]
        or types != "e4m3_block"
    )
    rows = [0, 3, 255]
    wanted = check.expected(shape, kind(types), [a, w, x, y, bias], rows)

    def scale(of: torch.Tensor, row: int, step: int) -> float:
        """Return the scale of a row's part of 128 elements, the scales being (rows, parts)."""
        height = 256 // of.shape[0] if of.shape[0] <= 256 else 1
        return float(of[row // height, step * 128 // (256 // of.shape[1])])

    for position, row in enumerate(rows):
        for column in (0, 130, 255):
            total = float(bias[column])
            for step in range(2):
                part = slice(128 * step, 128 * step + 128)
                product = float(a[row, part].float() @ w[column, part].float())
                total += product * scale(x, row, step) * scale(y.t(), column, step)
            assert float(wanted[position, column]) == pytest.approx(total, rel=1e-3, abs=1e-2)


def test_rows_are_compared_over_all_of_m() -> None:
    dense, groups = Shape(layer("llama3-8b o"), 8192), Shape(layer("mixtral-8x7b grouped_w2"), 4096)
    for m in (1, 64, 512):
        assert check.rows_of(dense, m) == list(range(m))
    assert check.rows_of(groups, groups.m) == list(range(8192))
    for m in (513, 1000, 4096, 8192):
        rows = check.rows_of(dense, m)
        assert len(rows) <= 768
        assert rows[0] == 0
        assert rows[-256:] == list(range(m - 256, m))
        gaps = [after - before for before, after in itertools.pairwise(rows)]
        assert max(gaps) <= m // 256 + 1
        # Every place within a tile of 64 comes up, before the last tile too.
        assert {row % 64 for row in rows if row < m - 256} == set(range(64))


BREAKS: dict[str, Callable[[torch.Tensor], object]] = {
    "NaN from row 256 on": lambda c: c[256:].fill_(math.nan),
    "one infinite value in a row that is not compared": lambda c: c[1, 5].fill_(math.inf),
    "the first row": lambda c: c[0].mul_(1.2),
    "the last row": lambda c: c[-1].zero_(),
    "the last tile": lambda c: c[-64:].mul_(1.2),
    "a tile in the middle": lambda c: c[2048:2176].zero_(),
    "the last columns": lambda c: c[:, -64:].mul_(1.2),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_wrong_part_makes_a_product_wrong(what: str) -> None:
    shape = Shape(layer("llama3-8b o"), 4096)
    generator = torch.Generator().manual_seed(0)
    a, w = (torch.randn(n, 64, generator=generator).bfloat16() for n in (4096, 4096))
    rows = check.rows_of(shape, 4096)
    assert 1 not in rows
    wanted = check.expected(shape, kind("bf16"), [a, w], rows)
    answer = (a.float() @ w.float().t()).bfloat16()
    assert check.error_of(answer, wanted, rows) < 0.01
    BREAKS[what](answer)
    assert check.error_of(answer, wanted, rows) > __main__.ACCEPTED
    assert check.error_of(answer[:-1], wanted, rows) == math.inf


def request(shape: str = "llama3-8b o m4096", types: str = "bf16") -> dict[str, str]:
    return {"do": "prepare", "shape": shape, "kind": types}


def test_a_product_with_a_value_that_is_not_finite_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ways(*_: Any) -> Any:
        def broken(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            answer = a @ w.t()
            answer[256:] = math.nan
            return answer

        return lambda function: broken

    monkeypatch.setattr(gemm_arm, "DRY_SIZE", 600)
    monkeypatch.setattr(gemm_arm, "ways", ways)
    with pytest.raises(ArithmeticError, match="not finite"):
        gemm_arm.prepare("cublas", tmp_path, request(), dry=True)


def test_a_product_nobody_decided_has_no_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inductor_plugin.tuning.selection import Selection

    verdict, ticket = SimpleNamespace(winner="the first's"), SimpleNamespace(offers=[], measured={})
    decided = iter([True, False])

    def ways(arm: str, cache_dir: Path, tried: gemm_arm.Tried) -> Any:
        gemm_arm.record_ours(tried)
        selection: Any = Selection

        def compiled(function: Any) -> Any:
            if next(decided):
                selection.decide(None, ticket)
            return function

        return compiled

    monkeypatch.setattr(Selection, "decide", Selection.decide)  # put back behind the test
    monkeypatch.setitem(gemm_arm._originals, "decide", lambda selection, ticket: verdict)
    monkeypatch.setattr(gemm_arm, "ways", ways)
    first, second = (
        gemm_arm.prepare("ours", tmp_path, request(name), dry=True)[0]
        for name in ("llama3-8b o m16", "llama3-8b o m64")
    )
    assert (first["winner"], second["winner"]) == ("the first's", "")


class Clock:
    """A timer that notes how it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def synchronize(self) -> None: ...

    def sample(self, call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        call()
        self.asked.append((repeats, cold))
        return 0.5


def test_every_sample_has_a_cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(gemm_arm, "timer_for", lambda device: clock)
    _, prepared = gemm_arm.prepare("cublas", tmp_path, request(), dry=True)
    assert gemm_arm.sample(prepared) == 0.5
    assert clock.asked == [(1, True), (3, True)]


class FakeArm:
    """Answers at once, and notes in a list that all share what it was asked."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name = name
        self._log = log

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        self._log.append((self.name, request["do"]))
        return {"error": 0.0} if request["do"] == "prepare" else {"ms": 1.0}


def test_arms_are_sampled_in_turns_that_rotate() -> None:
    log: list[tuple[str, str]] = []
    arms: Any = [FakeArm(name, log) for name in "abc"]
    budget = Budget(1e6)
    row, whole = __main__.measured(Shape(layer("llama3-8b o"), 64), "bf16", arms, budget, 10.0, 4)
    assert whole
    assert [name for name, do in log if do == "prepare"] == ["a", "b", "c"]
    assert log[:3] == [(name, "prepare") for name in "abc"]
    assert "".join(name for name, do in log if do == "sample") == "abcbcacababc"
    assert all(arm["samples_ms"] == [1.0] * 4 for arm in row["arms"].values())


def sampled(rows: Rows, monkeypatch: pytest.MonkeyPatch, **operands: Any) -> set[tuple[str, str]]:
    """Run over all products with arms that answer at once; return what stock CUTLASS was asked."""

    @contextmanager
    def arms(names: Any, module: str, *, dry: bool) -> Generator[list[Any]]:
        yield [FakeArm(name, []) for name in names]

    monkeypatch.setattr(campaign, "arms", arms)
    facts = {"arms": __main__.ARMS, "dry": True, "arm_s": 9.0, "rounds": 1}
    products = [
        product for product in __main__.todo(__main__.KINDS) if "o m" in __main__.name_of(*product)
    ]
    __main__.run(rows, products, SimpleNamespace(**facts, **operands), Budget(1e6))
    cutlass = [row for row in rows.rows if "stock_cutlass" in row["arms"]]
    result = [(row["kind"], __main__.m_class(row["m"])) for row in cutlass]
    assert len(result) == len(set(result))
    return set(result)


def test_stock_cutlass_is_spread_over_types_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {(types, name) for types in __main__.KINDS for name, _ in __main__.M_CLASSES}
    rows = Rows(tmp_path / "a.json", {})
    assert sampled(rows, monkeypatch, cutlass_s=150.0) == every
    capsys.readouterr()
    __main__.show(rows.rows)
    assert f"sample: 6 of {len(rows.rows)} products" in capsys.readouterr().out
    none = Rows(tmp_path / "b.json", {})
    assert sampled(none, monkeypatch, cutlass_s=0.0) == set()
    # What an earlier run has sampled is not sampled again.
    again = Rows(tmp_path / "c.json", {})
    again.rows += [row for row in rows.rows if row["kind"] == "bf16"]
    assert sampled(again, monkeypatch, cutlass_s=150.0) == every
    assert "each type (bf16, e4m3_row)" in __main__.sampling(__main__.KINDS)


def test_a_wrong_arm_gains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    right = {"median_ms": 1.0, "error": 0.001}
    for error in (0.5, math.nan, math.inf):
        wrong = {"median_ms": 0.25, "error": error}
        __main__.show([{"product": "one", "arms": {"cublas": right, "ours": wrong}}])
        shown = capsys.readouterr().out
        assert "wrong" in shown
        assert "4.00" not in shown


def test_the_table_says_what_failed_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    good = {"median_ms": 0.5, "error": 0.001, "first_call_s": 3.0, "built_to_99": 2}
    row = {
        "product": "a product",
        "arms": {
            "cublas": good | {"median_ms": 1.0},
            "stock": {"failed": "no Triton"},
            "ours": good,
        },
    }
    wrong = {"product": "another", "arms": {"ours": good | {"error": 0.5}}}
    __main__.show([row, wrong])
    shown = capsys.readouterr().out
    assert "2.00" in shown
    assert "wrong" in shown
    assert "a product: stock: no Triton" in shown


@pytest.mark.parametrize("arm", __main__.SHOWN)
def test_each_arm_is_in_its_own_column(arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"median_ms": 0.7654, "error": 0.0}
    __main__.show([{"product": "one", "arms": {arm: answer}}])
    lines = capsys.readouterr().out.splitlines()
    (values,) = [line.split("│") for line in lines if "765.4" in line]
    heads = next(line.split("┃") for line in lines if "┃" in line)
    place = next(at for at, value in enumerate(values) if value.strip() == "765.4")
    assert heads[place].split()[0] == __main__.SHOWN[arm].split()[0]
    assert set(__main__.SHOWN) == set(__main__.ARMS)


def dry(out: Path, repository: Path, folder: Path, *more: str) -> dict[str, Any]:
    """Run the GPU benchmark on a CPU."""
    command = [sys.executable, "-m", "benchmarks.gemm", "--dry", "--kinds", "bf16", "--rounds", "2"]
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_CACHE_DIR"}
    subprocess.run(
        [*command, "--arms", "cublas", "ours", "--out", str(out), *more],
        cwd=repository,
        env=environment | {"TMPDIR": str(folder)},
        timeout=500,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(out.read_text())


@pytest.mark.slow
def test_the_gpu_benchmark_runs_dry_and_goes_on(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    first = dry(out, repository, tmp_path, "--limit", "1")
    (row,) = first["rows"]
    assert set(row["arms"]) == {"cublas", "ours"}
    for answer in row["arms"].values():
        assert len(answer["samples_ms"]) == 2
        assert answer["error"] < 0.01
    ours = row["arms"]["ours"]
    assert ours["tried"] == 2
    assert ours["built_to_99"] in (0, 1)
    assert ours["winner"]
    assert "one product of each type" in first["sampled"]["stock_cutlass"]
    second = dry(out, repository, tmp_path, "--limit", "2")
    assert second["rows"][0] == row
    assert len(second["rows"]) == 2
