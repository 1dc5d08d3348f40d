"""What a kernel checks of a call before it starts, compiled from its own text by the host compiler."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.ops import gemm_abi
from inductor_plugin.ops.gemm_abi import GemmOperand, GemmStatus
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.evt import Evt, Node, Output, TreeOperand
from inductor_plugin.templates.cutlass.source import INTERFACE, _filled, _words

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SM90 = GemmConfig(
    "sm_90a", (128, 128, 64), (2, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
FP8 = replace(SM90, tile=(128, 128, 128), a="e4m3", b="e5m2", align_a=16, align_b=16)
SM80 = replace(
    SM90, arch="sm_80", schedule="multistage", cluster=(1, 1, 1), tile=(128, 128, 32), stages=3
)
# Reads a matrix, a row, a column and a number; writes the sums beside D.
TREE = Evt(
    (
        Node("sums"),
        *(Node("operand", (), place) for place in range(4)),
        Node("add", (0, 1)),
        Node("add", (5, 2)),
        Node("mul", (6, 3)),
        Node("mul", (7, 4)),
    ),
    (
        TreeOperand("source", "bf16"),
        TreeOperand("row", "bf16"),
        TreeOperand("column", "f32"),
        TreeOperand("scalar", "f32"),
    ),
    (Output(0, "f32"), Output(8, "bf16")),
)
CONFIGS = {
    "tree": replace(SM90, epilogue=TREE),
    "sm90": SM90,
    "fp8": FP8,
    "full": replace(SM90, bias="full"),
    "row90": replace(SM90, bias="row"),
    "row80": replace(SM80, bias="row"),
    "mixed": replace(SM80, align_a=8, align_b=2, align_d=4, layout_b="row"),
    "full80": replace(SM80, bias="full", align_c=2, align_d=2),
}
ENTRY = """
namespace {name} {{
{text}
}}
extern "C" int32_t {name}_check(int32_t, GemmCall* call, uint64_t*, void*) {{
  return {name}::check_call(*call);
}}
"""
M, N, K = 64, 128, 256
SLOTS = {
    0: (4096, N, 1, 0),
    1: (4096, 0, 1, 0),
    2: (4096, 1, 0, 0),
    3: (4096, 0, 0, 0),
    4: (4096, N, 1, M * N),
}
"""Operands of `TREE`: address, strides along m and n, and of the batch."""
Ask = Callable[..., GemmStatus]


@pytest.fixture(name="ask", scope="module")
def an_answer(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Return a function that asks one of `CONFIGS` about a call on dense operands."""
    parts = ["#include <cstdint>", "#include <initializer_list>", INTERFACE.read_text()]
    for name, config in CONFIGS.items():
        common, mark, own = _filled("call.h", _words(config)).partition("// Operands of the kernel")
        parts += [common] if len(parts) == 3 else []
        parts.append(ENTRY.format(name=name, text=mark + own))
    folder = tmp_path_factory.mktemp("call")
    (folder / "call.cpp").write_text("\n".join(parts))
    library = folder / "call.so"
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", str(folder / "call.cpp"), "-o", str(library)],
        check=True,
    )

    def asked(name: str, **values: Any) -> GemmStatus:
        config = CONFIGS[name]
        dense = {
            "m": M,
            "n": N,
            "k": K,
            "lead_a": K if config.layout_a == "row" else M,
            "lead_b": N if config.layout_b == "row" else K,
            "lead_c": N,
            "lead_d": N,
            "sm_count": 132,
        }
        places = values.pop("operands", SLOTS if name == "tree" else {})
        call = gemm_abi.new_call(**{**dense, **values})
        for place, fields in places.items():
            call.operands[place] = GemmOperand(*fields)
        return GemmStatus(gemm_abi.load(library, f"{name}_check").entry(0, call, None, None))

    return asked


@pytest.mark.parametrize("name", CONFIGS)
def test_dense_operands_are_taken(ask: Ask, name: str) -> None:
    assert ask(name) is GemmStatus.OK
    assert ask(name, batch=3, batch_a=M * K, batch_b=0, batch_d=M * N) is GemmStatus.OK
    assert ask(name, **dict.fromkeys("abcd", 4096)) is GemmStatus.OK


@pytest.mark.parametrize(
    ("name", "operand", "bytes_needed"),
    [
        ("sm90", "a", 16),
        ("sm90", "b", 16),
        ("sm90", "d", 16),
        ("fp8", "a", 16),
        ("fp8", "b", 16),
        ("full", "c", 16),
        ("row90", "c", 2),
        ("row80", "c", 16),
        ("mixed", "a", 16),
        ("mixed", "b", 4),
        ("mixed", "d", 8),
        ("full80", "c", 4),
    ],
)
def test_a_pointer_is_as_aligned_as_the_kernel_reads_it(
    ask: Ask, name: str, operand: str, bytes_needed: int
) -> None:
    assert ask(name, **{operand: 4096 + bytes_needed}) is GemmStatus.OK
    assert ask(name, **{operand: 4096 + bytes_needed // 2}) is GemmStatus.POINTER


@pytest.mark.parametrize("operand", ["a", "b", "d"])
def test_a_stride_is_as_aligned_and_as_long_as_a_row(ask: Ask, operand: str) -> None:
    length = N if operand == "d" else K
    assert ask("sm90", **{f"lead_{operand}": length + 8}) is GemmStatus.OK
    assert ask("sm90", **{f"lead_{operand}": length + 4}) is GemmStatus.STRIDE
    assert ask("sm90", **{f"lead_{operand}": length - 8}) is GemmStatus.STRIDE
    assert ask("sm90", **{f"lead_{operand}": 0}) is GemmStatus.STRIDE


def test_a_batch_of_rows_of_bias_is_as_aligned_as_one_row(ask: Ask) -> None:
    batch = {"batch": 3, "batch_a": M * K, "batch_b": K * N, "batch_d": M * N}
    assert ask("row80", **batch, batch_c=N) is GemmStatus.OK
    assert ask("row80", **batch, batch_c=N + 4) is GemmStatus.STRIDE
    assert ask("row90", **batch, batch_c=N + 1) is GemmStatus.OK


def test_a_batch_is_counted_in_sixteen_bits(ask: Ask) -> None:
    strides = {"batch_a": M * K, "batch_b": K * N, "batch_d": M * N}
    assert ask("sm90", **strides, batch=65535) is GemmStatus.OK
    assert ask("sm90", **strides, batch=65536) is GemmStatus.EXTENT


def tree(place: int, *fields: int) -> dict[int, tuple[int, ...]]:
    return {**SLOTS, place: fields}


@pytest.mark.parametrize(
    ("slots", "status"),
    [
        (tree(0, 4096, N + 8, 1, 0), GemmStatus.OK),
        (tree(0, 4096 + 8, N, 1, 0), GemmStatus.POINTER),
        (tree(0, 4096, N + 4, 1, 0), GemmStatus.STRIDE),
        (tree(0, 4096, 0, 1, 0), GemmStatus.STRIDE),
        (tree(0, 4096, 1, M, 0), GemmStatus.STRIDE),
        (tree(0, 4096, N, 2, 0), GemmStatus.STRIDE),
        (tree(1, 4096 + 2, 0, 1, 0), GemmStatus.OK),
        (tree(1, 4096 + 1, 0, 1, 0), GemmStatus.POINTER),
        (tree(1, 4096, N, 1, 0), GemmStatus.STRIDE),
        (tree(1, 4096, 0, 2, 0), GemmStatus.STRIDE),
        (tree(1, 4096, 0, 0, 0), GemmStatus.STRIDE),
        (tree(2, 4096 + 2, 1, 0, 0), GemmStatus.POINTER),
        (tree(2, 4096, 2, 0, 0), GemmStatus.STRIDE),
        (tree(2, 4096, 1, 1, 0), GemmStatus.STRIDE),
        (tree(3, 4096, 0, 1, 0), GemmStatus.STRIDE),
        (tree(4, 4096, N + 2, 1, 0), GemmStatus.STRIDE),
        (tree(4, 4096 + 4, N, 1, 0), GemmStatus.POINTER),
    ],
)
def test_an_epilogues_operand_lies_under_d_as_the_kernel_reads_it(
    ask: Ask, slots: dict[int, tuple[int, ...]], status: GemmStatus
) -> None:
    assert ask("tree", operands=slots) is status


def test_an_epilogue_of_a_batch_writes_each_matrix_for_itself(ask: Ask) -> None:
    batch = {"batch": 3, "batch_a": M * K, "batch_b": K * N, "batch_d": M * N}
    assert ask("tree", **batch) is GemmStatus.OK
    assert ask("tree", **batch, operands=tree(4, 4096, N, 1, 0)) is GemmStatus.STRIDE
    assert ask("tree", **batch, operands=tree(0, 4096, N, 1, M * N)) is GemmStatus.OK
    assert ask("tree", **batch, operands=tree(0, 4096, N, 1, M * N + 4)) is GemmStatus.STRIDE
    assert ask("tree", **batch, operands=tree(1, 4096, 0, 1, -N)) is GemmStatus.STRIDE


def test_a_single_row_of_an_operand_may_have_any_stride(ask: Ask) -> None:
    single = {0: (4096, 0, 1, 0), 1: (4096, 3, 1, 0), 2: (4096, 5, 0, 0), 4: (4096, 0, 1, 0)}
    assert ask("tree", m=1, operands={**SLOTS, **single}) is GemmStatus.OK


def test_alpha_is_no_part_of_an_epilogue_of_its_own(ask: Ask) -> None:
    assert ask("tree", alpha=0.5) is GemmStatus.SCALAR
