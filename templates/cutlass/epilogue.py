"""The epilogue of a CUTLASS 3.x kernel as C++: its type, and the arguments it is started with.

CUTLASS calls a vector that repeats in every row a row broadcast; it has n elements. A tree (EVT)
lists its leaves first and its operation last, in the type and in the arguments alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.templates.cutlass.config import GemmConfig

FUSION = "cutlass::epilogue::fusion"
"""Namespace of CUTLASS's visitors."""
ROUND = "cutlass::FloatRoundStyle::round_to_nearest"
"""Ties to even."""

ELEMENT_TYPES: dict[str, str] = {
    "f16": "cutlass::half_t",
    "bf16": "cutlass::bfloat16_t",
    "tf32": "float",
    "f32": "float",
    "e4m3": "cutlass::float_e4m3_t",
    "e5m2": "cutlass::float_e5m2_t",
    "s8": "int8_t",
    "s32": "int32_t",
}


@dataclass(frozen=True)
class CppEpilogue:
    """One epilogue in C++.

    Attributes:
        functor: The type of its tree; empty for CUTLASS's own linear combination.
        thread: The initializer of its arguments, over ``call``.
        declarations: Types that are declared before it.
    """

    functor: str
    thread: str
    declarations: str = ""


def epilogue(config: GemmConfig) -> CppEpilogue:
    """Return the epilogue of a configuration."""
    if config.scale == "none" and config.bias in ("none", "full"):
        compute = ELEMENT_TYPES[config.accumulator]
        beta = "call.beta" if config.bias == "full" else "0"
        return CppEpilogue("", f"{{{compute}(call.alpha), {compute}({beta})}}")
    if config.scale == "rowwise":
        last = config.bias == "none"
        return _with_bias(config, _rowwise(config, output=config.d if last else "f32"))
    return _with_bias(config, _scaled(config, output=config.d if config.bias == "none" else "f32"))


def _tree(operation: str, output: str, *children: CppEpilogue) -> CppEpilogue:
    """Return the tree that combines its children in float32 and gives ``output``."""
    compute = f"{FUSION}::Sm90Compute<{operation}, {ELEMENT_TYPES[output]}, float, {ROUND}>"
    types = ", ".join([compute, *(child.functor for child in children)])
    arguments = ", ".join([*(child.thread for child in children), "{}"])
    return CppEpilogue(f"{FUSION}::Sm90EVT<{types}>", f"{{{arguments}}}")


_SUMS = CppEpilogue(f"{FUSION}::Sm90AccFetch", "{}")


def _scaled(config: GemmConfig, output: str) -> CppEpilogue:
    """Return alpha * sums, times one scale of each input if there are scales."""
    if config.scale == "none":
        scalar = _scalar("call.alpha")
    else:
        # The device reads the pointers; where one is null it uses the number next to it.
        scalar = CppEpilogue(
            f"{FUSION}::Sm90ScalarBroadcast<float, {stride_type('_0', '_0', '_0')}, 3>",
            "{{call.alpha, 1.0f, 1.0f}, {nullptr, static_cast<float const*>(call.scale_a), "
            "static_cast<float const*>(call.scale_b)}, {}}",
        )
    return _tree("cutlass::multiplies", output, scalar, _SUMS)


def _rowwise(config: GemmConfig, output: str) -> CppEpilogue:
    """Return scale_a[m] * (scale_b[n] * sums)."""
    along_n = broadcast(config, "row", "float", "static_cast<float const*>(call.scale_b)", "0")
    along_m = broadcast(config, "column", "float", "static_cast<float const*>(call.scale_a)", "0")
    inner = _tree("cutlass::multiplies", "f32", along_n, _SUMS)
    return _tree("cutlass::multiplies", output, along_m, inner)


def _with_bias(config: GemmConfig, value: CppEpilogue) -> CppEpilogue:
    """Return value + beta * bias."""
    if config.bias == "none":
        return value
    element = ELEMENT_TYPES[config.c]
    pointer = f"static_cast<{element} const*>(call.c)"
    if config.bias in ("row", "column"):
        bias = broadcast(config, config.bias, element, pointer, "batch_c")
    else:
        bias = CppEpilogue(f"{FUSION}::Sm90SrcFetch<{element}>", "{}")
    operation = "cutlass::homogeneous_multiply_add"
    return _tree(operation, config.d, _scalar("call.beta"), bias, value)


def _scalar(value: str) -> CppEpilogue:
    return CppEpilogue(f"{FUSION}::Sm90ScalarBroadcast<float>", f"{{{{{value}}}}}")


def broadcast(config: GemmConfig, kind: str, element: str, pointer: str, batch: str) -> CppEpilogue:
    """Return the visitor of a row, one element for each n, or of a column, one for each m.

    Args:
        config: The kernel.
        kind: ``row`` or ``column``.
        element: C++ type of the elements.
        pointer: C++ expression of their address.
        batch: C++ expression of the stride along the batch, in elements.
    """
    name, parts = ("Row", ("_0", "_1")) if kind == "row" else ("Col", ("_1", "_0"))
    steps = ", ".join(f"cute::{part}{{}}" for part in parts)
    return CppEpilogue(
        f"{FUSION}::Sm90{name}Broadcast<0, {block_type(config)}, {element}, float, "
        f"{stride_type(*parts, 'int64_t')}, 1>",
        f"{{{pointer}, {element}(0), {{{steps}, {batch}}}}}",
    )


def stride_type(*parts: str) -> str:
    """Return CuTe's type of strides along (m, n, batch), of ``_0``, ``_1`` and ``int64_t``."""
    named = (part if part == "int64_t" else f"cute::{part}" for part in parts)
    return f"cute::Stride<{', '.join(named)}>"


def block_type(config: GemmConfig) -> str:
    """Return the part of a tile one block writes; two_sm blocks halve its rows."""
    m, n, k = config.tile
    m = m // 2 if config.schedule == "two_sm" else m
    return f"cute::Shape<cute::Int<{m}>, cute::Int<{n}>, cute::Int<{k}>>"
