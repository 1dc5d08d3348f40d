"""Frozen weights whose numbers hide faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.degeneracy import degeneracy_of, weight_degeneracy
from inductor_plugin.worker.child.operands import build

SQUARE = torch.randn(256, 256)
ROWS, COLUMNS = torch.randn(1, 40).expand(256, 40), torch.randn(256, 1).expand(256, 40)


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.zeros(256, 40), "has at most 2 different values"),
        (torch.eye(256), "has at most 2 different values"),
        (torch.eye(256).to(torch.float8_e4m3fn), "has at most 2 different values"),
        (torch.ones(32, 1, 3, 3), "has at most 2 different values"),
        (ROWS.contiguous(), "has equal rows"),
        (COLUMNS.contiguous(), "has equal columns"),
        (SQUARE + SQUARE.T, "is symmetric"),
        (SQUARE, ""),
        (SQUARE.T, ""),
        (SQUARE.bfloat16()[:, ::2], ""),
        (torch.randint(-1, 2, (256, 40), dtype=torch.int8), ""),
        (torch.tensor([[1.0, 0.0]]), ""),
        (torch.randn(64, 32, dtype=torch.complex64), ""),
        (torch.ones(64, 32, dtype=torch.complex64), "has at most 2 different values"),
        (torch.ones(64, 32, dtype=torch.bool), "has at most 2 different values"),
        (torch.empty(0, 32), ""),
        (1e-37 * SQUARE, "has subnormal numbers, which some threads take for zeros"),
        (1e-30 * SQUARE, ""),
        (1e-37 * SQUARE[:2, :4], "has subnormal numbers, which some threads take for zeros"),
    ],
)
def test_what_hides_faults(weight: torch.Tensor, reason: str) -> None:
    assert weight_degeneracy(weight) == reason


def test_weights_are_looked_at_dense_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ones"
    path.write_bytes(torch.ones(64 * 32).numpy().tobytes())
    weight = TensorSpec((64, 32), (32, 1), "float32", "cpu", file=str(path))
    packed = replace(weight, packing="mkldnn_linear", packing_batch=8)
    ends = replace(weight, size=(64,), stride=(1,))
    random = TensorSpec((64, 32), (32, 1), "float32", "cpu", seed=1)
    reference = torch.randn(8, 64)
    for spec in (weight, packed):
        assert "at most 2 different" in degeneracy_of(
            reference, [random, spec], {spec: build(spec)}
        )
    assert degeneracy_of(reference, [random, ends], {ends: build(ends)}) == ""
    assert "nothing but zeros" in degeneracy_of(torch.zeros(8, 64), [random], {})


@pytest.mark.parametrize(
    ("reference", "hides"),
    [
        (torch.full((8, 4), torch.nan), True),
        (torch.full((8, 4), torch.inf), True),
        (torch.full((8, 4), 1e-40), True),  # rounding is as large as what it rounds
        (torch.tensor([torch.nan, 0.0, -1e-37]), False),
        (torch.zeros(8, 4, dtype=torch.int32), True),
        (torch.tensor([0, -1]), False),
        (torch.empty(0, 4), False),
    ],
)
def test_an_output_without_a_number_hides_faults(reference: torch.Tensor, *, hides: bool) -> None:
    assert bool(degeneracy_of(reference, [], {})) is hides
