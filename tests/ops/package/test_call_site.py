"""Call sites of a program without Python: several threads at once, attention without keys."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from inductor_plugin.attention import unfused
from inductor_plugin.ops.package import source
from inductor_plugin.problem.attention import Mask
from inductor_plugin.templates.cutlass.source import INTERFACE
from inductor_plugin.templates.cutlass_attention.source import INTERFACE as ATTENTION
from tests.support.native import aoti, host_kernels

pytestmark = pytest.mark.compat

# Counts calls that meet another one with the same memory, and calls with and without memory.
KERNEL = """
#include <atomic>
#include <cstdint>
#include <cstdlib>
{header}
static std::atomic<int> inside{{0}}, conflicts{{0}}, with{{0}}, without{{0}}, forgotten{{0}};
extern "C" int32_t stub(int32_t mode, GemmCall* call, uint64_t* bytes, void*) {{
  if (mode == kWorkspaceBytes) *bytes = 0;
  if (mode == kForget) ++forgotten, std::free(*call->kept), *call->kept = nullptr;
  if (mode != kRun) return kOk;
  if (!call->kept) return ++without, kOk;
  if (inside.fetch_add(1)) ++conflicts;
  if (!*call->kept) *call->kept = std::malloc(1);
  for (int volatile turn = 0; turn < 20000; turn = turn + 1) {{}}
  ++with, --inside;
  return kOk;
}}
extern "C" void counted(int* counts) {{
  counts[0] = conflicts, counts[1] = with, counts[2] = without, counts[3] = forgotten;
}}
"""
THREADS, CALLS = 4, 200
ENTRY = """
#include <thread>
extern "C" int called(char const* folder, AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle out, int threads, int calls) {
  inductor_plugin::Kernel kernel("kernel.so", folder, "stub", 1);
  inductor_plugin::ProductSite site(kernel, inductor_plugin::GemmSite{0, 1, 1, 1, 0, 1, 0, 0, 0, 1.0f, 0.0f}, 64);
  std::atomic<int> right{0};
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread)
    all.emplace_back([&] { for (int call = 0; call < calls; ++call) right += site({a, b}, out); });
  for (auto& thread : all) thread.join();
  return right;
}
"""


def test_what_a_kernel_keeps_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    kernel = host_kernels.library(tmp_path, KERNEL.format(header=INTERFACE.read_text()))
    tensors = torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)
    impls = [ctypes.c_void_p(tensor._cdata) for tensor in tensors]
    called = aoti.library(source.sites_text() + ENTRY).called
    handles = [ctypes.byref(impl) for impl in impls]
    right = called(str(tmp_path).encode(), *handles, THREADS, CALLS)
    counts = (ctypes.c_int * 4)()
    ctypes.CDLL(str(kernel)).counted(counts)
    conflicts, kept, alone, forgotten = counts
    assert right == kept + alone == THREADS * CALLS
    assert conflicts == 0
    assert kept > 1  # it is given back after each call
    assert forgotten == 1


# Writes nothing: it is not to be called.
IDLE = """
#include <cstdint>
{header}
extern "C" int32_t stub(int32_t mode, FmhaCall*, uint64_t* bytes, void*) {{ return *bytes = 0, mode == kRun ? kStart : kOk; }}
"""
ATTENDED = """
extern "C" bool attended(char const* folder, int kind, AtenTensorHandle* all) {
  inductor_plugin::Kernel kernel("kernel.so", folder, "stub", 1);
  inductor_plugin::AttentionCallSite site(kernel, inductor_plugin::AttentionSite{kind, 0, -1, -1, 0.5f}, 128);
  return kind ? site({all[0], all[1], all[2]}, all[4]) : site({all[0], all[1], all[2], all[3]}, all[4]);
}
"""


def test_queries_without_keys_get_zeros(tmp_path: Path) -> None:
    host_kernels.library(tmp_path, IDLE.format(header=ATTENTION.read_text()))
    q, none = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 0, 8)
    expected, sums = unfused.forward(q, none, none, mask=Mask(), dtype=torch.float32)
    attended = aoti.library(source.sites_text() + ATTENDED).attended
    attended.restype = ctypes.c_bool
    for kind in (0, 1):  # with lse, and the output alone
        out, lse = torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 4, 5)
        impls = [ctypes.c_void_p(tensor._cdata) for tensor in (q, none, none, lse, out)]
        handles = (ctypes.c_void_p * 5)(*map(ctypes.addressof, impls))
        assert attended(str(tmp_path).encode(), kind, handles)
        assert torch.equal(out, expected)
        assert torch.equal(lse, sums) == (kind == 0)
