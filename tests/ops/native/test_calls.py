"""What a bound call does besides its kernel: nothing with memory or files; two threads in one site keep apart."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.kernels.unit import unique_symbol
from inductor_plugin.ops.native import source
from inductor_plugin.templates.cutlass.source import INTERFACE
from tests.support.native import call_sites, host_kernels

pytestmark = pytest.mark.compat

# Counts calls of the C library while it is switched on.
COUNTER = """
#include <cstdarg>
#include <cstddef>
#include <dlfcn.h>
#include <fcntl.h>
#include <cstdio>
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
int __open64(char const*, int, ...);
static volatile long on, allocations, files;
void count(long now) { if (now) allocations = files = 0; on = now; }
long counted(int which) { return which ? files : allocations; }
void* malloc(size_t size) { allocations += on; return __libc_malloc(size); }
void* calloc(size_t n, size_t size) { allocations += on; return __libc_calloc(n, size); }
void* realloc(void* old, size_t size) { allocations += on; return __libc_realloc(old, size); }
static int opened(char const* path, int flags, int mode) { files += on; return __open64(path, flags, mode); }
int open(char const* path, int flags, ...) {
  va_list rest; va_start(rest, flags); int const mode = va_arg(rest, int); va_end(rest); return opened(path, flags, mode);
}
int open64(char const* path, int flags, ...) {
  va_list rest; va_start(rest, flags); int const mode = va_arg(rest, int); va_end(rest); return opened(path, flags, mode);
}
static FILE* stream(char const* name, char const* path, char const* mode) {
  files += on;
  return reinterpret_cast<FILE* (*)(char const*, char const*)>(dlsym(RTLD_NEXT, name))(path, mode);
}
FILE* fopen(char const* path, char const* mode) { return stream("fopen", path, mode); }
FILE* fopen64(char const* path, char const* mode) { return stream("fopen64", path, mode); }
}
"""
KERNEL = """
#include <cstdint>
extern "C" int32_t nothing(int32_t mode, void*, uint64_t* bytes, void*) { if (mode == 1) *bytes = 0; return 0; }
"""
PROGRAM = """
import ctypes, gc, json, os, sys
import torch
from torch.autograd import profiler
counter, library, symbol, kernel, numbers = sys.argv[1:]
loaded = ctypes.PyDLL(counter)
function = getattr(ctypes.PyDLL(library), symbol)
function.argtypes, function.restype = 4 * (ctypes.py_object,), ctypes.py_object
sites = function(torch.Tensor, torch.nn.Parameter, vars(profiler), None)
address = ctypes.cast(ctypes.CDLL(kernel).nothing, ctypes.c_void_p).value
slow = []
def accepted(*_, out):
    slow.append(1)
    return out
product = sites.product_site("site", accepted, *json.loads(numbers))
attention = sites.attention_site("site", accepted, None, 1, 0.5, -1, -1, 0)
a, b, c, q = torch.randn(4, 4), torch.randn(4, 4), torch.empty(4, 4), torch.randn(1, 2, 4, 8)
o = torch.empty_like(q)
launches = [(product.launch, (a, b, None), c), (attention.launch, (q, q, q, None), o)]
product.bind(address, -1, 1), attention.bind(address, -1, 1)
def calls(count):
    for launch, operands, out in launches:
        for _ in range(count):
            launch(*operands, out=out)
calls(20)
before = len(slow)
gc.disable()
loaded.count(ctypes.c_long(1))
calls(1000)
loaded.count(ctypes.c_long(0))
seen = [loaded.counted(0), loaded.counted(1), len(slow) - before]
loaded.count(ctypes.c_long(1))
os.close(os.open("/dev/null", os.O_RDONLY))
block = bytearray(100000)
loaded.count(ctypes.c_long(0))
print(json.dumps(seen + [loaded.counted(0), loaded.counted(1)]))
"""
NUMBERS = [0, 1, 1, 1, 0, 1, 0, 0, 0, 1.0, 0.0]


def test_a_bound_call_asks_the_c_library_for_no_memory_and_no_file(tmp_path: Path) -> None:
    """Python's own counts see neither what C++ allocates nor what it opens."""
    for name in ("counter", "kernel"):
        (tmp_path / name).mkdir()
    counter = host_kernels.library(tmp_path / "counter", COUNTER)
    kernel = host_kernels.library(tmp_path / "kernel", KERNEL)
    operands = [str(counter), str(call_sites.compiled()), unique_symbol(source.unit())]
    command = [sys.executable, "-c", PROGRAM, *operands, str(kernel), json.dumps(NUMBERS)]
    environment = {**os.environ, "LD_PRELOAD": str(counter)}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, env=environment
    )
    allocations, files, slow, noticed, opened = json.loads(done.stdout)
    assert (noticed > 0, opened) == (True, 1)  # it counts
    assert (files, slow) == (0, 0)
    assert allocations < 20  # of 2000 calls: what Python itself allocates in a thousand turns


# Waits inside until the gate opens; notes whether two calls were given the same memory, and what came to pass meanwhile.
GATED = """
#include <cstdint>
#include <unistd.h>
{header}
static volatile int64_t open_, waiting, shared, alone, forgotten, gone;

static char mine;
extern "C" void set_open(int64_t value) {{ open_ = value; }}
extern "C" int64_t get(int which) {{ int64_t const all[] = {{waiting, shared, alone, forgotten, gone}}; return all[which]; }}
extern "C" int32_t gated(int32_t mode, GemmCall* call, uint64_t* bytes, void*) {{
  if (mode == kForget) {{ ++forgotten; gone += waiting; *call->kept = nullptr; return kOk; }}
  if (mode == kWorkspaceBytes) *bytes = 0;
  if (mode != kRun) return kOk;
  if (call->kept) {{ if (waiting) ++shared; *call->kept = &mine; }} else ++alone;
  if (!open_) {{
    ++waiting;
    for (int turn = 0; !open_ && turn < 5000; ++turn) usleep(1000);
    --waiting;
  }}
  return kOk;
}}
extern "C" int32_t other(int32_t mode, GemmCall*, uint64_t* bytes, void*) {{ return mode == kWorkspaceBytes ? *bytes = 0, kOk : kOk; }}
"""
WAITING, SHARED, ALONE, FORGOTTEN, GONE = range(5)


class Gated:
    """A site whose kernel waits until it is let go."""

    def __init__(self, path: Path) -> None:
        self.library: Any = ctypes.CDLL(str(path))
        self.library.get.restype = ctypes.c_int64
        self.accepted = 0
        self.site = call_sites.sites().product_site("site", self._slow, *NUMBERS)
        self.tensors = torch.randn(4, 4), torch.randn(4, 4), torch.empty(4, 4)
        self.let_go(go=True)
        self.bind("gated")
        self.call()  # the operator accepts the dtypes
        self.call()

    def _slow(self, *_: Any, out: torch.Tensor) -> torch.Tensor:
        self.accepted += 1
        return out

    def bind(self, name: str) -> None:
        address = ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0
        self.site.bind(address, -1, 1)

    def call(self) -> None:
        a, b, out = self.tensors
        self.site.launch(a, b, None, out=out)

    def let_go(self, *, go: bool) -> None:
        self.library.set_open(ctypes.c_int64(go))

    def seen(self, which: int) -> int:
        return int(self.library.get(which))


@pytest.fixture(scope="module")
def gated_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return host_kernels.library(
        tmp_path_factory.mktemp("gated"), GATED.format(header=INTERFACE.read_text())
    )


@pytest.fixture
def gated(gated_library: Path) -> Gated:
    return Gated(gated_library)


@pytest.fixture
def inside(gated: Gated) -> Iterator[threading.Thread]:
    """Have a thread in the kernel."""
    gated.let_go(go=False)
    thread = threading.Thread(target=gated.call)
    thread.start()
    while not gated.seen(WAITING):
        assert thread.is_alive()
    yield thread
    gated.let_go(go=True)
    thread.join()


def test_what_a_kernel_keeps_belongs_to_the_thread_that_is_in_it(
    gated: Gated, inside: threading.Thread
) -> None:
    shared, alone = gated.seen(SHARED), gated.seen(ALONE)
    others = [threading.Thread(target=gated.call) for _ in range(2)]
    for thread in others:
        thread.start()
    while gated.seen(WAITING) < 3:
        assert all(thread.is_alive() for thread in others)
    assert (gated.seen(SHARED), gated.seen(ALONE)) == (shared, alone + 2)
    gated.let_go(go=True)
    for thread in (inside, *others):
        thread.join()
    gated.call()
    assert gated.seen(ALONE) == alone + 2  # the next call has it again


def test_no_other_kernel_is_bound_while_a_thread_is_in_one(
    gated: Gated, inside: threading.Thread
) -> None:
    forgotten = gated.seen(FORGOTTEN)
    gated.bind("other")
    assert (gated.seen(FORGOTTEN), gated.seen(GONE)) == (forgotten, 0)
    gated.let_go(go=True)
    inside.join()
    gated.bind("other")
    assert gated.seen(FORGOTTEN) == forgotten + 1
