"""The types of a kernel's elements, by CUTLASS's names and by torch's."""

from __future__ import annotations

from typing import Literal, TypeAlias

Element: TypeAlias = Literal["f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8", "s32"]
"""Element types; ``tf32`` is stored as float32 and multiplied with ten bits of mantissa."""

ELEMENTS: dict[str, Element] = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "int32": "s32",
}
"""CUTLASS's names of the dtypes it stores."""

DTYPES: dict[Element, str] = {
    "tf32": "float32",
    **{element: dtype for dtype, element in ELEMENTS.items()},
}
"""The dtype in which each type of elements is stored."""
