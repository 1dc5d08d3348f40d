"""The operators hand a kernel the operands it needs; here a plain C function stands for the kernel.

How a kernel is found and started, and what refuses it, is in test_launch.py.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import gemm
from inductor_plugin.ops.gemm_call import CALLS
from inductor_plugin.problem import Operand
from tests.support.native import host_kernels
from tests.support.repository import REPOSITORY

STANDS_IN = """
#include <cstdint>
#include <initializer_list>
{header}
// float32 on the host; TA and TB say which stride is the leading one, BIAS how C is read.
static int32_t product(GemmCall const& call, bool ta, bool tb, int bias) {{
  float const *a = (float const*)call.a, *b = (float const*)call.b, *c = (float const*)call.c;
  float *d = (float*)call.d, *sa = (float*)call.scale_a, *sb = (float*)call.scale_b;
  for (int64_t l = 0; l < call.batch; ++l)
  for (int64_t i = 0; i < call.m; ++i) for (int64_t j = 0; j < call.n; ++j) {{
    float sum = 0;
    for (int64_t p = 0; p < call.k; ++p)
      sum += a[l * call.batch_a + (ta ? i * call.lead_a + p : p * call.lead_a + i)]
           * b[l * call.batch_b + (tb ? p * call.lead_b + j : j * call.lead_b + p)];
    float value = call.alpha * sum * (sa ? sa[i] : 1) * (sb ? sb[j] : 1);
    if (c) value += call.beta * c[l * call.batch_c + (bias == 0 ? j : bias == 1 ? i
                                  : i * call.lead_c + j)];
    d[l * call.batch_d + i * call.lead_d + j] = value;
  }}
  return kOk;
}}
// Groups of rows of A, each with a B of its own.
static int32_t groups(GemmCall call, bool tb) {{
  int64_t begin = 0;
  for (int64_t g = 0; g < call.batch; ++g, begin = call.offsets[g - 1]) {{
    GemmCall one = call;
    one.batch = 1, one.m = call.offsets[g] - begin;
    one.a = (float const*)call.a + begin * call.lead_a;
    one.b = (float const*)call.b + g * call.batch_b;
    one.d = (float*)call.d + begin * call.lead_d;
    product(one, true, tb, 0);
  }}
  return kOk;
}}
template <bool TA, bool TB, int BIAS>
int32_t entry(int32_t mode, GemmCall* call, uint64_t* bytes) {{
  if (mode == kWorkspaceBytes) *bytes = call->split_k > 1 ? 64 : 0;
  if (mode != kRun) return kOk;
  if (call->split_k > 1 && (!call->workspace || call->workspace_bytes < 64)) return kWorkspace;
  return call->offsets ? groups(*call, TB) : product(*call, TA, TB, BIAS);
}}
"""
NAMES = [(a, b, bias) for a in "tn" for b in "tn" for bias in range(3)]
BIASES = ("row", "column", "full")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with a kernel for each order of operands and each kind of bias."""
    folder = tmp_path_factory.mktemp("kernel")
    header = (REPOSITORY / "templates" / "cutlass" / "source" / "interface.h").read_text()
    text = STANDS_IN.format(header=header) + "\n".join(
        f'extern "C" int32_t k_{a}{b}_{BIASES[bias]}(int32_t m, GemmCall* c, uint64_t* w, void*)'
        f" {{ return entry<{int(a == 't')}, {int(b == 't')}, {bias}>(m, c, w); }}"
        for a, b, bias in NAMES
    )
    return host_kernels.library(folder, text)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host_kernels.install(monkeypatch, tmp_path / "none")


def operand(rows: int, columns: int, order: str, batch: int = 0) -> torch.Tensor:
    """Return random numbers; each row (``t``) or column (``n``) is followed by three unused ones."""
    sizes = (batch, rows, columns) if batch else (rows, columns)
    if order == "t":
        return torch.randn(*sizes[:-1], columns + 3)[..., :columns]
    return torch.randn(*sizes[:-2], columns, rows + 3)[..., :rows].transpose(-1, -2)


@pytest.mark.parametrize("order", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("batch", [0, 3])
def test_a_product_of_any_order_and_padding(library: Path, order: str, batch: int) -> None:
    a, b = operand(5, 7, order[0], batch), operand(7, 6, order[1], batch)
    out = operand(5, 6, "t", batch)
    gemm.cutlass_mm(a, b, f"k_{order}_row@{library}", order, 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


def test_a_batch_that_shares_an_operand(library: Path) -> None:
    a, b = torch.randn(3, 4, 8), torch.randn(1, 8, 5).expand(3, 8, 5)
    out = torch.empty(3, 4, 5)
    gemm.cutlass_mm(a, b, f"k_tt_row@{library}", "tt", 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_of_each_kind(library: Path, bias: str) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    c = {
        "row": torch.randn(5),
        "column": torch.randn(4, 1).expand(4, 5),
        "full": operand(4, 5, "t"),
    }[bias]
    gemm.cutlass_addmm(*(c, a, b, f"k_tt_{bias}@{library}", "tt", 1, 0, 1, bias, 0.5, 2.0), out=out)
    assert torch.allclose(out, torch.addmm(c, a, b, alpha=0.5, beta=2.0), atol=1e-5)


def test_with_a_beta_of_0_c_is_not_read(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    c = torch.full((4, 5), float("nan"))
    gemm.cutlass_addmm(*(c, a, b, f"k_tt_row@{library}", "tt", 1, 0, 1, "none", 0.5, 0.0), out=out)
    assert torch.allclose(out, 0.5 * a @ b, atol=1e-5)


def test_an_expanded_row_is_read_as_a_row(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    c = torch.randn(5).expand(4, 5)
    gemm.cutlass_addmm(*(c, a, b, f"k_tt_row@{library}", "tt", 1, 0, 1, "row", 1.0, 1.0), out=out)
    assert torch.allclose(out, c + a @ b, atol=1e-5)


def test_a_batch_with_a_bias_of_its_own(library: Path) -> None:
    a, b, c = torch.randn(2, 4, 8), torch.randn(2, 8, 5), torch.randn(2, 4, 5)
    out = torch.empty(2, 4, 5)
    gemm.cutlass_addmm(*(c, a, b, f"k_tt_full@{library}", "tt", 1, 0, 1, "full", 1.0, 1.0), out=out)
    assert torch.allclose(out, torch.baddbmm(c, a, b), atol=1e-5)


def test_scales_and_a_bias(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    sa, sb, c = torch.rand(4, 1), torch.rand(1, 5), torch.randn(5)
    launch = (f"k_tt_row@{library}", "tt", 1, 0, 1)
    gemm.cutlass_scaled_addmm(a, b, sa, sb, c, *launch, out=out)
    assert torch.allclose(out, sa * sb * (a @ b) + c, atol=1e-5)
    gemm.cutlass_scaled_mm(a, b, sa, sb, *launch, out=out)
    assert torch.allclose(out, sa * sb * (a @ b), atol=1e-5)


def test_a_kernel_gets_the_workspace_it_asks_for(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    gemm.cutlass_mm(a, b, f"k_tt_row@{library}", "tt", 1, 0, 4, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


def test_a_call_says_before_it_is_made_what_it_needs(library: Path) -> None:
    a, b = Operand((4, 8), (8, 1), "float32", "cuda"), Operand((8, 5), (5, 1), "float32", "cuda")
    out = Operand((4, 5), (5, 1), "float32", "cuda")

    def needed(kernel: str, split_k: int, inputs: tuple[Operand, ...] = (a, b)) -> int:
        call = OpKernel("inductor_plugin::cutlass_mm.out", (kernel, "tt", 1, 0, split_k))
        return gemm.workspace_needed(call, inputs, out, torch.device("cuda:0"))

    assert needed(f"k_tt_row@{library}", 4) == 64
    assert needed(f"k_tt_row@{library}", 1) == 0


ENDS = [[3, 5, 9], [0, 5, 9], [4, 4, 4], [0, 0, 9], [0, 0, 0], [9, 9, 9]]


@pytest.mark.parametrize("order", ["tt", "tn"])
@pytest.mark.parametrize("ends", ENDS)
def test_groups_of_rows_empty_ones_too(library: Path, order: str, ends: list[int]) -> None:
    a, b = operand(9, 8, "t"), operand(8, 6, order[1], 3)
    out = torch.full((9, 6), 7.0)
    offsets = torch.tensor(ends, dtype=torch.int32)
    gemm.cutlass_grouped_mm(a, b, offsets, f"k_{order}_row@{library}", order, 1, 0, 1, out=out)
    begin = 0
    for group, end in enumerate(ends):
        assert torch.allclose(out[begin:end], a[begin:end] @ b[group], atol=1e-5)
        begin = end
    assert torch.equal(out[begin:], torch.full((9 - begin, 6), 7.0))


def test_groups_without_rows_or_without_a_length_to_sum(library: Path) -> None:
    offsets = torch.zeros(2, dtype=torch.int32)
    kernel = f"k_tt_row@{library}"
    empty = torch.empty(0, 6)
    gemm.cutlass_grouped_mm(
        *(torch.randn(0, 8), torch.randn(2, 8, 6), offsets, kernel, "tt", 1, 0, 1), out=empty
    )
    out = torch.full((4, 6), 7.0)
    gemm.cutlass_grouped_mm(
        *(torch.randn(4, 0), torch.randn(2, 0, 6), offsets, kernel, "tt", 1, 0, 1), out=out
    )
    assert torch.equal(out, torch.zeros(4, 6))


@pytest.mark.parametrize("sizes", [(0, 8, 5), (4, 0, 5), (4, 8, 0)])
def test_an_empty_dimension(library: Path, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    out = torch.full((m, n), 7.0)
    gemm.cutlass_mm(
        *(torch.randn(m, k), torch.randn(k, n), f"k_tt_row@{library}", "tt", 1, 0, 1), out=out
    )
    assert torch.equal(out, torch.zeros(m, n))


def test_where_the_library_is_gone_the_product_is_still_right() -> None:
    a, b, c = torch.randn(4, 8), torch.randn(8, 5), torch.randn(5)
    out = torch.empty(4, 5)
    with pytest.warns(RuntimeWarning, match="compile the model again"):
        gemm.cutlass_mm(a, b, "k@0123", "tt", 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        gemm.cutlass_addmm(*(c, a, b, "k@0123", "tt", 1, 0, 1, "row", 0.5, 2.0), out=out)
    assert torch.allclose(out, torch.addmm(c, a, b, alpha=0.5, beta=2.0), atol=1e-5)


def test_where_the_library_is_gone_a_batch_with_a_bias_is_still_right() -> None:
    left, right, added = torch.randn(2, 4, 8), torch.randn(2, 8, 5), torch.randn(2, 4, 5)
    out = torch.empty(2, 4, 5)
    launch = ("k@0123", "tt", 1, 0, 1, "full", 1.0, 1.0)
    with pytest.warns(RuntimeWarning, match="the library product is computed instead"):
        gemm.cutlass_addmm(added, left, right, *launch, out=out)
    assert torch.allclose(out, torch.baddbmm(added, left, right), atol=1e-5)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.filterwarnings("ignore:.*compile the model again:RuntimeWarning")
def test_where_the_library_is_gone_float32_results_of_16_bit_operands_are_still_right(
    batch: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every device has torch's products with a dtype."""

    def product(*operands: torch.Tensor, out_dtype: torch.dtype, **factors: float) -> torch.Tensor:
        *c, a, b = (tensor.to(out_dtype) for tensor in operands)
        return real[len(c)](*c, a, b, **factors)

    names = ("bmm", "baddbmm") if batch else ("mm", "addmm")
    real = [getattr(torch, name) for name in names]
    for name in names:
        monkeypatch.setattr(torch, name, product)
    a, b = torch.randn(*batch, 4, 8).bfloat16(), torch.randn(*batch, 8, 5).bfloat16()
    c, out = torch.randn(*batch, 4, 5).bfloat16(), torch.empty(*batch, 4, 5)
    gemm.cutlass_mm(a, b, "k@0123", "tt", 1, 0, 1, out=out)
    torch.testing.assert_close(out, a.float() @ b.float())
    gemm.cutlass_addmm(*(c, a, b, "k@0123", "tt", 1, 0, 1, "full", 0.5, 2.0), out=out)
    torch.testing.assert_close(out, 0.5 * (a.float() @ b.float()) + 2.0 * c.float())


def test_where_the_library_is_gone_groups_are_still_right() -> None:
    a, b = torch.randn(9, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16()
    out = torch.empty(9, 8).bfloat16()
    ends = torch.tensor([3, 3, 9], dtype=torch.int32)
    with pytest.warns(RuntimeWarning, match="compile the model again"):
        gemm.cutlass_grouped_mm(a, b, ends, "k@0123", "tt", 1, 0, 1, out=out)
    torch.testing.assert_close(out, torch.cat([a[:3] @ b[0], a[3:] @ b[2]]))


def test_the_operators_are_there_and_write_to_out() -> None:
    for name in CALLS:
        overload = getattr(torch.ops.inductor_plugin, name).out
        assert overload._schema.is_mutable
        assert overload._schema.arguments[-1].name == "out"
