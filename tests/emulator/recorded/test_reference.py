"""What float64 says of products that have more operands than A and B."""

from __future__ import annotations

import torch

from inductor_plugin.problem import Problem
from tests.emulator.recorded.reference import exact
from tests.support.emulator.products import PROBLEMS, A, B, D

GENERATOR = torch.Generator().manual_seed(0)


def random(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=GENERATOR)


def near(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(torch.allclose(got, wanted.double(), rtol=1e-4, atol=1e-4))


def test_factors_are_applied_and_a_bias_that_counts_nothing_is_not_read() -> None:
    a, b, c = random(3, 4), random(4, 5), random(5)
    operands = {"a": a, "b": b, "c": c}
    assert near(exact(PROBLEMS["addmm"], operands), torch.addmm(c, a, b, alpha=0.5, beta=2.0))
    unread = Problem("addmm", (A, A, B), D, (("alpha", "1"), ("beta", "0")))
    assert near(exact(unread, {**operands, "c": torch.full((5,), torch.nan)}), a @ b)
    sums = Problem("mm_plus_mm", (A, B, A, B), D)
    assert near(exact(sums, {"a": a, "b": b, "c": a, "d": b}), 2 * a @ b)


def test_scales_are_of_a_matrix_its_rows_or_its_blocks() -> None:
    a, b = random(3, 256), random(256, 5)
    problem = PROBLEMS["scaled_mm"]
    scales = {"scale_a": torch.tensor([2.0]), "scale_b": torch.tensor([3.0])}
    assert near(exact(problem, {"a": a, "b": b, **scales}), 6 * a @ b)
    rows = {"scale_a": torch.tensor([[1.0], [2], [3]]), "scale_b": torch.ones(1, 5)}
    wanted = (a @ b) * rows["scale_a"]
    assert near(exact(problem, {"a": a, "b": b, **rows}), wanted)
    blocks = {"scale_a": torch.tensor([[1.0, 2], [1, 2], [1, 2]]), "scale_b": torch.ones(2, 1)}
    wanted = a[:, :128] @ b[:128] + 2 * a[:, 128:] @ b[128:]
    assert near(exact(problem, {"a": a, "b": b, **blocks}), wanted)


def test_each_group_of_rows_has_its_own_factor() -> None:
    a, b = random(5, 4), random(2, 4, 3)
    got = exact(PROBLEMS["grouped_mm"], {"a": a, "b": b}, (2, 5))
    assert near(got, torch.cat([a[:2] @ b[0], a[2:] @ b[1]]))
