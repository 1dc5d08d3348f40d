"""Torch operators that generated code calls: products, copies, checks of outputs."""

from __future__ import annotations

from collections.abc import Mapping

_GEMM = "inductor_plugin.ops.gemm"
_ATTENTION = "inductor_plugin.attention.cutlass"

DEFINED_IN: Mapping[str, str] = {
    "inductor_plugin::cutlass_mm.out": _GEMM,
    "inductor_plugin::cutlass_addmm.out": _GEMM,
    "inductor_plugin::cutlass_scaled_mm.out": _GEMM,
    "inductor_plugin::cutlass_scaled_addmm.out": _GEMM,
    "inductor_plugin::cutlass_grouped_mm.out": _GEMM,
    "inductor_plugin::cutlass_mm_epilogue.out": "inductor_plugin.ops.gemm_epilogue",
    "inductor_plugin::cutlass_fmha.out": _ATTENTION,
    "inductor_plugin::cutlass_fmha_output.out": _ATTENTION,
    "inductor_plugin::cutlass_fmha_backward.out": _ATTENTION,
}
"""The module that defines each operator; templates, a layer below, name only the operator."""


def imports_of(op: str, imports: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the modules that define an operator: those its template names, else the plugin's module."""
    return imports or ((DEFINED_IN[op],) if op in DEFINED_IN else ())
