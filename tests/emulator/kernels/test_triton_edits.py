"""Generated Triton kernels with a changed text: how mutants of them are made."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from tests.emulator.kernels import triton
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.snippet import module

TEXT = module(".reg .b32 %r<3>; mov.u32 %r1, 1234;", 0)


def test_a_text_is_changed_inside_of_the_block_and_parsed_once() -> None:
    kernel = triton._Compiled(LoadedModule(TEXT), {}, 0, 0)
    with triton.edited(lambda text: text.replace("1234", "4321")):
        changed = triton._with_edits(kernel)
        assert changed.module.text == TEXT.replace("1234", "4321")
        assert triton._with_edits(kernel).module is changed.module
    assert triton._with_edits(kernel) is kernel


def test_a_kernel_that_an_edit_leaves_as_it_is_is_the_same() -> None:
    kernel = triton._Compiled(LoadedModule(TEXT), {}, 0, 0)
    with triton.edited(lambda text: text.replace("no such line", "")):
        assert triton._with_edits(kernel) is kernel
