"""Errors are the same whether they are computed at once or part by part, which takes little memory."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
import torch

from inductor_plugin.kernels.call import ExternKernel, OpKernel, TensorSpec
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import product_tolerance
from inductor_plugin.worker.child import bench, magnitude, operands, stress, verdict
from inductor_plugin.worker.child.comparison import compare, invents, lost, saturation
from inductor_plugin.worker.child.degeneracy import degeneracy_of
from inductor_plugin.worker.child.deviation import errors_of
from inductor_plugin.worker.child.stress import Stress
from inductor_plugin.worker.jobs import BenchCandidate, Outcome, Sampling, ScreenJob
from tests.support.peak_memory import peak_bytes

pytestmark = pytest.mark.usefixtures("few_objects")

PART = 1 << 14
"""Numbers of a part in these tests; an output has 64 of them."""
ROWS, COLUMNS = 1024, 1024


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(magnitude, "PART", PART)
    monkeypatch.setattr(stress, "PART", PART)
    monkeypatch.setattr(operands, "DRAWN", PART)


def pair(*shape: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(shape, generator=generator) * 20
    result = reference * (1 + 0.01 * torch.randn(shape, generator=generator))
    return result.to(dtype), reference.to(dtype)


@pytest.mark.parametrize("shape", [(300,), (100, 200), (3, 65, 70), (2, 3, 64, 80), (1, 1000)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("own_units", [False, True])
def test_parts_change_no_error(
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    infinite: bool,
    own_units: bool,
) -> None:
    result, reference = pair(*shape, dtype=dtype)
    if infinite and dtype.is_floating_point:
        result.view(-1)[::7], reference.view(-1)[::7] = math.nan, math.inf
    at_once = errors_of(result, reference, 0.004, own_units=own_units)
    assert at_once is not None
    for part in (64, 700):
        monkeypatch.setattr(magnitude, "PART", part)
        errors = errors_of(result, reference, 0.004, own_units=own_units)
        assert errors is not None
        assert astuple(errors) == pytest.approx(astuple(at_once), rel=1e-3, abs=1e-7)


@pytest.mark.usefixtures("in_parts")
def test_a_wrong_row_of_a_later_part_is_seen() -> None:
    accepted = product_tolerance("bfloat16", "bfloat16", 128, tf32=False)
    _, reference = pair(ROWS, COLUMNS)
    result = reference.clone()
    assert compare(result, reference, accepted).reason == ""
    result[1000] = result[1000] * 1.02
    assert "of a row, a column or a batch" in compare(result, reference, accepted).reason
    result[1000, 7] = math.nan
    assert "NaN or infinite" in compare(result, reference, accepted).reason


@pytest.mark.parametrize("shift", [2.0, -2.0])
def test_a_row_that_drifts_down_is_as_wrong_as_one_that_drifts_up(shift: float) -> None:
    """By a tenth of the root mean square, of which 6 / sqrt(2048) of the errors' own may be chance."""
    _, reference = pair(64, 2048)
    result = reference.clone()
    result[3] += shift
    errors = errors_of(result, reference)
    assert errors is not None
    assert 0.07 < errors.drift < 0.1


@pytest.mark.usefixtures("in_parts")
def test_what_a_comparison_takes_does_not_grow_with_the_output() -> None:
    """In float32 at once it took sixteen times the output's memory: 33 GB for 8192x128256 in bfloat16."""
    result, reference = pair(ROWS, COLUMNS)
    output_bytes = 2 * ROWS * COLUMNS
    for look in (
        lambda: errors_of(result, reference, 0.004),
        lambda: saturation(result, reference),
        lambda: lost(result, reference),
        lambda: invents(result, reference),
        lambda: degeneracy_of(reference * 0, [], {}),
    ):
        own = output_bytes if "degeneracy" in look.__code__.co_names[0] else 0
        assert peak_bytes(look) - own < output_bytes / 2


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("kept_bytes", "outputs"), [(1 << 30, 6), (0, 5)], ids=["small", "large"])
def test_a_check_holds_few_copies_of_an_output(
    monkeypatch: pytest.MonkeyPatch, kept_bytes: int, outputs: int
) -> None:
    """That of a language model's head has 2 GB: the reference, two of changed operands, the candidate's, one more."""
    monkeypatch.setattr(verdict, "_KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(operands, "ZONE_BYTES", (4096, 4096))  # 16 MiB at most around any output
    a, b = (
        TensorSpec(size, (size[1], 1), "bfloat16", "cpu", seed=seed)
        for size, seed in (((ROWS, 16), 1), ((16, COLUMNS), 2))
    )
    output = TensorSpec((ROWS, COLUMNS), (COLUMNS, 1), "bfloat16", "cpu")
    library = BenchCandidate("library", ExternKernel("mm"), (a, b), output, 60.0)
    candidate = BenchCandidate("candidate", OpKernel("aten::mm.out"), (a, b), output, 60.0)
    check = NumberCheck(product_tolerance("bfloat16", "bfloat16", 16, tf32=False))
    quick = Sampling(warmup=1, samples=1, min_sample_ms=0.0, max_total_s=1.0, cold_cache=False)

    def both() -> None:
        for each in (library, candidate):
            job = ScreenJob("a problem", library, each, quick, check)
            outcome = bench.run(job, lambda event: None)
            assert isinstance(outcome, Outcome)
            assert outcome.status == "ok"

    try:
        assert peak_bytes(both) < (outputs + 0.7) * 2 * ROWS * COLUMNS
    finally:
        bench.release()


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "float8_e4m3fn", "float32"])
def test_an_operand_takes_little_more_than_itself(dtype: str) -> None:
    """Drawn at once in float32 it took three times that, and integers nine times."""
    spec = TensorSpec((ROWS, COLUMNS), (COLUMNS, 1), dtype, "cpu", seed=3)
    own_bytes = ROWS * COLUMNS * operands.dtype_of(spec).itemsize
    assert peak_bytes(lambda: operands.build(spec, 2.0)) < 1.3 * own_bytes
    tensor = operands.build(spec)
    for change in (Stress(exponent=-2), Stress(renewed=True)):
        assert peak_bytes(lambda change=change: change.apply({spec: tensor})) < 1.1 * own_bytes


@pytest.mark.usefixtures("in_parts")
def test_parts_of_an_operand_are_other_numbers() -> None:
    spec = TensorSpec((4, PART), (PART, 1), "float32", "cpu", seed=3)
    first, *others = operands.build(spec)
    assert float(first.std()) == pytest.approx(1.0, abs=0.05)
    assert not any(torch.equal(first, other) for other in others)
    assert torch.equal(operands.build(spec)[2], others[1])
