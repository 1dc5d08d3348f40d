"""The operator of fused kernels hands over operands and strides; a C function stands for the kernel."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_plugin.errors import CallRefusedError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import gemm
from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_call import CALLS
from inductor_plugin.ops.gemm_epilogue import cutlass_mm_epilogue
from inductor_plugin.problem import Operand
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import encode
from tests.support.native import host_kernels
from tests.support.repository import REPOSITORY

HEADER = REPOSITORY / "templates" / "cutlass" / "source" / "interface.h"
STANDS_IN = """
#include <cstdint>
#include <initializer_list>
{header}
static float* at(GemmOperand const& one, int64_t l, int64_t i, int64_t j) {{
  return (float*)one.pointer + l * one.batch + i * one.along_m + j * one.along_n;
}}
// relu(A @ B + row) * full + column * number, A @ B + row beside it
extern "C" int32_t k(int32_t mode, GemmCall* c, uint64_t* bytes, void*) {{
  if (mode == kWorkspaceBytes) *bytes = 0;
  if (c->operands[0].along_m || c->operands[2].along_n) return kStride;
  if (mode != kRun) return kOk;
  for (int64_t l = 0; l < c->batch; ++l)
  for (int64_t i = 0; i < c->m; ++i) for (int64_t j = 0; j < c->n; ++j) {{
    float sum = 0;
    for (int64_t p = 0; p < c->k; ++p)
      sum += ((float*)c->a)[l * c->batch_a + i * c->lead_a + p]
           * ((float*)c->b)[l * c->batch_b + p * c->lead_b + j];
    sum += *at(c->operands[0], l, i, j);
    *at(c->operands[4], l, i, j) = sum;
    ((float*)c->d)[l * c->batch_d + i * c->lead_d + j] = (sum > 0 ? sum : 0)
      * *at(c->operands[1], l, i, j) + *at(c->operands[2], l, i, j) * *at(c->operands[3], l, i, j);
  }}
  return kOk;
}}
"""
M, N, K = 5, 6, 7
PRODUCT = Step("product")
STEPS = (
    Step("product"),
    Step("load", (), 0),
    Step("add", (0, 1)),
    Step("store", (2,), 0),
    Step("relu", (2,)),
    Step("load", (), 1),
    Step("mul", (4, 5)),
    Step("load", (), 2),
    Step("load", (), 3),
    Step("mul", (7, 8)),
    Step("add", (6, 9)),
    Step("store", (10,), 1),
)
READS = tuple(Access(kind, "float32", 1) for kind in ("row", "full", "column", "scalar"))
FULL = Access("full", "float32", M * N, (N, 1))
EPILOGUE = Epilogue((M, N), "float32", STEPS, READS, (FULL, FULL))
TEXT = encode(EPILOGUE)


@pytest.fixture(name="library", scope="module")
def a_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernel")
    return host_kernels.library(folder, STANDS_IN.format(header=HEADER.read_text()))


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host_kernels.install(monkeypatch, tmp_path / "none")


def operands(batch: int = 0, *, expanded: bool = False) -> list[torch.Tensor]:
    """Return a row, a matrix whose rows have gaps, a column and a number, each with D's dimensions."""
    lead = (batch,) if batch else ()
    ones = [1] * len(lead)
    row = torch.randn(*lead, 1, N)
    values = [row, torch.randn(*lead, M, N + 2)[..., :N], torch.randn(*ones, M, 1), torch.randn(())]
    values[3] = values[3].reshape(*ones, 1, 1)
    return [value.expand(*lead, M, N) for value in values] if expanded else values


def wanted(
    a: torch.Tensor, b: torch.Tensor, arguments: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    row, full, column, number = arguments
    summed = a @ b + row
    return summed, summed.relu() * full + column * number


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("expanded", [False, True])
def test_a_kernel_gets_each_operand_with_its_strides_under_d(
    library: Path, batch: int, expanded: bool
) -> None:
    lead = (batch,) if batch else ()
    a, b = torch.randn(*lead, M, K), torch.randn(*lead, K, N)
    tensors = operands(batch, expanded=expanded)
    out, aux = torch.empty(*lead, M, N), torch.empty(*lead, M, N)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cutlass_mm_epilogue(*(a, b, tensors, f"k@{library}", "tt", 1, 0, 1, TEXT, [aux]), out=out)
    for tensor, case in zip((aux, out), wanted(a, b, tensors), strict=True):
        assert torch.allclose(tensor, case, atol=1e-5)


def test_what_is_written_may_have_more_dimensions_than_the_product(library: Path) -> None:
    a, b, arguments = torch.randn(6, K), torch.randn(K, N), [torch.randn(1, N), torch.randn(6, N)]
    arguments += [torch.randn(6, 1), torch.randn(1, 1)]
    summed, result = wanted(a, b, arguments)
    for kernel in (f"k@{library}", "k@0123"):
        out, aux = torch.empty(2, 3, N), torch.empty(3, 2, N)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cutlass_mm_epilogue(*(a, b, arguments, kernel, "tt", 1, 0, 1, TEXT, [aux]), out=out)
        assert torch.allclose(out.view(6, N), result, atol=1e-5)
        assert torch.allclose(aux.view(6, N), summed, atol=1e-5)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        cutlass_mm_epilogue(
            *(a, b, arguments, f"k@{library}", "tt", 1, 0, 1, TEXT, [aux]),
            out=torch.empty(2, 4, N)[:, :3],
        )


def test_an_operand_of_another_kind_is_refused(library: Path) -> None:
    a, b, tensors = torch.randn(M, K), torch.randn(K, N), operands()
    tensors[0] = torch.randn(M, N)
    out, aux = torch.empty(M, N), torch.empty(M, N)
    with pytest.raises(CallRefusedError, match="a stride"):
        cutlass_mm_epilogue(*(a, b, tensors, f"k@{library}", "tt", 1, 0, 1, TEXT, [aux]), out=out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [0, 3])
def test_where_the_library_is_gone_all_outputs_are_still_right(
    dtype: torch.dtype, batch: int
) -> None:
    lead = (batch,) if batch else ()
    a, b = torch.randn(*lead, M, K, dtype=dtype), torch.randn(*lead, K, N, dtype=dtype)
    tensors = operands(batch)
    name = str(dtype).removeprefix("torch.")
    # Others read the product as well: it comes last of the further outputs.
    whole = Epilogue(EPILOGUE.size, name, STEPS, READS, (FULL, FULL), readers=1)
    out, aux, product = (torch.full((*lead, M, N), 7.0) for _ in range(3))
    product = product.to(dtype)
    arguments = (a, b, tensors, "k@0123", "tt", 1, 0, 1, encode(whole), [aux, product])
    with pytest.warns(RuntimeWarning, match="the library product is computed instead"):
        cutlass_mm_epilogue(*arguments, out=out)
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        cutlass_mm_epilogue(*arguments, out=out)
    assert torch.equal(product, a @ b)
    for tensor, case in zip(
        (aux, out), wanted((a @ b).float(), torch.eye(N), tensors), strict=True
    ):
        assert torch.allclose(tensor, case, atol=1e-5)


def test_whole_products_of_int8_are_scaled() -> None:
    a, b = (torch.randint(-9, 9, size, dtype=torch.int8) for size in ((32, 16), (16, 8)))
    steps = (PRODUCT, Step("to_dtype", (0,), "float32"), Step("constant", (), 0.5))
    text = encode(
        Epilogue(
            (32, 8), "int32", (*steps, Step("mul", (1, 2)), Step("store", (3,), 0)), (), (FULL,)
        )
    )
    out, none = torch.empty(32, 8), list[torch.Tensor]()
    with pytest.warns(RuntimeWarning, match="computed instead"):
        cutlass_mm_epilogue(*(a, b, none, "k@0123", "tt", 1, 0, 1, text, none), out=out)
    assert torch.equal(out, (a.int() @ b.int()) * 0.5)


def test_sums_of_16_bit_operands_that_an_epilogue_reads_in_float32_are_not_rounded() -> None:
    """257 is no bfloat16."""
    a, b = torch.ones(4, 257).bfloat16(), torch.ones(257, 8).bfloat16()
    steps = (PRODUCT, Step("constant", (), 0.5), Step("mul", (0, 1)), Step("store", (2,), 0))
    text = encode(Epilogue((4, 8), "float32", steps, (), (FULL,)))
    out, none = torch.empty(4, 8), list[torch.Tensor]()
    with pytest.warns(RuntimeWarning, match="computed instead"):
        cutlass_mm_epilogue(*(a, b, none, "k@0123", "tt", 1, 0, 1, text, none), out=out)
    assert torch.equal(out, torch.full((4, 8), 128.5))


def test_it_traces_without_a_device() -> None:
    operator: Any = torch.ops.inductor_plugin.cutlass_mm_epilogue.out
    with FakeTensorMode():
        a, b = torch.empty(M, K, device="cuda"), torch.empty(K, N, device="cuda")
        out, aux = (torch.empty(M, N, device="cuda") for _ in range(2))
        arguments = [torch.empty(1, N, device="cuda")]
        operator(a, b, arguments, "k@0123", "tt", 1, 0, 1, TEXT, [aux], out=out)
        with pytest.raises(RuntimeError, match="the output must be"):
            operator(a, b, arguments, "k@0123", "tt", 1, 0, 1, TEXT, [aux], out=aux[1:])
        longer = [torch.empty(1, N + 1, device="cuda")]
        with pytest.raises(RuntimeError, match="broadcast"):
            operator(a, b, longer, "k@0123", "tt", 1, 0, 1, TEXT, [aux], out=out)


def test_a_call_says_what_it_needs_from_operands_one_after_the_other(library: Path) -> None:
    floats = ((M, K), (K, N), (1, N), (M, N), (M, 1), (1, 1), (M, N))
    tensors = [Operand(size, (size[1], 1), "float32", "cuda") for size in floats]
    kernel = OpKernel(
        "inductor_plugin::cutlass_mm_epilogue.out", (f"k@{library}", "tt", 1, 0, 1, TEXT)
    )
    out = Operand((M, N), (N, 1), "float32", "cuda")
    assert gemm.workspace_needed(kernel, tensors, out, torch.device("cuda:0")) == 0
    shown = [TensorView(tensor.size, tensor.stride) for tensor in tensors]
    call = CALLS["cutlass_mm_epilogue"](
        *shown, "tt", 1, 0, 1, TEXT, out=TensorView((M, N), (N, 1)), sm_count=132
    )
    strides = [(operand.along_m, operand.along_n, operand.batch) for operand in call.operands]
    assert strides[:5] == [(0, 1, 0), (N, 1, 0), (1, 0, 0), (0, 0, 0), (N, 1, 0)]
    assert (call.m, call.n, call.k) == (M, N, K)
