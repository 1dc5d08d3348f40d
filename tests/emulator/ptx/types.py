"""The types of PTX: how many bytes they have, and the numpy type that holds them."""

from __future__ import annotations

BYTES: dict[str, int] = {
    "pred": 1,
    **dict.fromkeys(("b8", "u8", "s8"), 1),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2"), 2),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "tf32", "f16x2", "bf16x2", "u16x2", "s16x2"), 4),
    **dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2"), 8),
    "b128": 16,
}
"""Bytes of a value of each type; a predicate is a byte here, though a GPU has no address for it."""

_FLOATS = {"f32": "float32", "f64": "float64"}
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "complex128"}
ITEM: dict[str, int] = {
    "bool": 1,
    "float32": 4,
    "float64": 8,
    **{name: size for size, name in _UNSIGNED.items()},
    **{f"int{8 * size}": size for size in (1, 2, 4, 8)},
}
"""Bytes of each numpy type used here. A complex128 is 16 bytes that are only moved."""


def value_type(name: str) -> str:
    """Return the numpy type in which values of a PTX type are computed.

    Raises:
        KeyError: There is no such type.
    """
    if name == "pred":
        return "bool"
    if name in _FLOATS:
        return _FLOATS[name]
    if name[0] == "s" and name[1:].isdigit():
        return f"int{name[1:]}"
    return _UNSIGNED[BYTES[name]]


def register_type(name: str) -> str:
    """Return the numpy type of a register: as `value_type`, but integers have no sign."""
    return value_type(f"u{name[1:]}" if name[0] == "s" else name)


def unsigned(size: int) -> str:
    """Return the numpy type of ``size`` bytes without meaning."""
    return _UNSIGNED[size]


def is_type(word: str) -> bool:
    """Return whether a part of an opcode is a type."""
    return word in BYTES
