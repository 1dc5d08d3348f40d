"""Fills memory that a kernel allocates with garbage, so that it cannot rely on zeros it has not written.

Fresh pages of the operating system are zero: a kernel that forgets to clear its scratch is right as long as it is
tested in a fresh process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_M_PERTURB = -6
"""`mallopt` parameter of glibc: the complement of this byte fills what malloc returns (man 3 mallopt)."""
_BYTE = 0x4B
_UNINITIALIZED = frozenset(
    {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
)


@contextmanager
def garbage_in_new_memory() -> Generator[None]:
    """Fill what torch allocates from Python with NaN, and what C++ code allocates on a CPU with finite numbers.

    Not while a kernel is timed: filling takes time.
    """
    _perturb(_BYTE ^ 0xFF)
    try:
        with _Filled():
            yield
    finally:
        _perturb(0)


class _Filled(TorchDispatchMode):
    """Fills uninitialized tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _UNINITIALIZED and _fillable(result):
            whole = torch.as_strided(
                result, (result.untyped_storage().nbytes() // result.element_size(),), (1,), 0
            )
            whole.view(torch.uint8).fill_(0xFF)
        return result


def _fillable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type != "meta"
    )


def _perturb(byte: int) -> None:
    with suppress(AttributeError, OSError):  # musl and macOS have no mallopt
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)
