"""C++ of one CUTLASS attention kernel: one translation unit with one C function.

The wheel's Hopper example provides the device code, partly edited (`patch`); the files in
``source/`` add masks, host side and C function. Include lines come first and the C function last, so
that several sources fit into one unit.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from inductor_plugin.templates.cutlass.epilogue import ELEMENT_TYPES
from inductor_plugin.templates.cutlass.source_folder import KEPT, digest_of, filled
from inductor_plugin.templates.cutlass_attention.config import BYTES, FmhaConfig
from inductor_plugin.templates.cutlass_attention.patch import (
    BACKWARD,
    EXAMPLE,
    FORWARD,
    SOFTMAX,
    example_folder,
    patched,
)

_SOURCE = Path(__file__).resolve().parent / "source"

INTERFACE = _SOURCE / "interface.h"
"""The call of every kernel, as C++."""

_INCLUDES = (
    "cute/tensor.hpp",
    "cutlass/cutlass.h",
    "cutlass/device_kernel.h",
    "cutlass/kernel_hardware_info.h",
    "cutlass/numeric_types.h",
    "cutlass/gemm/collective/collective_builder_decl.hpp",
    "cutlass/gemm/collective/collective_mma_decl.hpp",
    "cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp",
    "cutlass/gemm/collective/builders/sm90_gmma_builder.inl",
)
"""Only Hopper's products are included: collective_builder.hpp includes all, 1 to 3 s a unit."""
_OF_EXAMPLE = (
    "collective/fmha_common.hpp",
    "collective/fmha_collective_load.hpp",
    "collective/fmha_fusion.hpp",
    "kernel/fmha_options.hpp",
    "kernel/fmha_kernel_tma_warpspecialized.hpp",
    "kernel/fmha_tile_scheduler.hpp",
)
_INCLUDES_NARROW = ("cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8.hpp",)
_V_READ = ("straight.cuh", "forward.cuh")
_V_TURNED = ("turn.h", "turned.cuh", "forward.cuh")


@functools.cache
def interface() -> str:
    """Return a digest of everything around the wheel's text: arguments and host side."""
    return digest_of(_SOURCE, KEPT)


@functools.cache
def why_not_usable() -> str | None:
    """Return why the installed wheel's example cannot be used; None if it can, or if no wheel is installed.

    Without the wheel, kernels of packs can still run.
    """
    include = include_folder()
    if include is None:
        return None
    try:
        for header in (FORWARD, SOFTMAX, BACKWARD):
            patched(header, example_folder(include))
    except (OSError, ValueError) as error:
        return f"the attention example of the installed nvidia-cutlass is another one: {error}"
    return None


def source(config: FmhaConfig) -> str:
    """Return the translation unit of a kernel; its C function is called ``config.name``.

    Raises:
        ValueError: The edits do not match the wheel's example.
        ImportError: nvidia-cutlass is not installed.
    """
    include = include_folder()
    if include is None:
        raise ImportError("nvidia-cutlass is not installed")
    folder = example_folder(include)
    words = _words(config)
    headers = (BACKWARD,) if config.backward else (SOFTMAX, FORWARD)
    forward = _V_TURNED if config.element == "e4m3" else _V_READ
    hosts = ("backward.cuh",) if config.backward else forward
    more = _INCLUDES_NARROW if config.element == "e4m3" else ()
    example = (f"{EXAMPLE}/{path}" for path in _OF_EXAMPLE)
    includes = (*_INCLUDES[:-1], *more, _INCLUDES[-1], *example)
    parts = [
        "\n".join(
            [
                *(
                    f"#include <{name}>"
                    for name in ("cfloat", "cstdint", "cstring", "initializer_list", "new")
                ),
                *(f'#include "{path}"' for path in includes),
            ]
        ),
        _filled("mask.h", words),
        _filled("interface.h", words),
        filled(KEPT, words),
        _filled("call.h", words),
        _filled("launch.cuh", words),
        _filled("store.cuh", words),
        _filled("patched.cuh", words),
        *(patched(header, folder) for header in headers),
        *(_filled(name, words) for name in hosts),
        _filled("entry.cuh", words),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


@functools.cache
def installed() -> bool:
    """Return whether the wheel with the example is installed."""
    return include_folder() is not None


def include_folder() -> Path | None:
    """Return CUTLASS's include folder, without importing anything."""
    spec = importlib.util.find_spec("cutlass_library")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        include = Path(folder) / "source" / "include"
        if include.is_dir():
            return include
    return None


def _filled(name: str, words: dict[str, str]) -> str:
    return filled(_SOURCE / name, words)


def _words(config: FmhaConfig) -> dict[str, str]:
    """Return the values of the placeholders in ``source/``."""
    persistent = config.schedule == "pingpong"
    return {
        "symbol": config.name,
        "kernel": f"{config.name}_kernel",
        "element": ELEMENT_TYPES[config.element],
        "written": ELEMENT_TYPES["bf16" if config.element == "e4m3" else config.element],
        "align": str(16 // BYTES[config.element]),
        "weight_bits": "8" if config.element == "e4m3" else "0",
        "rows": str(config.rows),
        "columns": str(config.columns),
        "dim": str(config.dim),
        "stages": str(config.stages),
        "persistent": "true_type" if persistent else "false_type",
        "scheduler": "Persistent" if persistent else "Individual",
    }
