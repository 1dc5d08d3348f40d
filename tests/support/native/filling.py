"""A family of kernels that fill their output, and kernels that refuse or fail with each status."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from inductor_plugin.ops import launch
from inductor_plugin.ops.abi import Abi, TensorView

TEXT = """
#include <cstdint>
struct Call { float* out; void* workspace; uint64_t workspace_bytes; int64_t n, needed, device; };
// Statuses: 1 and 2 are refusals, 3 a workspace, 4 a start, 5 another version.
static int32_t answer(int32_t mode, Call* call, uint64_t* bytes) {
  if (mode == 1) *bytes = call->needed;
  if (mode != 2) return 0;
  if (call->workspace_bytes < uint64_t(call->needed)) return 3;
  for (int64_t i = 0; i < call->n; ++i) call->out[i] = 1;
  return 0;
}
extern "C" int32_t ones(int32_t mode, Call* c, uint64_t* bytes, void*) { return answer(mode, c, bytes); }
static int64_t seen = 0;
extern "C" int64_t seen_stream() { return seen; }
extern "C" int32_t stream_kernel(int32_t, Call*, uint64_t*, void* stream) {
  seen = int64_t(stream);
  return 0;
}
""" + "\n".join(
    f'extern "C" int32_t {name}_{status}(int32_t mode, Call*, uint64_t* bytes, void*)'
    f" {{ if (bytes) *bytes = 0; return {condition} ? {status} : 0; }}"
    for status in range(1, 6)
    for name, condition in (("never", "true"), ("late", "mode == 2"))
)


class Call(ctypes.Structure):
    _fields_ = (
        ("out", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("n", ctypes.c_int64),
        ("needed", ctypes.c_int64),
        ("device", ctypes.c_int64),
    )


class Status(IntEnum):
    STRIDE = 1
    EXTENT = 2


def fill(needed: int, *, out: TensorView, device: int) -> Call:
    return Call(out=out.pointer, n=out.size[0], needed=needed, device=device)


FAMILY = launch.KernelFamily(
    Abi(
        Call,
        refusals={Status.STRIDE: "a stride", Status.EXTENT: "an extent"},
        workspace="the workspace is too small",
        errors=lambda call: "error 9",
        sizes=lambda call: f"n={call.n}",
    ),
    {"fill": fill},
    device_arguments=lambda device: {"device": device.index or 0},
    has_work=lambda call: call.n > 0,
    workspace_alignment=64,
    fallback="zeros are computed instead",
)
ONES, ZEROS = torch.ones(4), torch.zeros(4)


def run(
    kernel: str, workspace: torch.Tensor | None = None, n: int = 4, needed: int = 0
) -> torch.Tensor:
    """Return what the kernel has written, or the zeros of the library."""
    out = torch.full((n,), 7.0)

    def make_call() -> Call:
        return fill(needed, out=launch.view_of(out), device=0)

    launch.run_or_fallback(FAMILY, kernel, make_call, out.zero_, workspace, out)
    return out
