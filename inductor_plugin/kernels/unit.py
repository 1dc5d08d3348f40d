"""Joins several C++ or CUDA kernels in one translation unit, under unique names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


def unique_symbol(source: CppSource) -> str:
    """Return a unique name of a kernel's C function, so that one library can hold many kernels."""
    return re.sub(r"\W", "_", f"{source.symbol}_{source.key[:16]}")


def one_unit(sources: Sequence[CppSource]) -> str:
    """Return one translation unit with all kernels: includes first, each body in a namespace.

    A C function in two namespaces is still one function to the linker, hence the new names.
    """
    includes: dict[str, None] = {}
    bodies: list[str] = []
    for source in sources:
        includes.update(dict.fromkeys(line.strip() for line in _INCLUDE.findall(source.source)))
        name = namespace(source)
        body = with_unique_name(source, _INCLUDE.sub("", source.source))
        bodies.append(f"namespace {name} {{\n{body}\n}}  // namespace {name}\n")
    return "\n".join([*includes, *bodies])


def namespace(source: CppSource) -> str:
    """Return the C++ namespace of a kernel that shares a unit with others; mangled names contain it."""
    return f"unit_{unique_symbol(source)}"


def with_unique_name(source: CppSource, text: str) -> str:
    """Return a text in which the kernel's C function has its unique name."""
    return re.sub(rf"\b{re.escape(source.symbol)}\b", unique_symbol(source), text)


@dataclass(frozen=True)
class CppSource:
    """One C++ kernel inside a compile batch.

    Attributes:
        key: Digest under which the cache stores it.
        source: Its translation unit as Inductor generated it.
        symbol: Name of the C function it defines.
    """

    key: str
    source: str
    symbol: str
