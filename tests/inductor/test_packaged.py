"""Packages of AOTInductor hold kernels and attention, and run in a program without Python."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import inductor_plugin
from inductor_plugin import fmha as typed_fmha
from inductor_plugin.inductor.candidates.template_choice import TemplateChoice
from inductor_plugin.inductor.graph.pending import PendingChoice
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import imports_of
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from inductor_plugin.templates.cutlass.source import INTERFACE as PRODUCTS
from inductor_plugin.templates.cutlass_attention.source import INTERFACE as ATTENTION
from tests.support.attention.calls import cumulated
from tests.support.native import aoti, host_kernels

pytestmark = [
    pytest.mark.compat,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # torch 2.11, of itself
]

inductor: Any = torch._inductor
fmha: Any = typed_fmha

# What a compiled kernel does, on the host: alpha * A @ B + beta * C, with a row of C. It is twice that in the second run,
# for which it has kept something.
PRODUCT = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
{header}
extern "C" int32_t stub(int32_t mode, GemmCall* call, uint64_t* bytes, void*) {{
  if (mode == kForget) {{
    std::free(*call->kept), *call->kept = nullptr;
    std::fputs("forgotten;", stderr);
    return kOk;
  }}
  if (mode == kWorkspaceBytes) *bytes = 4096;
  if (mode != kRun) return kOk;
  if ({refuses}) return kRefused;
  if (call->workspace_bytes < 4096 || !call->workspace) return kWorkspace;
  std::memset(call->workspace, 1, 4096);
  float const factor = call->kept && *call->kept ? 2 : 1;
  if (call->kept && !*call->kept) *call->kept = std::malloc(1);
  auto const *a = (float const*)call->a, *b = (float const*)call->b, *c = (float const*)call->c;
  auto* d = (float*)call->d;
  for (int64_t row = 0; row < call->m; ++row)
    for (int64_t column = 0; column < call->n; ++column) {{
      float sum = 0;
      for (int64_t k = 0; k < call->k; ++k) sum += a[row * call->lead_a + k] * b[column * call->lead_b + k];
      d[row * call->lead_d + column] = factor * (call->alpha * sum + (c ? call->beta * c[column] : 0));
    }}
  return kOk;
}}
"""
# The largest value of each column of V: no attention, but all of it depends on the call.
LARGEST = """
#include <cstdint>
#include <cstring>
#include <algorithm>
{header}
extern "C" int32_t stub(int32_t mode, FmhaCall* call, uint64_t* bytes, void*) {{
  if (mode == kWorkspaceBytes) *bytes = 0;
  if (mode != kRun) return kOk;
  auto const* v = (float const*)call->v;
  auto* out = (float*)call->out;
  for (int64_t b = 0; b < call->batch; ++b) for (int64_t h = 0; h < call->heads; ++h)
    for (int64_t i = 0; i < call->seq_q; ++i) for (int64_t d = 0; d < call->dim; ++d) {{
      int64_t const kv = h / (call->heads / call->heads_kv);
      float const* column = v + b * call->stride_v[0] + kv * call->stride_v[1] + d;
      float most = column[0];
      for (int64_t j = 1; j < call->seq_k; ++j) most = std::max(most, column[j * call->stride_v[2]]);
      out[b * call->stride_out[0] + h * call->stride_out[1] + i * call->stride_out[2] + d] = most * call->scale;
    }}
  return kOk;
}}
"""


class Stub:
    """Offers a C function as a CUTLASS kernel for products and attention in float32."""

    name, version = "stub", "1"
    ops = ("mm", "addmm", "attention")

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def reject(self, problem: Problem) -> str | None:
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        launch = (1, 0, 1)
        op, arguments = {
            "mm": ("cutlass_mm", ("tn", *launch)),
            "addmm": ("cutlass_addmm", ("tn", *launch, "row", 0.5, 2.0)),
            "attention": ("cutlass_fmha_output", (0.25, -1, -1, False)),
        }[problem.op]
        name = f"inductor_plugin::{op}.out"
        kernel = OpKernel(name, (self.kernel, *arguments), imports_of(name))
        return [Candidate(self.name, "stub", {}, kernel)]


@contextmanager
def winning(text: str, folder: Path) -> Generator[None]:
    """Let a C function win every call; its library is in a folder of its own."""

    def ours(pending: Any) -> Any:
        choices = pending.choices.values()
        return next(choice for choice in choices if isinstance(choice, TemplateChoice))

    folder.mkdir()
    library = host_kernels.library(folder, text)
    template = Stub(f"stub@{library}")
    default_registry().register(template)
    try:
        with mock.patch.object(PendingChoice, "winner", ours):
            yield
    finally:
        default_registry().unregister(template.name)
        shutil.rmtree(folder)  # from here on only the package has it


def packaged(model: nn.Module, inputs: tuple[Any, ...], folder: Path, **more: Any) -> Path:
    options = inductor_plugin.options(cache_dir=str(folder / "cache"))
    program = torch.export.export(model.eval(), inputs, **more)
    with torch.no_grad():
        path = inductor.aoti_compile_and_package(
            program, package_path=str(folder / "model.pt2"), inductor_configs=options
        )
    return Path(path)


class Products(nn.Module):
    """Two products with weights, one with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(48, 32)), nn.Parameter(torch.randn(48))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = torch.addmm(self.bias, x + 1, self.weight.t(), alpha=0.5, beta=2)
        return torch.mm(x, self.weight.t()) + 1, scaled


@pytest.mark.parametrize("refuses", [False, True], ids=["runs", "refuses"])
def test_a_package_holds_the_kernels_of_products(
    refuses: bool, inductor_cache: Path, tmp_path: Path
) -> None:
    model, x = Products(), torch.randn(17, 32)
    text = PRODUCT.format(header=PRODUCTS.read_text(), refuses=int(refuses))
    rows = torch.export.Dim("rows", max=4096)
    with winning(text, tmp_path / "kernel"):
        package = packaged(model, (x,), tmp_path, dynamic_shapes={"x": {0: rows}})
    with zipfile.ZipFile(package) as archive:
        assert [name.rpartition("/")[2] for name in archive.namelist()].count("stub.kernel") == 1
    with torch.no_grad():
        expected = model(x)
    shutil.rmtree(inductor_cache)
    outputs, said = aoti.run(package, [x], expected, tmp_path)
    if refuses:
        torch.testing.assert_close(tuple(outputs), expected)
        assert said.count("inductor-plugin: stub refuses these tensors") == 2  # once a call site
    else:
        product, scaled = expected
        torch.testing.assert_close(outputs, [2 * product - 1, 2 * scaled])
        assert said == 2 * "forgotten;"  # once a call site
    nothing = [out[:0] for out in expected]
    outputs, said = aoti.run(package, [x[:0]], nothing, tmp_path)
    torch.testing.assert_close(outputs, nothing)
    assert not said


def test_a_cpp_wrapper_calls_a_kernel_without_python(inductor_cache: Path, tmp_path: Path) -> None:
    """The operator of Python has no kernel for a CPU: to call it would be an error."""
    model, x = Products(), torch.randn(17, 32)
    text = PRODUCT.format(header=PRODUCTS.read_text(), refuses=0)
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache")}
    with (
        winning(text, tmp_path / "kernel"),
        inductor_config.patch(cpp_wrapper=True),
        torch.no_grad(),
    ):
        product, scaled = model(x)
        compiled = torch.compile(model, backend="inductor_plugin", options=options)
        first, codes = run_and_get_code(compiled, x)
        second = compiled(x)
    torch.testing.assert_close(first, (product, scaled))
    torch.testing.assert_close(second, (2 * product - 1, 2 * scaled))  # what it has kept
    assert codes[0].count("if (!launch_buf") == 2
    for name in ("mm", "addmm"):  # where it cannot run
        assert f"torch.ops.inductor_plugin.cutlass_{name}.out" in codes[0]


def test_a_package_without_the_library_uses_torchs_product(
    inductor_cache: Path, tmp_path: Path
) -> None:
    model, x = Products(), torch.randn(17, 32)
    with winning(PRODUCT.format(header=PRODUCTS.read_text(), refuses=0), tmp_path / "kernel"):
        package = packaged(model, (x,), tmp_path)
    shutil.rmtree(inductor_cache)
    trimmed = tmp_path / "trimmed.pt2"
    with zipfile.ZipFile(package) as whole, zipfile.ZipFile(trimmed, "w") as less:
        for name in whole.namelist():
            if not name.endswith("stub.kernel"):
                less.writestr(name, whole.read(name))
    with torch.no_grad():
        expected = model(x)
    outputs, said = aoti.run(trimmed, [x], expected, tmp_path)
    torch.testing.assert_close(tuple(outputs), expected)
    assert "inductor-plugin: stub cannot be loaded" in said


class Attended(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25, enable_gqa=True)


@pytest.mark.claim
def test_a_package_holds_the_kernel_of_an_attention(inductor_cache: Path, tmp_path: Path) -> None:
    q, k, v = (torch.randn(2, heads, rows, 16) for heads, rows in ((4, 5), (4, 7), (4, 7)))
    with winning(LARGEST.format(header=ATTENTION.read_text()), tmp_path / "kernel"):
        package = packaged(Attended(), (q, k, v), tmp_path)
    shutil.rmtree(inductor_cache)
    expected = v.amax(2, keepdim=True).expand(q.shape) * 0.25
    outputs, _ = aoti.run(package, [q, k, v], [expected], tmp_path)
    torch.testing.assert_close(outputs, [expected])


class Dense(nn.Module):
    """What is around the attention is Inductor's."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, lse = fmha(q * 2, k, v, window=(5, 0), softcap=3.0, return_lse=True)
        return out + 1, lse, fmha(q, k, v, causal=True)


class Packed(nn.Module):
    """Sequences behind one another; only lse is used of the second call."""

    def forward(self, q: Tensor, k: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        longest = {"max_seqlen_q": q.size(0), "max_seqlen_k": k.size(0)}
        _, lse = fmha(q, k, k, **lengths, **longest, return_lse=True)
        return fmha(q, k, k, **lengths, window=(4, 1)), lse.t() * 2


def test_fmha_runs_without_python(inductor_cache: Path, tmp_path: Path) -> None:
    names = [torch.export.Dim(name, min=2, max=4096) for name in ("batch", "queries", "keys")]
    shapes = [{0: names[0], 2: names[at]} for at in (1, 2, 2)]

    def drawn(batch: int, queries: int, keys: int) -> tuple[Tensor, ...]:
        sizes = ((4, queries), (2, keys), (2, keys))
        return tuple(torch.randn(batch, heads, rows, 8) for heads, rows in sizes)

    package = packaged(Dense(), drawn(6, 33, 40), tmp_path, dynamic_shapes=shapes)
    for sizes in ((2, 7, 90), (3, 200, 5)):
        inputs = drawn(*sizes)
        expected = Dense()(*inputs)
        outputs, _ = aoti.run(package, inputs, expected, tmp_path)
        torch.testing.assert_close(tuple(outputs), expected)


def test_packed_sequences_run_without_python(inductor_cache: Path, tmp_path: Path) -> None:
    tokens, ends = (torch.export.Dim(name, min=2, max=4096) for name in ("tokens", "ends"))

    def drawn(*lengths: int) -> tuple[Tensor, ...]:
        return (*(torch.randn(sum(lengths), heads, 8) for heads in (4, 2)), cumulated(*lengths))

    shapes = ({0: tokens}, {0: tokens}, {0: ends})
    package = packaged(Packed(), drawn(9, 13, 11), tmp_path, dynamic_shapes=shapes)
    inputs = drawn(20, 1, 7, 30)
    expected = Packed()(*inputs)
    outputs, _ = aoti.run(package, inputs, expected, tmp_path)
    torch.testing.assert_close(tuple(outputs), expected)
    wrong = (*inputs[:2], inputs[2] + 1)
    with pytest.raises(RuntimeError, match="cu_seqlens_q begins with 1; the first sequence"):
        aoti.run(package, wrong, expected, tmp_path)
