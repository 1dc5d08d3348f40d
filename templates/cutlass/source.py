"""C++ of one CUTLASS kernel: one translation unit with one C function.

cutlass_library writes the kernel's type from a `GemmOperation` of exactly this configuration
(its own manifest would list 21,000); the files in ``source/`` add the host side. Include lines come
first and the C function last, so that several sources fit into one unit.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from inductor_plugin.kernels.nvcc import CUTLASS_MAJOR, INCLUDE, INSTALL_CUTLASS
from inductor_plugin.templates.cutlass.config import BITS, GemmConfig
from inductor_plugin.templates.cutlass.epilogue import ELEMENT_TYPES, CppEpilogue, epilogue
from inductor_plugin.templates.cutlass.evt_source import checks, evt_epilogue
from inductor_plugin.templates.cutlass.limits import SM80_WARPS, why_not_buildable
from inductor_plugin.templates.cutlass.source_folder import KEPT, digest_of, filled
from inductor_plugin.version import installed_version

_SOURCE = Path(__file__).resolve().parent / "source"

INTERFACE = _SOURCE / "interface.h"
"""The call of every kernel, as C++."""

_INCLUDES = (
    "#include <cstdint>",
    "#include <cstring>",
    "#include <new>",
    '#include "inductor_plugin_last_error.h"',  # before CUTLASS, whose calls it sees
)
_INCLUDES_3X = (
    "cutlass/cutlass.h",
    "cutlass/numeric_types.h",
    "cutlass/gemm/gemm.h",
    "cutlass/gemm/device/gemm_universal_adapter.h",
    "cutlass/gemm/kernel/gemm_universal.hpp",
    "cutlass/gemm/kernel/tile_scheduler.hpp",
    "cutlass/gemm/collective/collective_builder.hpp",
    "cutlass/epilogue/collective/collective_builder.hpp",
    "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp",
)
_INCLUDES_2X = (
    "cutlass/cutlass.h",
    "cutlass/numeric_types.h",
    "cutlass/gemm/gemm.h",
    "cutlass/gemm/device/gemm_universal_base.h",
    "cutlass/gemm/kernel/default_gemm_universal.h",
    "cutlass/epilogue/thread/linear_combination.h",
)

_INSTRUCTION_K = {8: 32, 16: 16, 32: 8}
"""Elements of K one tensor core instruction takes, by the bits of an element."""


@functools.cache
def interface() -> str:
    """Return a digest of everything around a kernel's own type: arguments and host side."""
    return digest_of(_SOURCE, *sorted(INCLUDE.iterdir()))


class _EmittedFunctor:
    """An epilogue that cutlass_library lacks, with the interface its emitters use."""

    def __init__(self, text: str) -> None:
        self.text = text

    def emit_declaration(self) -> str:
        """Return the C++ type."""
        return self.text


@functools.cache
def why_not_generated() -> str | None:
    """Return why no kernel can be generated here, or None if kernels can.

    The first call takes 40 ms to import cutlass_library; the result is cached.
    """
    if importlib.util.find_spec("cutlass_library") is None:
        return f"nvidia-cutlass is not installed: {INSTALL_CUTLASS}"
    version = _installed_version()
    if version and version.partition(".")[0] != str(CUTLASS_MAJOR):
        return f"nvidia-cutlass {version} is installed, kernels need {CUTLASS_MAJOR}.x: {INSTALL_CUTLASS}"
    try:
        _modules()
    except Exception as error:  # noqa: BLE001 - whatever its import raises, other templates work
        return f"nvidia-cutlass cannot be imported ({type(error).__name__}: {error}): {INSTALL_CUTLASS}"
    return None


def _installed_version() -> str:
    """Return the version of nvidia-cutlass; empty for a cutlass_library from elsewhere."""
    return installed_version("nvidia-cutlass") or ""


def source(config: GemmConfig) -> str:
    """Return the translation unit of a kernel; its C function is called ``config.name``.

    Raises:
        ValueError: The configuration has no kernel; see `why_not_buildable`.
        ImportError: cutlass_library, part of the wheel nvidia-cutlass, is missing.
    """
    if reason := why_not_buildable(config):
        raise ValueError(f"{config.name} cannot be built: {reason}")
    old = config.arch == "sm_80"
    includes = _INCLUDES_2X if old else _INCLUDES_3X
    host = "grouped.cuh" if config.grouped else "sm90.cuh"
    words = _words(config)
    parts = [
        "\n".join([*_INCLUDES, *(f'#include "{path}"' for path in includes)]),
        _filled("interface.h", words),
        filled(KEPT, words),
        _filled("call.h", words),
        _filled("start.cuh", words),
        _kernel_2x(config) if old else _kernel_3x(config),
        _filled("sm80.cuh" if old else host, words),
        _filled("entry.cuh", words),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _filled(name: str, words: dict[str, str]) -> str:
    return filled(_SOURCE / name, words)


def _words(config: GemmConfig) -> dict[str, str]:
    """Return the values of the placeholders in ``source/``."""
    a_row, b_row = config.layout_a == "row", config.layout_b == "row"
    full = config.bias == "full"
    vector = config.bias in ("row", "column")
    old = config.arch == "sm_80"
    splits = config.schedule == "stream_k"
    return {
        "symbol": config.name,
        "kernel": _kernel_name(config),
        "outer_a": "m" if a_row else "k",
        "inner_a": "k" if a_row else "m",
        "outer_b": "k" if b_row else "n",
        "inner_b": "n" if b_row else "k",
        "outer_b_of_call": "call.k" if b_row else "call.n",
        "inner_b_of_call": "call.n" if b_row else "call.k",
        "group_stride_a": _strides("lead_a", contiguous_last=a_row),
        "group_stride_b": _strides("lead_b", contiguous_last=not b_row),
        "stride_a": f"{_strides('lead_a', contiguous_last=a_row)}, batch_a",
        "stride_b": f"{_strides('lead_b', contiguous_last=not b_row)}, batch_b",
        "align_a": str(config.align_a),
        "align_b": str(config.align_b),
        "align_c": str(config.align_c),
        "align_d": str(config.align_d),
        "bytes_a": str(BITS[config.a] // 8),
        "bytes_b": str(BITS[config.b] // 8),
        "bytes_c": str(BITS[config.c] // 8),
        "bytes_d": str(BITS[config.d] // 8),
        "has_full_c": _cpp(full),
        "full_c": _cpp(full),
        **_source_words(config),
        # An sm_80 epilogue reads its bias as wide as it writes D.
        "align_bias": str(config.align_d if old and vector else 1),
        "whole_scalars": _cpp(config.a == "s8"),
        "ignores_alpha": _cpp(config.scale == "rowwise" or config.epilogue is not None),
        "can_split": _cpp(old or splits),
        "needs_c": _cpp(config.bias != "none"),
        "batch_ad": "1" if config.grouped else "call.batch",
        "needs_offsets": _cpp(config.grouped),
        "needs_scales": _cpp(config.scale != "none"),
        "needs_operands": str(0 if config.epilogue is None else config.epilogue.slots),
        "operand_checks": "" if config.epilogue is None else checks(config.epilogue),
        "thread": _thread_2x(config) if old else _fusion(config).thread,
        "splits": "arguments.scheduler.splits = call.split_k;" if splits else "",
    }


def _source_words(config: GemmConfig) -> dict[str, str]:
    """Return the C that a 3.x kernel reads: the bias, or an operand of its epilogue."""
    evt = config.epilogue
    place = None if evt is None else evt.source
    if place is None:
        pointer = "call.c" if config.bias == "full" else "nullptr"
        return {"pointer_c": pointer, "lead_c": "call.lead_c", "batch_c": "call.batch_c"}
    operand = f"call.operands[{place}]"
    return {
        "pointer_c": f"{operand}.pointer",
        "lead_c": f"{operand}.along_m",
        "batch_c": f"{operand}.batch",
    }


def _fusion(config: GemmConfig) -> CppEpilogue:
    """Return the epilogue of a 3.x kernel."""
    if config.epilogue is None:
        return epilogue(config)
    return evt_epilogue(config, config.epilogue)


def _cpp(flag: bool) -> str:  # noqa: FBT001 - the value itself, not a mode
    return "true" if flag else "false"


def _strides(lead: str, *, contiguous_last: bool) -> str:
    return f"{lead}, cute::_1{{}}" if contiguous_last else f"cute::_1{{}}, {lead}"


def _thread_2x(config: GemmConfig) -> str:
    compute = ELEMENT_TYPES[config.accumulator]
    beta = "0" if config.bias == "none" else "call.beta"
    parameters = "typename Kernel::EpilogueOutputOp::Params"
    return f"{parameters}({compute}(call.alpha), {compute}({beta}))"


def _kernel_name(config: GemmConfig) -> str:
    return f"{config.name}_kernel"


@functools.cache
def _modules() -> tuple[ModuleType, ModuleType]:
    """Import cutlass_library, an optional package that takes 40 ms; only generating needs it."""
    from cutlass_library import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        gemm_operation,
        library,
    )

    return library, gemm_operation


def _element(name: str, library: Any) -> Any:
    return library.DataType["f32" if name == "tf32" else name]


def _kernel_3x(config: GemmConfig) -> str:
    library, gemm = _modules()
    fusion = _fusion(config)
    functor = fusion.functor
    operation = _operation_3x(config, library, gemm, _EmittedFunctor(functor) if functor else None)
    emitter = gemm.EmitGemmUniversal3xInstance()
    if functor:
        alias = f"{_kernel_name(config)}_fusion"
        emitter.epilogue_functor = _EmittedFunctor(alias)
        declared = f"{fusion.declarations}\nusing {alias} = {functor};\n".lstrip()
        return declared + emitter.emit(operation)
    return emitter.emit(operation)


def _operation_3x(
    config: GemmConfig, library: Any, gemm: Any, functor: _EmittedFunctor | None
) -> Any:
    kinds = library.GemmKind
    kind = kinds.GroupedUniversal3x if config.grouped else kinds.Universal3x
    compute = _element(config.accumulator, library)
    major = {"row": library.LayoutType.RowMajor, "column": library.LayoutType.ColumnMajor}
    describe = library.TensorDescription
    kernel, writing = _schedules(config, library)
    sm100 = config.arch == "sm_100a"
    # C is void for a kernel that never reads it; the epilogue without TMA does not support that.
    reads_c = config.reads_c or not config.tma_epilogue
    element_c = _element(config.c, library) if reads_c else library.DataType.void
    schedulers = library.TileSchedulerType
    scheduler = schedulers.StreamK if config.schedule == "stream_k" else schedulers.Persistent
    operation = gemm.GemmOperation(
        kind,
        100 if sm100 else 90,
        _tile(config, library, [*config.tile[:2], _INSTRUCTION_K[BITS[config.a]]]),
        describe(_element(config.a, library), major[config.layout_a], config.align_a),
        describe(_element(config.b, library), major[config.layout_b], config.align_b),
        describe(element_c, library.LayoutType.RowMajor, config.align_c),
        compute if config.a == "s8" and config.epilogue is None else library.DataType.f32,
        functor or library.EpilogueFunctor3x.LinearCombination,
        D=describe(_element(config.d, library), library.LayoutType.RowMajor, config.align_d),
        kernel_schedule=kernel,
        epilogue_schedule=writing,
        tile_scheduler=schedulers.Default if sm100 or config.grouped else scheduler,
    )
    operation.procedural_name = lambda: _kernel_name(config)
    return operation


def _schedules(config: GemmConfig, library: Any) -> tuple[Any, Any]:
    """Return CUTLASS's names of the main loop's and the epilogue's schedule."""
    kernels, writings = library.KernelScheduleType, library.EpilogueScheduleType
    if config.arch == "sm_100a":
        blocks = "1Sm" if config.schedule == "one_sm" else "2Sm"
        return (
            kernels[f"TmaWarpSpecialized{blocks}Sm100"],
            writings[f"TmaWarpSpecialized{blocks}"],
        )
    pingpong = config.schedule == "pingpong"
    fast = "FP8FastAccum" if config.is_fp8 and config.fast_accumulation else ""
    if config.grouped:
        name = f"PtrArrayTmaWarpSpecialized{'Pingpong' if pingpong else 'Cooperative'}"
        return kernels[f"{name}{fast}"], writings[name]
    kernel = kernels[f"TmaWarpSpecialized{'Pingpong' if pingpong else 'Cooperative'}{fast}"]
    if config.transposed_epilogue:
        return kernel, writings.EpilogueTransposed
    if not config.tma_epilogue:
        return kernel, writings.NoSmemWarpSpecialized
    return kernel, writings[f"TmaWarpSpecialized{'' if pingpong else 'Cooperative'}"]


def _tile(config: GemmConfig, library: Any, instruction: list[int]) -> Any:
    operation = library.MathOperation.multiply_add
    if config.a == "s8" and config.arch == "sm_80":
        operation = library.MathOperation.multiply_add_saturate
    math = library.MathInstruction(
        instruction,
        _element(config.a, library),
        _element(config.b, library),
        _element(config.accumulator, library),
        library.OpcodeClass.TensorOp,
        operation,
    )
    warps = [*SM80_WARPS.get(config.tile[:2], (4, 1)), 1]
    capability = int(re.sub(r"\D", "", config.arch))
    return library.TileDescription(
        [*config.tile], config.stages, warps, math, capability, 1024, [*config.cluster]
    )


def _kernel_2x(config: GemmConfig) -> str:
    """Return a 2.x kernel's type.

    The emitter swaps A and B and transposes their layouts, because it assumes a column-major D.
    Given the transposed problem, it emits the kernel of the row-major one.
    """
    library, gemm = _modules()
    transposed = {"row": library.LayoutType.ColumnMajor, "column": library.LayoutType.RowMajor}
    describe = library.TensorDescription
    operation = gemm.GemmOperation(
        library.GemmKind.Universal,
        80,
        _tile(config, library, [16, 8, _INSTRUCTION_K[BITS[config.a]]]),
        describe(_element(config.b, library), transposed[config.layout_b], config.align_b),
        describe(_element(config.a, library), transposed[config.layout_a], config.align_a),
        describe(_element(config.d, library), library.LayoutType.ColumnMajor, config.align_d),
        _element(config.accumulator, library),
        library.EpilogueFunctor.LinearCombination,
        library.SwizzlingFunctor.Identity8,
    )
    operation.procedural_name = lambda: _kernel_name(config)
    return gemm.EmitGemmUniversalInstance().emit(operation)
