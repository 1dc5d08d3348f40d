"""The operators hand a kernel the operands it needs; here a plain C function stands for the kernel."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inductor_plugin import gemm_op
from inductor_plugin.cache import KernelKey, open_store
from inductor_plugin.errors import KernelError
from inductor_plugin.gemm_abi import GemmCall, GemmFunction, run

REPOSITORY = Path(__file__).resolve().parents[1]
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
template <bool TA, bool TB, int BIAS>
int32_t entry(int32_t mode, GemmCall* call, uint64_t* bytes) {{
  if (mode == kWorkspaceBytes) *bytes = call->split_k > 1 ? 64 : 0;
  if (mode != kRun) return kOk;
  if (call->split_k > 1 && (!call->workspace || call->workspace_bytes < 64)) return kWorkspace;
  return product(*call, TA, TB, BIAS);
}}
"""
NAMES = [(a, b, bias) for a in "tn" for b in "tn" for bias in range(3)]
BIASES = ("row", "column", "full")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with a kernel for each order of operands and each kind of bias."""
    folder = tmp_path_factory.mktemp("kernel")
    header = (REPOSITORY / "templates" / "source" / "cutlass_call.h").read_text()
    header, _, _ = header.partition("// Operands of the kernel")
    text = STANDS_IN.format(header=header) + "\n".join(
        f'extern "C" int32_t k_{a}{b}_{BIASES[bias]}(int32_t m, GemmCall* c, uint64_t* w, void*)'
        f" {{ return entry<{int(a == 't')}, {int(b == 't')}, {bias}>(m, c, w); }}"
        for a, b, bias in NAMES
    )
    (folder / "kernel.cpp").write_text(text)
    made = folder / "kernel.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-O1", "-o", str(made), str(folder / "kernel.cpp")], check=True
    )
    return made


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def launch(function: GemmFunction, call: GemmCall, device: torch.device) -> None:
        assert device.type == "cpu"
        run(function, call, 0)

    def processors(device: torch.device) -> int:
        return 132

    monkeypatch.setattr(gemm_op, "_launch", launch)
    monkeypatch.setattr(gemm_op, "multiprocessors", processors)
    monkeypatch.setattr(gemm_op, "_folders", [])
    gemm_op._found.cache_clear()
    gemm_op._warn.cache_clear()
    yield
    gemm_op._found.cache_clear()


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
    gemm_op.cutlass_mm(a, b, f"k_{order}_row@{library}", order, 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


def test_a_batch_that_shares_an_operand(library: Path) -> None:
    a, b = torch.randn(3, 4, 8), torch.randn(1, 8, 5).expand(3, 8, 5)
    out = torch.empty(3, 4, 5)
    gemm_op.cutlass_mm(a, b, f"k_tt_row@{library}", "tt", 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_of_each_kind(library: Path, bias: str) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    c = {
        "row": torch.randn(5),
        "column": torch.randn(4, 1).expand(4, 5),
        "full": operand(4, 5, "t"),
    }[bias]
    gemm_op.cutlass_addmm(
        *(c, a, b, f"k_tt_{bias}@{library}", "tt", 1, 0, 1, bias, 0.5, 2.0), out=out
    )
    assert torch.allclose(out, torch.addmm(c, a, b, alpha=0.5, beta=2.0), atol=1e-5)


def test_an_expanded_row_is_read_as_a_row(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    c = torch.randn(5).expand(4, 5)
    gemm_op.cutlass_addmm(
        *(c, a, b, f"k_tt_row@{library}", "tt", 1, 0, 1, "row", 1.0, 1.0), out=out
    )
    assert torch.allclose(out, c + a @ b, atol=1e-5)


def test_a_batch_with_a_bias_of_its_own(library: Path) -> None:
    a, b, c = torch.randn(2, 4, 8), torch.randn(2, 8, 5), torch.randn(2, 4, 5)
    out = torch.empty(2, 4, 5)
    gemm_op.cutlass_addmm(
        *(c, a, b, f"k_tt_full@{library}", "tt", 1, 0, 1, "full", 1.0, 1.0), out=out
    )
    assert torch.allclose(out, torch.baddbmm(c, a, b), atol=1e-5)


def test_scales_and_a_bias(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    sa, sb, c = torch.rand(4, 1), torch.rand(1, 5), torch.randn(5)
    launch = (f"k_tt_row@{library}", "tt", 1, 0, 1)
    gemm_op.cutlass_scaled_addmm(a, b, sa, sb, c, *launch, out=out)
    assert torch.allclose(out, sa * sb * (a @ b) + c, atol=1e-5)
    gemm_op.cutlass_scaled_mm(a, b, sa, sb, *launch, out=out)
    assert torch.allclose(out, sa * sb * (a @ b), atol=1e-5)


def test_a_kernel_gets_the_workspace_it_asks_for(library: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    gemm_op.cutlass_mm(a, b, f"k_tt_row@{library}", "tt", 1, 0, 4, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 8, 5), (4, 0, 5), (4, 8, 0)])
def test_an_empty_dimension(library: Path, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    out = torch.full((m, n), 7.0)
    gemm_op.cutlass_mm(
        *(torch.randn(m, k), torch.randn(k, n), f"k_tt_row@{library}", "tt", 1, 0, 1), out=out
    )
    assert torch.equal(out, torch.zeros(m, n))


def test_a_kernel_is_found_in_the_cache_by_its_digest(library: Path, tmp_path: Path) -> None:
    key = KernelKey("cutlass", "source", "k", "sm_90a", "nvcc", "")
    open_store(tmp_path / "cache").put_kernel(key, {"kernel.so": library})
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    gemm_op.look_in(tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gemm_op.cutlass_mm(a, b, f"k_tt_row@{key.digest}", "tt", 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)


def test_where_the_library_is_gone_the_product_is_still_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_op, "default_cache_dir", lambda: tmp_path / "none")
    a, b, c = torch.randn(4, 8), torch.randn(8, 5), torch.randn(5)
    out = torch.empty(4, 5)
    with pytest.warns(RuntimeWarning, match="compile the model again"):
        gemm_op.cutlass_mm(a, b, "k@0123", "tt", 1, 0, 1, out=out)
    assert torch.allclose(out, a @ b, atol=1e-5)
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        gemm_op.cutlass_addmm(*(c, a, b, "k@0123", "tt", 1, 0, 1, "row", 0.5, 2.0), out=out)
    assert torch.allclose(out, torch.addmm(c, a, b, alpha=0.5, beta=2.0), atol=1e-5)
    assert not (tmp_path / "none").exists()


def test_nothing_stands_in_for_a_library_that_is_named_by_its_path(tmp_path: Path) -> None:
    a, b, out = torch.randn(4, 8), torch.randn(8, 5), torch.empty(4, 5)
    with pytest.raises(KernelError, match="cannot load k"):
        gemm_op.cutlass_mm(a, b, f"k@{tmp_path}/no.so", "tt", 1, 0, 1, out=out)


def test_the_operators_are_there_and_write_to_out() -> None:
    for name in ("cutlass_mm", "cutlass_addmm", "cutlass_scaled_mm", "cutlass_scaled_addmm"):
        overload = getattr(torch.ops.inductor_plugin, name).out
        assert overload._schema.is_mutable
        assert overload._schema.arguments[-1].name == "out"
