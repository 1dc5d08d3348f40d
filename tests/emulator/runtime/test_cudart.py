"""What host code asks of the emulated runtime besides launches, in C."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inductor_plugin.problem.target import target
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.memory.allowed import Allowed
from tests.emulator.runtime.runtime import Runtime

_TO_DEVICE, _FROM_DEVICE, _ON_DEVICE = 1, 2, 3  # cudaMemcpyKind


def test_memory_that_is_no_operand_is_neither_set_nor_copied(runtime: Runtime) -> None:
    memory = np.arange(64, dtype=np.uint8)
    written, read = memory[16:32], memory[32:48]
    begin, last = written.ctypes.data, read.ctypes.data + 15
    allowed = Allowed([]).with_arrays([written], [read])
    library: Any = ctypes.CDLL(runtime.cudart)

    def zero(to: int, count: int) -> int:
        return library.cudaMemsetAsync(ctypes.c_void_p(to), 0, ctypes.c_size_t(count), None)

    def copy(to: int, origin: int, count: int, kind: int = _ON_DEVICE) -> int:
        places = ctypes.c_void_p(to), ctypes.c_void_p(origin)
        return library.cudaMemcpyAsync(*places, ctypes.c_size_t(count), kind, None)

    wrong: tuple[tuple[Callable[[], int], str], ...] = (
        (lambda: zero(begin, 17), "cudaMemsetAsync touches 17 bytes"),
        (lambda: zero(begin - 1, 1), "in no operand"),
        (lambda: zero(last, 1), "may only be read"),
        (lambda: zero(begin, 2**64 - 1), "in an operand|in no operand"),
        (lambda: copy(last, begin, 1, _TO_DEVICE), "may only be read"),
        (lambda: copy(begin, begin - 1, 1, _FROM_DEVICE), "in no operand"),
        (lambda: copy(last, begin, 1), "may only be read"),
        (lambda: copy(begin, last, 2), "cudaMemcpyAsync touches 2 bytes"),
    )
    for call, reason in wrong:
        with (
            pytest.raises(FaultError, match=reason),
            runtime.on(target("A100"), allowed=allowed),
        ):
            assert call() == CudaError.INVALID_VALUE
    assert memory.tolist() == list(range(64))
    with runtime.on(target("A100"), allowed=allowed):
        assert zero(begin, 16) == CudaError.SUCCESS
        assert copy(begin, last, 1) == CudaError.SUCCESS
        assert zero(0, 0) == CudaError.SUCCESS
        assert copy(begin - 1, last, 1, _FROM_DEVICE) == CudaError.SUCCESS  # memory of the host
        assert copy(begin + 1, begin - 2, 1, _TO_DEVICE) == CudaError.SUCCESS
        for kind in (-1, 4, 7):
            assert copy(begin, last, 1, kind) == CudaError.INVALID_MEMCPY_DIRECTION
    assert memory.tolist() == [*range(15), 47, 47, 14, *[0] * 14, *range(32, 64)]
