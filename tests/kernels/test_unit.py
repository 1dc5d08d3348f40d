"""What kernels of one translation unit share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.kernels.unit import CppSource, head, single_unit, unique_symbol

LOOP = "template <int F> inline int loop(int x) { return F * x; }\n"


def source(key: str, start: str, *, shares: bool = True) -> CppSource:
    text = (
        f'#include <a.h>\n{start}extern "C"\nvoid kernel(int* y) {{ *y = loop<{ord(key)}>(1); }}\n'
    )
    return CppSource(key, text, "kernel", shares=shares)


A, B, OTHER = source("a", LOOP), source("b", LOOP), source("c", LOOP.replace("F * x", "F + x"))


def test_what_several_kernels_begin_with_is_there_once() -> None:
    unit = single_unit([A, OTHER, B])
    assert unit.count("return F * x;") == unit.count("return F + x;") == 1
    assert unit.count("#include <a.h>") == 1
    for each in (A, B, OTHER):
        assert unit.count(f"void {unique_symbol(each)}(") == 1


def test_a_kernel_is_inside_the_namespace_of_what_it_begins_with() -> None:
    unit = single_unit([A, OTHER, B])
    start = unit.index("namespace shared_1 {")
    assert unit.index(unique_symbol(A)) < unit.index(unique_symbol(B)) < start
    assert unit.index(unique_symbol(OTHER)) > start


@pytest.mark.parametrize(
    "alone",
    [
        replace(A, shares=False),
        source("a", f"{LOOP}void kernel(int* y);\n"),
        replace(A, source="int kernel(int x) { return x; }"),
        source("a", ""),
    ],
    ids=["not allowed", "it names the function", "no C function", "nothing"],
)
def test_nothing_is_shared(alone: CppSource) -> None:
    assert head(alone) == ""
    assert "namespace shared_" not in single_unit([alone, replace(alone, key="b")])
