"""The C++ text that AOTInductor's generated code includes, and the declarations of its call sites."""

from __future__ import annotations

import ctypes
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inductor_plugin.ops.native import source as native
from inductor_plugin.ops.operators import name_of
from inductor_plugin.ops.sites import ATTENTIONS, attention_numbers, product_numbers

NAMESPACE = "inductor_plugin"

_FOLDER = Path(__file__).resolve().parent
_STANDARD = (
    *("algorithm", "array", "atomic", "cmath", "initializer_list", "limits", "mutex", "stdexcept"),
    *("string", "utility", "vector"),
)
_TORCH = (
    "torch/csrc/inductor/aoti_runtime/utils.h",
    "torch/csrc/inductor/aoti_torch/c/shim.h",
    "torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h",
)
_BLOCKS = ("torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h", "torch/csrc/stable/c/shim.h")


@functools.cache
def sites_text() -> str:
    """Return what call sites of kernels need, once a program."""
    # Without torch's functions no view can be read, and each call site says that it cannot run.
    loaded = "[[maybe_unused]] static char const* const missing_function_ = torch_.load();"
    parts = (native.calls_text(), loaded, _read("call_site.h"))
    return _wrapped("SITES", (*native.CALL_HEADERS, *_STANDARD, *_TORCH), parts)


@functools.cache
def blocks_text() -> str:
    """Return what `attention_blocks` needs besides, once a program; it follows `sites_text`."""
    return _wrapped("BLOCKS", _BLOCKS, (_read("attention_blocks.h"),))


def site_text(
    name: str, op: str, arguments: Sequence[Any], file: str, folder: str, symbol: str, sm_count: int
) -> str:
    """Return the declaration of a call site and its kernel.

    Args:
        name: The site's name in the program.
        op: ``inductor_plugin::cutlass_mm.out`` ...
        arguments: The operator's constant arguments after the kernel's name.
        file: The kernel's library, as it is called in the package.
        folder: Where it is if the program is not part of a package; empty in a package.
        symbol: Its function.
        sm_count: Multiprocessors of the device the program is compiled for.
    """
    kernel = f'"{file}", {json.dumps(folder)}, "{symbol}", {sm_count}'
    if name_of(op) in ATTENTIONS:
        kind, scale, left, right, bottom_right = attention_numbers(op, arguments)
        fields = f"{kind}, {bottom_right}, {left}, {right}, {_float32(scale)}"
        site, spec, alignment = "AttentionCallSite", "AttentionSite", "kAttentionAlignment"
    else:
        *whole, alpha, beta, scale = product_numbers(op, symbol, arguments, (0, 0))
        fields = f"{', '.join(map(str, whole))}, {_float32(alpha)}, {_float32(beta)}, {scale}"
        site, spec, alignment = "ProductSite", "GemmSite", "kProductAlignment"
    space = f"{NAMESPACE}::"
    return (
        f"static {space}Kernel {name}_kernel({kernel});\n"
        f"static {space}{site} {name}({name}_kernel, {space}{spec}{{{fields}}}, {space}{alignment});"
    )


def _float32(value: float) -> str:
    """Return a number as a constant of C++, of type float."""
    rounded = ctypes.c_float(value).value
    if math.isnan(rounded):
        return "NAN"
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!r}f"


def _wrapped(guard: str, headers: Sequence[str], parts: Sequence[str]) -> str:
    # A program of two graphs, one for folded constants, has the heads of both.
    includes = "\n".join(f"#include <{header}>" for header in headers)
    body = "\n\n".join(parts)
    return (
        f"#ifndef INDUCTOR_PLUGIN_{guard}\n#define INDUCTOR_PLUGIN_{guard}\n{includes}\n\n"
        f"namespace {NAMESPACE} {{\n{body}\n}}  // namespace {NAMESPACE}\n#endif\n"
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
