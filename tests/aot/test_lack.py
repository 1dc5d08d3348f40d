"""What a pack lacks is said, and nothing that it need not have."""

from __future__ import annotations

import pytest

from inductor_plugin.aot.lack import nothing_compiled, warnings_of
from inductor_plugin.aot.lower import Lowered
from inductor_plugin.aot.precompile import PackedKernel


def lowered(*failed: tuple[str, str], **rejected: str) -> Lowered:
    return Lowered("mm(8x8, 8x8)", (), kernels=(), failed=failed, rejected=rejected)


def cutlass(
    name: str, spills: int | None = 0, instructions: tuple[str, ...] = ("HGMMA",)
) -> PackedKernel:
    return PackedKernel("digest", name, "cutlass", 168, spills, instructions)


TRITON = PackedKernel("digest", "triton_mm", "triton", 255, 16)
SITES = PackedKernel("digest", "sites", "sites", None, None)


def test_of_cutlass_kernels_alone_spills_and_missing_instructions_are_said() -> None:
    kernels = [
        cutlass("good"),
        cutlass("spilling", spills=8),
        cutlass("unknown", spills=None),
        cutlass("plain", instructions=()),
        TRITON,
        SITES,
    ]
    assert warnings_of([lowered()], kernels) == [
        "spilling spills registers",
        "plain shows no tensor core instruction",
    ]


def test_without_a_cutlass_kernel_each_reason_is_said_once() -> None:
    problems = [lowered(cutlass="no nvcc"), lowered(cutlass="no nvcc"), lowered()]
    assert warnings_of(problems, [TRITON]) == ["no CUTLASS kernels: no nvcc; not asked for"]


def test_a_candidate_without_a_kernel_is_named_once() -> None:
    problems = [lowered(("b", "error")), lowered(("a", "hung"), ("b", "error"))]
    assert warnings_of(problems, [cutlass("good")]) == [
        "a is not in the pack: hung",
        "b is not in the pack: error",
    ]


@pytest.mark.parametrize(
    ("problems", "why"),
    [
        ([], "the model has no product that is tuned for this GPU; nothing was compiled"),
        ([lowered()], "nothing was compiled: no template is offered"),
        ([lowered(cutlass="no nvcc")], "nothing was compiled: cutlass: no nvcc"),
        ([lowered(("b", "error"), cutlass="no nvcc")], "nothing was compiled: error"),
    ],
)
def test_a_pack_of_nothing_says_why(problems: list[Lowered], why: str) -> None:
    assert nothing_compiled(problems) == why
