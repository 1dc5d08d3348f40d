"""The operator that stands for decompose-K in measurements computes a matrix product."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import decompose_k
from inductor_plugin.worker.child.inductor import bind_op

pytestmark = pytest.mark.compat


def call(a: torch.Tensor, b: torch.Tensor, parts: int, out: torch.Tensor) -> torch.Tensor:
    """Call it as a worker does."""
    bind_op(OpKernel(decompose_k.OP, (parts,), (decompose_k.__name__,)), (a, b), out)()
    return out


@pytest.mark.parametrize("parts", [1, 2, 8, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_the_product(parts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(13, 96 * 4).to(dtype), torch.randn(96 * 4, 7).to(dtype)
    out = call(a, b, parts, torch.full((13, 7), float("nan"), dtype=dtype))
    expected = a.double() @ b.double()
    # Summed in float32 and rounded once: half a unit of the output's type, and float32's own error.
    unit = torch.finfo(dtype).eps / 2
    assert ((out.double() - expected).abs() <= unit * expected.abs() + 1e-4).all()


def test_partial_sums_are_kept_in_float32() -> None:
    # 4096 parts of 1.0 each: bfloat16 sums would stop at 256, where adding 1 changes nothing.
    a, b = torch.ones(1, 4096, dtype=torch.bfloat16), torch.ones(4096, 1, dtype=torch.bfloat16)
    out = call(a, b, 4096, torch.empty(1, 1, dtype=torch.bfloat16))
    assert out.item() == 4096


@pytest.mark.parametrize("transposed", ["a", "b", "out"])
def test_strides_are_respected(transposed: str) -> None:
    torch.manual_seed(0)

    def matrix(name: str, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(columns, rows).t() if name == transposed else torch.randn(rows, columns)

    a, b, out = matrix("a", 6, 32), matrix("b", 32, 5), matrix("out", 6, 5)
    assert torch.allclose(call(a, b, 4, out), a @ b, atol=1e-5)


def test_reading_slices_makes_no_copy() -> None:
    """K is cut by strides: nothing is moved, whichever of A's dimensions is contiguous."""
    copies: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            copies.append(str(func))
            return func(*args, **(kwargs or {}))

    for a in (torch.randn(6, 32), torch.randn(32, 6).t()):
        b, out = torch.randn(32, 5).t().contiguous().t(), torch.empty(6, 5)
        with Watch():
            decompose_k.decompose_k(a, b, 4, out=out)
    assert not [
        copy for copy in copies if "clone" in copy or "contiguous" in copy or "_unsafe" in copy
    ]
    assert sum("bmm" in copy for copy in copies) == 2
