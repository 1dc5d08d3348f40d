"""New memory holds garbage while a candidate is checked."""

from __future__ import annotations

import ctypes
import sys

import pytest
import torch

from inductor_plugin.worker.child.garbage import garbage_in_new_memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_new_tensors_hold_garbage(dtype: torch.dtype) -> None:
    with garbage_in_new_memory():
        for tensor in (
            torch.empty(5, 3, dtype=dtype),
            torch.empty_strided((2, 2), (7, 1), dtype=dtype),
            torch.zeros(3, dtype=dtype).new_empty(4),
        ):
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            assert bool((whole == 0xFF).all())
        assert not torch.zeros(5, dtype=dtype).any()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_memory_of_c_code_holds_garbage_for_as_long_as_it_is_asked_for() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    size = 64 << 20
    with garbage_in_new_memory():
        dirty = libc.malloc(ctypes.c_size_t(size))
    clean = libc.malloc(ctypes.c_size_t(size))
    try:
        assert ctypes.string_at(dirty + size // 2, 8) == b"\x4b" * 8
        # Fresh pages are zero, those that the process has freed hold what was there.
        assert ctypes.string_at(clean + size // 2, 8) != b"\x4b" * 8
    finally:
        libc.free(ctypes.c_void_p(dirty))
        libc.free(ctypes.c_void_p(clean))
