"""Digests of kernels: what leaves them as they are, and what does not."""

from __future__ import annotations

import pytest

from tests.emulator.ptx.digest import digest
from tests.emulator.ptx.syntax import PtxError

TEXT = """.version 8.7
.target sm_90a
.address_size 64
.file 1 "/home/a/entry.cuh"
.global .align 4 .u32 known[3] = {7, 8, 9};
.global .align 1 .b8 _ZN67_INTERNAL_1b25450c_36_b41fff62_cpp_333a0ad44cute1_E[1];
.visible .entry first(.param .u64 first_param_0) .reqntid 32
{
  .reg .b64 %g; .reg .b32 %x;
  .loc 1 22 3
$L__tmp0:
  mov.u64 %g, known; ld.global.u32 %x, [%g+4]; // a comment
$L__BB0_2:
  { .reg .b32 %y; mov.b32 %y, %x; }
  mov.u64 %g, _ZN67_INTERNAL_1b25450c_36_b41fff62_cpp_333a0ad44cute1_E;
  bra $L__BB0_2;
}
.visible .entry second()
{
  ret;
}
.section .debug_str { .b8 97, 98 }
"""
FIRST = digest(TEXT, "first")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".loc 1 22 3", ".loc 1 23 3"),
        ("/home/a/", "/tmp/b/"),
        ("  ret;", "  .reg .b32 %z; mov.u32 %z, 1; ret;"),
        ("// a comment", "// another"),
        ("$L__BB0_2", "$L__BB7_2"),
        ("$L__tmp0", "$L__tmp123"),
        ("1b25450c_36_b41fff62_cpp_333a0ad4", "0123abcd_36_00000000_cpp_fedcba98"),
        ("first", "unit_1234_first"),
        (".b8 97, 98", ".b8 99"),
        (".reqntid 32\n{", ".reqntid 32\n\n{"),
    ],
)
def test_what_does_not_run_is_not_in_a_digest(old: str, new: str) -> None:
    text = TEXT.replace(old, new)
    assert text != TEXT
    assert digest(text, "unit_1234_first" if old == "first" else "first") == FIRST


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[%g+4]", "[%g+8]"),
        ("{7, 8, 9}", "{7, 8, 0}"),
        ("sm_90a", "sm_100a"),
        (".reqntid 32", ".reqntid 64"),
        ("bra $L__BB0_2;", "bra $L__BB0_3;"),
        ("mov.b32 %y, %x; }", "}"),
    ],
)
def test_what_runs_is_in_a_digest(old: str, new: str) -> None:
    text = TEXT.replace(old, new)
    assert text != TEXT
    assert digest(text, "first") != FIRST


def test_a_kernel_has_one_digest_alone_and_with_others_in_a_unit() -> None:
    alone = TEXT.replace("known", "shared")
    unit = "_ZN{}unit_cutlass_fmha_sm90_{}6sharedE"
    digests = {
        digest(TEXT.replace("known", unit.format(len(key) + 23, key)), "first")
        for key in ("64x64_0123456789abcdef", "128_fedcba9876543210")
    }
    assert digests == {digest(alone, "first")}
    other = alone.replace("shared", "_ZN39unit_cutlass_fmha_sm90_0123456789abcdef7shared2E")
    assert digest(other, "first") == digest(alone.replace("shared", "shared2"), "first")


def test_a_part_of_an_opcode_is_no_name_of_a_variable() -> None:
    declared = ".extern .shared .align 16 .b8 shared[];\n.visible .entry first"
    load = TEXT.replace("bra ", "ld.shared.u32 %x, [%x]; bra ")
    without = digest(load, "first")
    assert digest(load.replace(".visible .entry first", declared), "first") == without
    used = load.replace("[%x]", "[shared]")
    with_it = digest(used.replace(".visible .entry first", declared), "first")
    assert with_it != digest(used, "first")


def test_what_a_table_points_to_is_in_a_digest() -> None:
    table = (
        ".global .align 4 .u32 far[2] = {1, 2};\n.global .align 8 .u64 known[1] = {generic(far)};"
    )
    text = TEXT.replace(".global .align 4 .u32 known[3] = {7, 8, 9};", table)
    assert text != TEXT
    assert digest(text, "first") != digest(text.replace("{1, 2}", "{1, 3}"), "first")


def test_a_kernel_that_is_not_there_has_no_digest() -> None:
    assert digest(TEXT, "second") != FIRST
    with pytest.raises(PtxError, match="no kernel third"):
        digest(TEXT, "third")
