"""Candidates of quantized products on a CPU see the same operands: with others, right kernels are called wrong."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._inductor import ir
from torch._inductor.select_algorithm import (
    ExternKernelCaller,
    add_feedback_saver,
    clear_feedback_savers,
)
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.inductor.candidates import offers
from inductor_plugin.inductor.facts.operands import Operands
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.worker.child.operands import build
from tests.support.compile import Spent, compiled, fresh, records

__all__ = ["fresh"]  # the fixture
pytestmark = pytest.mark.compat
_ROWS, _INNER, _HIDDEN, _OUTER = 32, 128, 192, 64
"""Of `Block`."""


class Int8Product(nn.Module):
    """A product with a weight of int8, which is multiplied by a scale for each output."""

    columns = 512
    capabilities = ("AVX2", "AVX512")

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randint(-127, 127, (256, self.columns), dtype=torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", (torch.rand(256) / 1000).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)


class Int4Product(nn.Module):
    """A product with a weight of four bits, with a scale and a zero for each group of 32."""

    columns = 256
    capabilities = ("AVX512",)

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randint(0, 16, (128, self.columns), dtype=torch.int32)
        pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        self.register_buffer("weight", pack(weight, 1))
        self.register_buffer("scales", torch.rand(self.columns // 32, 128, 2).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, 32, self.scales)


class Linear(nn.Module):
    """A weight of 8 bits with a scale for each output."""

    weight: Tensor
    scales: Tensor
    zeros: Tensor

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        weight = torch.randn(rows, columns) / columns**0.5
        scales = weight.abs().amax(1) / 127
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(rows, dtype=torch.int32))

    def packed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight as oneDNN wants it, its scales and its zeros."""
        sizes = [_ROWS, self.weight.shape[1]]
        return torch.ops.onednn.qlinear_prepack(self.weight, sizes), self.scales, self.zeros


class Block(nn.Module):
    """Two products: the first without a bias, to 8 bits again; the second with one, and with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Linear(_INNER, _HIDDEN), Linear(_HIDDEN, _OUTER)
        self.register_buffer("bias", torch.randn(_OUTER))

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        call = torch.ops.onednn.qlinear_pointwise
        to = (0.05, 20, torch.uint8, "relu", [], "")
        hidden = call(x, 0.03, 128, *self.up.packed(), None, *to)
        to = (1.0, 0, torch.float32, 1.0, 0, "add", 1.0, "relu", [], "")
        return call.binary(hidden, 0.05, 20, *self.down.packed(), residual, self.bias, *to)


def skip_without_template(kind: type[Int8Product | Int4Product]) -> None:
    """Skip where Inductor has no C++ template for a product: its int4 kernels are written for AVX-512 and AMX alone."""
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith(kind.capabilities):
        pytest.skip(f"Inductor has no C++ template for {kind.__name__} on a CPU with {capability}")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take 60 times as long where another process has one of the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Int8Product, Int4Product])
def test_candidates_see_the_same_operands_and_none_is_wrong(
    kind: type[Int8Product | Int4Product],
    cache_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_without_template(kind)
    seen: dict[Any, dict[str, TensorSpec]] = defaultdict(dict)
    bench = offers._bench

    def noted(identity: Any, kernel: Any, inputs: Any, output: Any, call: Any) -> Any:
        for spec in inputs:
            seen[spec.size, spec.stride, spec.dtype][identity.candidate_id] = spec
        return bench(identity, kernel, inputs, output, call)

    monkeypatch.setattr(offers, "_bench", noted)
    torch.manual_seed(0)
    model, x, spent = kind().eval(), torch.randn(32, kind.columns).bfloat16(), Spent()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        answer, wanted = compiled(model, cache_dir)(x), model(x)
    assert (answer - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert spent.stats.benchmarked == spent.stats.candidates >= 2
    assert statuses(cache_dir) == ["ok"] * spent.stats.candidates
    assert not list(open_store(cache_dir).iter_quarantine())
    assert "wrong" not in caplog.text
    shared = {of: specs for of, specs in seen.items() if len(specs) == spent.stats.candidates}
    assert len(shared) >= 2
    for (_, _, dtype), specs in shared.items():
        if dtype in ("int8", "uint8"):  # the weight, which a template may repack to the same size
            assert all(spec.file is not None for spec in specs.values())
        else:
            assert len(set(specs.values())) == 1, specs


@pytest.mark.slow
def test_generated_kernels_of_quantized_products_are_right(cache_dir: Path) -> None:
    torch.manual_seed(0)
    block, x = Block().eval(), torch.randint(0, 255, (_ROWS, _INNER), dtype=torch.uint8)
    residual = torch.randn(_ROWS, _OUTER)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        answer, wanted = compiled(block, cache_dir)(x, residual), block(x, residual)
    # A number next to the middle of two steps may be rounded to either.
    assert (answer - wanted).abs().max() <= 0.02 * wanted.abs().max()
    kept = {record["op"]: record["candidates"].values() for record in records(cache_dir)}
    assert kept.keys() == {"qlinear_unary", "qlinear_binary"}
    for candidates in kept.values():
        assert [candidate["status"] for candidate in candidates] == ["ok"] * len(candidates)
    if torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        assert all(len(candidates) >= 2 for candidates in kept.values())


def statuses(cache_dir: Path) -> list[str]:
    """Return the status of each candidate of the only record."""
    (record,) = records(cache_dir)
    return [measured["status"] for measured in record["candidates"].values()]


def stock_times(model: nn.Module, x: Tensor) -> dict[bool, float]:
    """Return what the fastest C++ template (True) and the fastest library kernel (False) took in Inductor's own selection.

    The shortest of three selections: other tests may run beside this one.
    """
    fastest: dict[bool, float] = {}

    def take(timings: dict[Any, float], *_: Any) -> None:
        for choice, time_ms in timings.items():
            of_template = not isinstance(choice, ExternKernelCaller)
            fastest[of_template] = min(time_ms, fastest.get(of_template, time_ms))

    add_feedback_saver(take)
    try:
        with fresh_cache(), inductor_config.patch(autotune_local_cache=False):
            for _ in range(3):
                torch.compile(model, options={"max_autotune": True})(x)
                torch._dynamo.reset()
    finally:
        clear_feedback_savers()
    return fastest


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [Int8Product, Int4Product])
def test_the_kind_that_wins_is_that_of_inductors_own_selection(
    kind: type[Int8Product | Int4Product], cache_dir: Path
) -> None:
    """Or the other, where they take about as long. What other work has left provisional is decided again."""
    skip_without_template(kind)
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(32, kind.columns).bfloat16()
    verdicts: list[Any] = []
    with torch.no_grad(), inductor_config.patch(freezing=True):
        times = stock_times(model, x)
        with inductor_plugin.observe(lambda tickets: verdicts.extend(t.verdict for t in tickets)):
            for attempt in range(3):
                compiled(model, cache_dir / str(attempt))(x)
                torch._dynamo.reset()
                assert set(statuses(cache_dir / str(attempt))) == {"ok"}
                if not verdicts[-1].provisional:
                    break
    verdict = verdicts[-1]
    assert verdict.winner is not None, verdict.reason
    of_template = verdict.winner != verdict.library
    assert times[of_template] <= 1.5 * min(times.values()), (verdict, times)


def test_on_a_cpu_an_operand_is_generated_once_and_a_frozen_one_keeps_its_values() -> None:
    generated, frozen = torch.arange(12.0).view(3, 4), torch.ones(3, 4)
    asked: list[str] = []

    def generate(node: Any) -> Tensor:
        asked.append(node.get_name())
        return generated + len(asked) - 1

    sizes: Any = [3, 4], [4, 1]  # Inductor's type says expressions alone
    layout = ir.FixedLayout(torch.device("cpu"), torch.float32, *sizes)
    nodes = [ir.InputBuffer(name=name, layout=layout) for name in ("x", "w")]
    graph: Any = SimpleNamespace(constants={"w": frozen})
    with V.set_graph_handler(graph):
        operands = Operands(nodes, layout, {0: generate, 1: generate}, OperandFiles())
        (first, second), again = (operands.generated(0), operands.fixed(0)), operands.value(0)
        assert first is not None
        assert first == second
        assert torch.equal(build(first), generated)
        assert torch.equal(again, generated)
        assert asked == ["x"]
        assert operands.generated(1) is None
        kept = operands.fixed(1)
        assert kept is not None
        assert torch.equal(build(kept), frozen)
        assert operands.value(1) is frozen
        assert asked == ["x"]
