"""One compiler call for all C++ kernels of a graph, for tests that compile many small graphs.

Inductor calls the compiler for each kernel: 1.5 s of CPU with g++ 12, of which the header, Python's
binding and the linker take all but 0.1 s. Here kernels are collected until the first of them is called,
compiled together in one unit, and called with ctypes; the same text is compiled once.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppCodeCache

from inductor_plugin.kernels.unit import CppSource, single_unit, unique_symbol

Call = Callable[..., None]

_SYMBOL = "kernel"
"""Inductor's name of the C function of each kernel."""
_waiting: dict[str, CppSource] = {}
_ready: dict[str, Any] = {}


@contextmanager
def together() -> Generator[None]:
    """Compile Inductor's C++ kernels together, with Inductor's own flags, for the block."""

    def cpp_pybinding(own: AsyncCompile, argtypes: Sequence[str], source: str) -> Call:
        del own
        key = hashlib.sha256(source.encode()).hexdigest()
        if key not in _ready:
            _waiting[key] = CppSource(key, source, _SYMBOL)

        def call(*arguments: Any) -> None:
            if key not in _ready:
                _compile()
            _ready[key](
                *(
                    _passed(kind, argument)
                    for kind, argument in zip(argtypes, arguments, strict=True)
                )
            )

        return call

    with mock.patch.object(AsyncCompile, "cpp_pybinding", cpp_pybinding):
        yield


def _compile() -> None:
    library = CppCodeCache.load(single_unit([*_waiting.values()]))
    for key, source in _waiting.items():
        function = getattr(library, unique_symbol(source))
        function.restype = None
        _ready[key] = function
    _waiting.clear()


def _passed(kind: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    assert "int64_t" in kind or "long" in kind, kind
    return ctypes.c_int64(value)
