"""A library whose kernel keeps its last call and counts its runs: what a call site hands over."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.attention.cutlass_abi import FmhaCall
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.templates.cutlass.source import INTERFACE as PRODUCTS
from inductor_plugin.templates.cutlass_attention.source import INTERFACE as ATTENTION
from tests.support.native import host_kernels

# Each kernel copies its call where a test reads it, and counts its runs.
ECHO = """
#include <cstdint>
#include <cstring>
#include <unistd.h>
{header}
static {call} last;
static int64_t runs, forgotten, refuses, needed;
static volatile int64_t gate = 1;
static char mine;
extern "C" void set_gate(int64_t open) {{ gate = open; }}
extern "C" void* last_call() {{ return &last; }}
extern "C" int64_t* numbers() {{ static int64_t* all[] = {{&runs, &forgotten, &refuses, &needed}}; return (int64_t*)all; }}
extern "C" int32_t echo(int32_t mode, {call}* call, uint64_t* bytes, void* stream) {{
  if (mode == kForget) {{ ++forgotten; *call->kept = nullptr; return kOk; }}
  if (mode == kWorkspaceBytes) *bytes = needed;
  if (refuses) return int32_t(refuses);
  if (mode != kRun) return kOk;
  for (int64_t turn = 0; !gate && turn < 3000; ++turn) usleep(1000);
  if (!gate) return kOk;
  if (needed && call->workspace_bytes < uint64_t(needed)) return kWorkspace;
  ++runs;
  last = *call;
  if (call->kept) *call->kept = &mine;
  return kOk;
}}
"""


class Echo:
    """A library whose kernel ``echo`` keeps its last call."""

    def __init__(self, path: Path, call: type[Any]) -> None:
        loaded = ctypes.CDLL(str(path))
        loaded.last_call.restype = ctypes.POINTER(call)
        loaded.numbers.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
        self.kernel = f"echo@{path}"
        self.set_gate: Any = loaded.set_gate
        self._last, self._numbers = loaded.last_call(), loaded.numbers()

    @property
    def call(self) -> dict[str, Any]:
        """The fields of the last call; pointers as numbers, arrays as lists; without what the caller keeps."""
        fields = {
            name: getattr(self._last.contents, name) for name, _ in self._last.contents._fields_
        }
        del fields["kept"]
        return {name: _plain(value) for name, value in fields.items()}

    @property
    def runs(self) -> int:
        return int(self._numbers[0][0])

    @property
    def forgotten(self) -> int:
        return int(self._numbers[1][0])

    def answer(self, status: int = 0, needed: int = 0) -> None:
        self._numbers[2][0], self._numbers[3][0] = status, needed


def _plain(value: Any) -> Any:
    if hasattr(value, "_fields_"):
        return [_plain(getattr(value, name)) for name, _ in value._fields_]
    return [_plain(element) for element in value] if hasattr(value, "_length_") else value or 0


def echo_of(folder: Path, header: Path, call: type[Any]) -> Echo:
    text = ECHO.format(header=header.read_text(), call=call.__name__)
    return Echo(host_kernels.library(folder, text), call)


@pytest.fixture(scope="module")
def echoes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Echo]:
    return {
        "mm": echo_of(tmp_path_factory.mktemp("mm"), PRODUCTS, GemmCall),
        "fmha": echo_of(tmp_path_factory.mktemp("fmha"), ATTENTION, FmhaCall),
    }


@pytest.fixture
def product(echoes: dict[str, Echo]) -> Echo:
    echoes["mm"].answer()
    return echoes["mm"]
