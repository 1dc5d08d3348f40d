"""PTX text as records: what nvcc, Triton and inline assembly write."""

from __future__ import annotations

import math
import struct

import pytest

from tests.emulator.ptx.blocks import is_barrier
from tests.emulator.ptx.liveness import liveness, read, written
from tests.emulator.ptx.operands import number, split, variable
from tests.emulator.ptx.parser import parse
from tests.emulator.ptx.syntax import (
    SINK,
    Address,
    Function,
    Immediate,
    Instruction,
    Module,
    Negated,
    PtxError,
    Register,
    Symbol,
    Vector,
)
from tests.emulator.ptx.types import register_type, value_type

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def module(body: str, before: str = "", after: str = "") -> Module:
    return parse(f"{HEAD}{before}\n.visible .entry k(.param .u64 p)\n{{\n{body}\n}}\n{after}")


def function(body: str) -> Function:
    return module(body).functions["k"]


def instructions(body: str) -> list[Instruction]:
    return [instruction for block in function(body).blocks for instruction in block.code]


REGISTERS = ".reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .f32 %f<3>;\n"


def test_operands_of_all_kinds() -> None:
    (instruction,) = instructions(
        REGISTERS
        + "@!%p1 op.x::y.b32 {%r1, _}|%p2, [%rd1+-8], [buf+4], [%rd2, {%r3, 7}], !%p0, %tid.x, -3;"
    )
    assert instruction.parts == ("op", "x::y", "b32")
    assert instruction.guard is not None
    assert (instruction.guard.name, instruction.negated) == ("%p1", True)
    first, back, offset, tensor, negated, special, immediate = instruction.operands
    assert isinstance(first, Vector)
    assert first.items[1] == SINK
    assert isinstance(instruction.pair, Register)
    assert instruction.pair.type == "pred"
    assert isinstance(back, Address)
    assert back.offset == -8
    assert offset == Address(Symbol("buf"), 4)
    assert isinstance(tensor, Address)
    assert isinstance(tensor.coordinates[0], Vector)
    assert isinstance(negated, Negated)
    assert special == Symbol("%tid.x")
    assert immediate == Immediate(-3, "int")


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("0", 0, "int"),
        ("-17", -17, "int"),
        ("0x1F", 31, "int"),
        ("-0x10", -16, "int"),
        ("017", 15, "int"),
        ("0b101", 5, "int"),
        ("4294967295U", 4294967295, "int"),
        ("0f3F800000", 1.0, "f32"),
        ("0dC000000000000000", -2.0, "f64"),
        ("1.5", 1.5, "f64"),
        ("-2.5e-3", -2.5e-3, "f64"),
    ],
)
def test_numbers(text: str, value: float, kind: str) -> None:
    parsed = number(text)
    assert parsed is not None
    assert (parsed.value, parsed.type) == (value, kind)


def test_a_float_keeps_its_bits_and_a_word_is_no_number() -> None:
    nan = number("0f7FC00001")
    assert nan is not None
    assert math.isnan(nan.value)
    assert number("%r1") is None
    assert number("0f3F8") is None


def test_parts_between_commas_outside_of_brackets() -> None:
    assert split("%a, {1, 2}, [x, {3, 4}], (5, 6)") == ["%a", "{1, 2}", "[x, {3, 4}]", "(5, 6)"]
    assert split("") == []


def test_declarations() -> None:
    shared = variable(".extern .shared .align 16 .b8 smem[]")
    assert (shared.space, shared.size, shared.align) == ("shared", 0, 16)
    table = variable(".visible .const .align 8 .u16 table[2][3] = {{1, 2, 3}, {0x4, 5, 6}}")
    assert (table.size, table.align, table.initial) == (12, 8, struct.pack("<6H", 1, 2, 3, 4, 5, 6))
    pointer = variable(".param .u64 .ptr .global .align 1 k_param_0")
    assert (pointer.name, pointer.size, pointer.align) == ("k_param_0", 8, 8)
    aggregate = variable(".param .align 64 .b8 k_param_1[128]")
    assert (aggregate.size, aggregate.align) == (128, 64)
    with pytest.raises(PtxError, match="declares no variable"):
        variable(".global nonsense")


def test_scopes_have_registers_and_labels_of_their_own() -> None:
    """Inline assembly: the same names twice, and a branch to a label that comes later."""
    inner = "{ .reg .pred P1; LAB: mbarrier.try_wait.b64 P1, [%r1], %r2; @P1 bra DONE; bra LAB; DONE: }\n"
    kernel = function(REGISTERS + inner + inner + "ret;")
    predicates = [name for name in kernel.registers if name.endswith("P1")]
    assert predicates == ["1$P1", "2$P1"]
    branches = [block for block in kernel.blocks if block.end == "branch"]
    jumps = [block for block in kernel.blocks if block.end == "jump"]
    assert [block.targets[0] for block in branches] == [block.number + 1 for block in jumps]
    assert [jump.targets[0] for jump in jumps] == [block.number for block in branches]


def test_an_instruction_has_its_line_and_source() -> None:
    text = """
    .reg .b32 %r<3>;  // a comment
    /* two
       lines */ mov.u32 %r1, 1;
    .loc 2 17 3
    mov.u32 %r2,
       2;
    .loc 1 9 1, function_name $L__info_string0, inlined_at 2 17 3
    ret;"""
    result = module(text, after='.file 1 "/a/b/first.h"\n.file 2 "second.cu"\n').functions["k"]
    places = [instruction.place for block in result.blocks for instruction in block.code]
    assert [(place.line, place.source) for place in places] == [
        (10, ""),
        (12, "second.cu:17"),
        (15, "first.h:9"),
    ]
    assert str(places[1]) == "PTX line 12 (second.cu:17)"


def test_limits_sections_and_other_functions() -> None:
    text = f"""{HEAD}
    .extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
    .global .align 4 .u32 counter;
    .visible .entry first(.param .u64 a, .param .align 64 .b8 m[128])
    .reqntid 384, 1, 1
    .maxnreg 168
    .explicitcluster
    .reqnctapercluster 2, 1, 1
    {{ .shared .align 8 .b64 bar; ret; }}
    .func (.param .b32 r) helper(.param .b32 x) {{ ret; }}
    .section .debug_info {{ .b8 1; inner {{ .b8 2 }} }}
    .entry second() {{ exit; }}
    """
    parsed = parse(text)
    assert parsed.target == "sm_90a"
    assert list(parsed.functions) == ["first", "helper", "second"]
    first = parsed.functions["first"]
    assert first.limits["reqntid"] == (384, 1, 1)
    assert first.limits["reqnctapercluster"] == (2, 1, 1)
    assert [parameter.size for parameter in first.parameters] == [8, 128]
    assert list(first.shared) == ["bar"]
    assert not parsed.functions["helper"].entry
    assert list(parsed.variables) == ["counter"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("bra NOWHERE;", "leads to a label that is not there"),
        (".reg .b77 %x;", "registers of type 'b77'"),
        (".frobnicate 7;", "the directive"),
        ("mov.u32 %r1, [a+b+c];", "is no address"),
        ("mov.u32 %r1, #;", "is no operand"),
    ],
)
def test_an_error_has_its_line(body: str, reason: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line 8: ") as caught:
        module(f"\n{body}")
    assert reason in str(caught.value)


def test_an_unfinished_text_is_an_error() -> None:
    with pytest.raises(PtxError, match="the text ends within"):
        parse(f"{HEAD}.entry k() {{ mov.u32")


def test_blocks_end_at_branches_barriers_and_labels() -> None:
    kernel = function(
        REGISTERS
        + """
        mov.u32 %r1, 1;
        bar.sync 0;
        mov.u32 %r2, 2;
        bar.warp.sync -1;
        @%p1 bra L;
        mov.u32 %r3, 3;
      L:
        @%p1 exit;
        T: .branchtargets L, M;
        brx.idx %r1, T;
      M: ret;
        """
    )
    kinds = [(block.end, len(block.code)) for block in kernel.blocks if block.code]
    assert kinds == [
        ("fall", 1),
        ("barrier", 1),
        ("branch", 3),
        ("fall", 1),
        ("exit_if", 1),
        ("table", 1),
        ("exit", 1),
    ]
    table = next(block for block in kernel.blocks if block.end == "table")
    assert len(table.targets) == 2
    assert [
        is_barrier(instruction) for instruction in instructions("bar.sync 0; bar.warp.sync -1;")
    ] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "writes", "reads"),
    [
        ("add.u32 %r1, %r2, %r3;", ["%r1"], ["%r2", "%r3"]),
        ("@%p1 add.u32 %r1, %r2, 1;", ["%r1"], ["%r2", "%p1", "%r1"]),
        ("st.global.v2.b32 [%rd1], {%r1, %r2};", [], ["%rd1", "%r1", "%r2"]),
        ("ld.global.v2.b32 {%r1, %r2}, [%rd1];", ["%r1", "%r2"], ["%rd1"]),
        ("setp.eq.and.u32 %p0|%p1, %r1, %r2, !%p2;", ["%p0", "%p1"], ["%r1", "%r2", "%p2"]),
        ("mbarrier.init.shared::cta.b64 [%r1], %r2;", [], ["%r1", "%r2"]),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", [], ["%r1"]),
        ("red.global.add.u32 [%rd1], %r1;", [], ["%rd1", "%r1"]),
        ("atom.global.add.u32 %r1, [%rd1], %r2;", ["%r1"], ["%rd1", "%r2"]),
        (
            "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f1, %f2}, %rd1, %rd2, %p1;",
            ["%f1", "%f2"],
            ["%f1", "%f2", "%rd1", "%rd2", "%p1"],
        ),
        ("bar.red.popc.u32 %r1, 0, %p1;", ["%r1"], ["%p1"]),
        ("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {%r2};", [], ["%r1", "%r2"]),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];", ["%r1"], ["%r2"]),
    ],
)
def test_what_an_instruction_writes_and_reads(
    text: str, writes: list[str], reads: list[str]
) -> None:
    (instruction,) = instructions(REGISTERS + text)
    assert [register.name for register in written(instruction)] == writes
    assert [register.name for register in read(instruction)] == reads


def test_only_registers_that_outlive_a_block_are_kept() -> None:
    kernel = function(
        REGISTERS
        + """
        mov.u32 %r1, 0; mov.u32 %r5, 5; add.u32 %r2, %r5, 1;
      L: add.u32 %r1, %r1, %r2; setp.lt.u32 %p1, %r1, 9; @%p1 bra L;
        @%p2 mov.u32 %r3, 1;
        st.global.b32 [%rd1], %r3;
        """
    )
    kept = liveness(kernel).kept
    names = {name for name, register in kernel.registers.items() if kept >> register.number & 1}
    # %p1 dies in its block; %r3 is alive from the beginning, because a guarded write may leave it as it was.
    assert names == {"%r1", "%r2", "%p2", "%r3", "%rd1"}


def test_types_have_numpy_types() -> None:
    assert [value_type(name) for name in ("s16", "u64", "f32", "bf16x2", "pred", "b128")] == [
        "int16",
        "uint64",
        "float32",
        "uint32",
        "bool",
        "complex128",
    ]
    assert register_type("s32") == "uint32"
    assert register_type("f64") == "float64"
