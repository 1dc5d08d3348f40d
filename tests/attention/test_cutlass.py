"""The attention operators hand a kernel the operands it needs; here plain C functions stand for kernels.

How a kernel is found and started is in tests/ops/test_launch.py.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin.attention import cutlass
from inductor_plugin.attention.cutlass_abi import FmhaStatus
from inductor_plugin.errors import CallRefusedError, KernelError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import launch
from inductor_plugin.problem import Operand
from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference
from tests.support.native import host_kernels
from tests.support.repository import REPOSITORY

MASKS = [
    Mask(),
    Mask(right=0),
    Mask(right=0, bottom_right=True),
    Mask(left=3, right=0, bottom_right=True),
    Mask(left=2, right=4),
    Mask(left=0),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with a kernel for each direction, and one for each refusal."""
    folder = tmp_path_factory.mktemp("kernel")
    stands_in = REPOSITORY / "tests" / "support" / "attention" / "fmha_stands_in.cpp"
    headers = REPOSITORY / "templates" / "cutlass_attention" / "source"
    call = (headers / "call.h").read_text(encoding="utf-8")
    (folder / "call.h").write_text(call.replace("@align@", "8"), encoding="utf-8")
    text = stands_in.read_text(encoding="utf-8") + "\n".join(
        f'extern "C" int32_t never_{int(status)}(int32_t, FmhaCall*, uint64_t* bytes, void*)'
        f" {{ if (bytes) *bytes = 0; return {int(status)}; }}"
        for status in FmhaStatus
    )
    return host_kernels.library(folder, text, f"-I{folder}", f"-I{headers}")


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host_kernels.install(monkeypatch, tmp_path / "none")


def rows_of(heads: int, rows: int, dim: int = 8) -> Tensor:
    """Return random numbers [2, heads, rows, dim] whose rows lie apart: a view of [2, rows, heads, dim]."""
    return torch.randn(2, rows, heads, dim + 8)[..., :dim].transpose(1, 2)


def arguments(mask: Mask, scale: float = 0.3) -> tuple[float, int, int, bool]:
    return scale, mask.left, mask.right, mask.bottom_right


class Case:
    """Operands of one attention, and what has to come out."""

    def __init__(
        self, mask: Mask, heads: int = 4, kv_heads: int = 2, sq: int = 5, sk: int = 9
    ) -> None:
        self.mask = mask
        self.q, self.d_out = rows_of(heads, sq), rows_of(heads, sq)
        self.k, self.v = rows_of(kv_heads, sk), rows_of(kv_heads, sk)
        self.out, self.lse = reference.forward(self.q, self.k, self.v, mask=mask, scale=0.3)
        self.grads = reference.backward(self.d_out, self.q, self.k, self.v, mask=mask, scale=0.3)
        self.delta = (self.out * self.d_out).sum(-1).float()

    def forward(self, kernel: str, lse: Tensor | None) -> Tensor:
        out = torch.empty_like(self.q)
        operands = (self.q, self.k, self.v, lse, kernel, *arguments(self.mask))
        cutlass.cutlass_fmha(*operands, out=out)
        return out

    def backward(
        self, kernel: str, workspace: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = (torch.full_like(tensor, 7.0) for tensor in (self.q, self.k, self.v))
        o, lse = self.out.float(), self.lse.float()
        operands = (self.d_out, self.q, self.k, self.v, o, lse, self.delta, dq, dv)
        inputs = (*operands, kernel, *arguments(self.mask))
        cutlass.cutlass_fmha_backward(*inputs, workspace=workspace, out=dk)
        return dq, dk, dv

    def close(self, result: Any, expected: Any) -> None:
        for value, other in zip(result, expected, strict=True):
            torch.testing.assert_close(value.double(), other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("sq", "sk"), [(5, 9), (9, 5)])
def test_a_forward_with_and_without_lse(library: Path, mask: Mask, sq: int, sk: int) -> None:
    case, lse = Case(mask, sq=sq, sk=sk), torch.empty(2, 4, sq)
    out = case.forward(f"forward_kernel@{library}", lse)
    case.close((out, lse), (case.out, case.lse))
    assert torch.equal(case.forward(f"forward_kernel@{library}", None), out)
    alone = torch.empty_like(case.q)
    kernel = f"forward_kernel@{library}"
    cutlass.cutlass_fmha_output(case.q, case.k, case.v, kernel, *arguments(mask), out=alone)
    assert torch.equal(alone, out)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("sq", "sk"), [(5, 9), (9, 5)])
def test_a_backward_writes_all_three_gradients(library: Path, mask: Mask, sq: int, sk: int) -> None:
    case = Case(mask, sq=sq, sk=sk)
    dq, dk, dv = case.backward(f"backward_kernel@{library}")
    case.close((dq, dk, dv), case.grads[:3])


def test_a_workspace_has_to_begin_where_tma_reads(library: Path) -> None:
    case, kernel = Case(Mask()), f"backward_kernel@{library}"
    storage = torch.empty(1024, dtype=torch.uint8)
    aligned = storage[-storage.data_ptr() % 128 :]
    dq, dk, dv = case.backward(kernel, aligned[:256])
    case.close((dq, dk, dv), case.grads[:3])
    with pytest.raises(KernelError, match="128 bytes of 256"):
        case.backward(kernel, aligned[:128])
    # One that begins elsewhere, as in Inductor's pools of memory, is replaced.
    case.close(case.backward(kernel, aligned[64:512]), case.grads[:3])


@pytest.mark.parametrize("backward", [False, True])
def test_where_the_library_is_gone_attention_is_computed_otherwise(*, backward: bool) -> None:
    case, lse = Case(MASKS[3]), torch.empty(2, 4, 5)
    with pytest.warns(RuntimeWarning, match="attention is computed in plain torch instead"):
        result = case.backward("gone@0") if backward else (case.forward("gone@0", lse), lse)
    case.close(result, case.grads[:3] if backward else (case.out, case.lse))


@pytest.mark.parametrize("status", [status for status in FmhaStatus if status])
def test_every_refusal_has_a_reason_with_the_sizes(library: Path, status: FmhaStatus) -> None:
    refused = status < FmhaStatus.WORKSPACE
    with pytest.raises(KernelError, match=f"never_{int(status)}: .*seq_q=5 seq_k=9") as raised:
        Case(Mask()).forward(f"never_{int(status)}@{library}", None)
    assert raised.type is (CallRefusedError if refused else KernelError)


def test_rows_that_are_not_dense_are_refused(library: Path) -> None:
    case, kernel = Case(Mask()), f"forward_kernel@{library}"
    with pytest.raises(CallRefusedError, match="lse must be dense float32"):
        case.forward(kernel, torch.empty(2, 4, 10)[..., ::2])
    with pytest.raises(CallRefusedError, match="lse must be dense float32"):
        case.forward(kernel, torch.empty(2, 4, 5, dtype=torch.float64))
    case.k = case.k.transpose(-1, -2).contiguous().transpose(-1, -2)
    with pytest.raises(CallRefusedError, match="last dimension must be contiguous"):
        case.forward(kernel, None)


def test_nothing_to_do_needs_no_kernel(library: Path) -> None:
    never = f"never_{int(FmhaStatus.EXTENT)}@{library}"
    case = Case(Mask(), sk=1)
    case.k, case.v = case.k[:, :, :0], case.v[:, :, :0]
    lse = torch.empty(2, 4, 5)
    assert torch.equal(case.forward(never, lse), torch.zeros_like(case.q))
    assert torch.isposinf(lse).all()


def test_a_deterministic_backward_does_not_use_it(library: Path, cache_dir: Path) -> None:
    launch.add_kernel_folder(cache_dir)
    kernel = host_kernels.stored(cache_dir, library, "backward_kernel")
    case = Case(Mask(right=0))
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.warns(RuntimeWarning, match="depends on the order of sums"):
            gradients = case.backward(kernel)
    finally:
        torch.use_deterministic_algorithms(False)
    case.close(gradients, case.grads[:3])


def operand(*size: int, dtype: str = "bfloat16") -> Operand:
    stride = tuple(torch.empty(size, device="meta").stride())
    return Operand(size, stride, dtype, "cuda")


def test_a_workspace_is_known_before_anything_is_allocated(library: Path) -> None:
    q, rows = operand(2, 4, 64, 64), operand(2, 4, 64, dtype="float32")
    call_arguments = (0.125, -1, 0, True)
    device = torch.device("cuda:1")

    def needed(op: str, kernel: str, *operands: Operand) -> int:
        call = OpKernel(f"inductor_plugin::{op}.out", (f"{kernel}@{library}", *call_arguments))
        return cutlass.workspace_needed(call, operands, q, device)

    back = (q, q, q, q, q, rows, rows, q, q)
    assert needed("cutlass_fmha_backward", "backward_kernel", *back) == 256
    assert needed("cutlass_fmha", "forward_kernel", q, q, q, rows) == 0
    assert needed("cutlass_fmha_output", "forward_kernel", q, q, q) == 0
    assert needed("cutlass_fmha", f"never_{int(FmhaStatus.DIM)}", q, q, q, rows) == 0


def test_generated_code_can_be_traced_without_a_kernel() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    ops: Any = torch.ops.inductor_plugin
    with FakeTensorMode():
        q, lse = torch.empty(2, 4, 64, 64), torch.empty(2, 4, 64)
        call_arguments = ("a@0", 0.125, -1, -1, False)
        out = torch.empty_like(q)
        dq, dv = torch.empty_like(q), torch.empty_like(q)

        def call(q: Tensor, lse: Tensor, dq: Tensor, dv: Tensor, out: Tensor) -> Tensor:
            ops.cutlass_fmha.out(q, q, q, lse, *call_arguments, out=out)
            ops.cutlass_fmha.out(q, q, q, None, *call_arguments, out=out)
            ops.cutlass_fmha_output.out(q, q, q, *call_arguments, out=out)
            back = (q, q, q, q, q, lse, lse, dq, dv)
            ops.cutlass_fmha_backward.out(*back, *call_arguments, out=out)
            return out

        traced = make_fx(call)(q, lse, dq, dv, out)
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert called == [
        ops.cutlass_fmha.out,
        ops.cutlass_fmha.out,
        ops.cutlass_fmha_output.out,
        ops.cutlass_fmha_backward.out,
    ]


def test_schemas_say_what_is_written() -> None:
    ops: Any = torch.ops.inductor_plugin

    def written(op: Any) -> set[str]:
        return {
            argument.name
            for argument in op._schema.arguments
            if argument.alias_info and argument.alias_info.is_write
        }

    assert written(ops.cutlass_fmha.out) == {"lse", "workspace", "out"}
    assert written(ops.cutlass_fmha_output.out) == {"workspace", "out"}
    assert written(ops.cutlass_fmha_backward.out) == {"dq", "dv", "workspace", "out"}
