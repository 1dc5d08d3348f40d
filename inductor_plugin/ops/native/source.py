"""The text of the library of call sites, how it is compiled, and its name in the cache.

One library serves every torch from 2.11 on and every Python from 3.10 on: it calls torch's stable C functions and Python's
limited C API, and includes no header of torch. So it takes a second to compile, once a machine.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable
from pathlib import Path

from inductor_plugin.cache import KernelKey
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.templates.cutlass.source import INTERFACE as PRODUCTS
from inductor_plugin.templates.cutlass_attention.source import INTERFACE as ATTENTION

SYMBOL = "inductor_plugin_sites"
"""The library's function: takes ``torch.Tensor`` and ``torch.nn.Parameter``, returns the module of sites."""

_FOLDER = Path(__file__).resolve().parent
CALL_HEADERS = ("dlfcn.h", "cstdint", "cstring")
_HEADERS = ("Python.h", *CALL_HEADERS)
_CALL_FILES = ("torch_tensor.h", "gemm_site.h", "attention_site.h", "launch.h")
_FLAGS = (
    "-O2",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-DPy_LIMITED_API=0x030a0000",
    "-w",
)


@functools.cache
def text() -> str:
    """Return the translation unit."""
    includes = "\n".join(f"#include <{name}>" for name in _HEADERS)
    return "\n\n".join((includes, calls_text(), _read("site.cpp")))


@functools.cache
def calls_text() -> str:
    """Return the part without Python: calls of kernels, from tensors to the launch. Needs `CALL_HEADERS` included."""
    products, attention = (path.read_text(encoding="utf-8") for path in (PRODUCTS, ATTENTION))
    # Both families number their modes; the numbers are equal, and those of the products are used for both.
    parts = (f"namespace attention {{\n{attention}}}", f"{products}using attention::FmhaCall;")
    return "\n\n".join((*parts, *map(_read, _CALL_FILES)))


@functools.cache
def key() -> KernelKey:
    """Return the library's key. Its interfaces are those of C, so that any compiler's library serves."""
    return KernelKey(
        template="native.sites",
        source=hashlib.sha256(text().encode()).hexdigest(),
        config="",
        target=f"{platform.machine()}; {os.confstr('CS_GNU_LIBC_VERSION')}",
        toolchain="C++17",
        flags=" ".join(_FLAGS),
    )


def unit() -> CppSource:
    """Return the library as a unit to compile."""
    return CppSource(key().digest, text(), SYMBOL)


def command(compiler: str, include: str) -> tuple[str, ...]:
    """Return the compiler call, with ``{source}`` and ``{output}``.

    Args:
        compiler: The C++ compiler.
        include: Folder of ``Python.h``.
    """
    return (compiler, *_FLAGS, f"-I{include}", "{source}", "-o", "{output}", "-ldl")


def why_not_compiled(compiler: Callable[[], str]) -> str | None:
    """Return why the library cannot be compiled here and what to install, None if it can.

    Args:
        compiler: Returns the C++ compiler; raises RuntimeError without one.
    """
    try:
        compiler()
    except RuntimeError as error:
        return f"there is no C++ compiler: {str(error).strip().splitlines()[0]}"
    folder = sysconfig.get_paths()["include"]
    if not (Path(folder) / "Python.h").is_file():
        return f"{folder} has no Python.h: install python3-dev, which Triton needs, too"
    return None


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
