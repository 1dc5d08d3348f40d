"""Epilogues as trees of visitors: what they compute, against `evaluate` and eager mode."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.ops.epilogue_eval import evaluate
from inductor_plugin.templates.cutlass.evt import Evt, evt_of
from inductor_plugin.templates.cutlass.functor import FUNCTORS
from tests.support.cutlass.evt_reference import DTYPES, FUNCTIONS, evaluated, host_library, on_host
from tests.support.graphs.epilogues import CASES, MORE, Case, M, N, eager, epilogue_of
from tests.support.graphs.with_epilogues import OUTPUTS, lowered

ALL = {case.name: case for case in (*CASES, *MORE)}
SPECIAL = (
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-30,
    -1e-30,
    3e4,
    -3e4,
    88.0,
    -88.0,
    2.5,
    -3.5,
)
PRECISION = {
    torch.float32: 2.0**-20,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float8_e4m3fn: 2.0**-3,
    torch.float8_e5m2: 2.0**-2,
    torch.int8: 0.0,
}
"""One unit in the last place of each dtype, relative; of float32 some, for functions differ in the last."""


def tree(case: Case, dtype: torch.dtype) -> Evt:
    evt = evt_of(epilogue_of(case, dtype))
    assert isinstance(evt, Evt), evt
    return evt


def inputs(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return random sums in float32, with special values among them, and random operands."""
    generator = torch.Generator().manual_seed(7)
    product = 4 * torch.randn(M, N, generator=generator)
    product[0, : len(SPECIAL)] = torch.tensor(SPECIAL)
    operands: list[torch.Tensor] = []
    for shape in case.shapes(dtype):
        tensor = torch.randn(shape.size, generator=generator)
        operands.append((tensor.abs() + 0.5 if tensor.dim() == 0 else tensor).to(shape.dtype))
    return product, operands


def check_close(
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    factor: float = 1.0,
    least: float = 1e-6,
) -> None:
    """Assert that tensors are equal but for the last place; NaN and infinity must be at the same places.

    Args:
        actual: The tensors that were computed.
        expected: What they should be.
        factor: Units in the last place that are allowed.
        least: Absolute difference that is allowed.
    """
    assert len(actual) == len(expected) > 0
    for result, wanted in zip(actual, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.shape == wanted.shape == (M, N)
        torch.testing.assert_close(
            result.float(),
            wanted.float(),
            rtol=factor * PRECISION[result.dtype],
            atol=0.0 if result.dtype == torch.int8 else least,
            equal_nan=True,
        )


def check_tree(name: str, dtype: torch.dtype) -> None:
    """Compare what a tree computes with what its epilogue does, which is compared with eager mode."""
    case = ALL[name]
    evt = tree(case, dtype)
    product, operands = inputs(case, dtype)
    if any(output.element == "s8" for output in evt.outputs):
        product = product.nan_to_num(nan=1.0)  # torch defines no int8 of NaN
    actual = evaluated(evt, product, operands)
    if case.readers:
        torch.testing.assert_close(actual.pop(0), product.to(dtype), equal_nan=True, rtol=0, atol=0)
    check_close(actual, evaluate(epilogue_of(case, dtype), product, operands))


@pytest.mark.parametrize("name", ALL)
def test_a_tree_computes_what_its_epilogue_does(name: str) -> None:
    check_tree(name, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["gate_two", "before_and_after", "product_kept", "fp8_e4m3"])
def test_a_tree_of_another_dtype_computes_what_its_epilogue_does(
    name: str, dtype: torch.dtype
) -> None:
    check_tree(name, dtype)


@pytest.mark.parametrize("name", ALL)
def test_a_tree_is_as_near_to_eager_as_its_dtype_allows(name: str) -> None:
    """Eager rounds to bfloat16 after each operation, a kernel once: some units in the last place."""
    case = ALL[name]
    evt = tree(case, torch.bfloat16)
    product, operands = inputs(case, torch.bfloat16)
    product = product.nan_to_num(1.0, 8.0, -8.0).clamp(-64, 64).bfloat16().float()
    result = evaluated(evt, product, operands)[1 if case.readers else 0 :]
    wanted = case.function(product.bfloat16(), *operands)
    for value, expected in zip(result, wanted, strict=True):
        assert value.dtype == expected.dtype
        size = expected.float().square().mean().sqrt()
        error = (value.float() - expected.float()).square().mean().sqrt()
        assert error <= 2.0**-6 * size
        if expected.dtype == torch.int8:
            assert (value.int() - expected.int()).abs().max() <= 1


def test_every_function_has_a_reference_and_is_computed_somewhere() -> None:
    assert set(FUNCTIONS) == set(FUNCTORS)


UNARY: tuple[Callable[..., torch.Tensor], ...] = (
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.neg,
    torch.abs,
    F.gelu,
    F.silu,
    F.hardswish,
)
BINARY: tuple[Callable[..., torch.Tensor], ...] = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    torch.minimum,
)
KINDS = ("row", "column", "full", "scalar")


def program(seed: int) -> Case:
    """Return a random chain of operations on the product, with values used again and two outputs."""
    dice = random.Random(seed)
    kinds = tuple(dice.choice(KINDS) for _ in range(dice.randint(0, 3)))
    plan: list[tuple[Callable[..., torch.Tensor], int]] = [
        (dice.choice(UNARY), -1)
        if dice.random() < 0.4
        else (dice.choice(BINARY), dice.randint(0, place + len(kinds)))
        for place in range(dice.randint(2, 6))
    ]
    outputs = dice.randint(1, 2)

    def function(p: torch.Tensor, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
        values = [p, *operands]
        last = p
        for operation, other in plan:
            last = operation(last) if other < 0 else operation(last, values[other])
            values.append(last)
        return (last,) if outputs == 1 else (values[-2] + p, last)

    return Case(f"program_{seed}", function, kinds)


@pytest.mark.parametrize("seed", range(24))
def test_a_random_chain_computes_what_eager_does(seed: int) -> None:
    case = program(seed)
    function, shapes = case.graph(torch.bfloat16)
    epilogue, graph = lowered(function, shapes)
    evt = evt_of(epilogue)
    assert isinstance(evt, Evt), evt
    product, operands = inputs(case, torch.bfloat16)
    # Reads are in the order in which loops come across them: "arg2_1" is the first operand.
    taken = [operands[int(read.buffer[3:].partition("_")[0]) - 2] for read in epilogue.reads]
    actual = evaluated(evt, product, taken)
    names: list[str] = graph.meta[OUTPUTS]
    results = eager(case, product, operands)
    wanted = [results[names.index(write.buffer)] for write in epilogue.writes]
    check_close(actual, [value.to(like.dtype) for value, like in zip(wanted, actual, strict=True)])


def test_the_cpp_of_a_tree_computes_what_the_tree_does(toolkit: Toolkit, tmp_path: Path) -> None:
    """The functions nvcc compiles, compiled for the host with CUTLASS's conversions."""
    cases = [(case, dtype) for case in ALL.values() for dtype in (torch.bfloat16, torch.float32)]
    cases += [(program(seed), torch.bfloat16) for seed in range(0, 24, 2)]
    trees = [evt_of(epilogue_of(case, dtype)) for case, dtype in cases]
    evts = [built_tree for built_tree in trees if isinstance(built_tree, Evt)]
    assert len(evts) == len(cases)
    library = host_library(evts, toolkit, tmp_path)
    sizes = {"row": (N,), "column": (M, 1), "scalar": ()}
    for index, evt in enumerate(evts):
        product, _ = inputs(CASES[0], torch.float32)
        if any(output.element == "s8" for output in evt.outputs):
            product = product.nan_to_num(nan=1.0)
        operands = [
            torch.randn(sizes.get(operand.kind, (M, N))).to(DTYPES[operand.element])
            for operand in evt.operands
        ]
        computed_here = evaluated(evt, product, operands)
        check_close(on_host(library, index, evt, product, operands), computed_here, least=4e-6)
