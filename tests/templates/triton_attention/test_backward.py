"""The Triton attention backward: what it takes, which kernels it offers, and what they take of a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.problem import Problem, SizeClass
from inductor_plugin.problem.attention import Mask, attention_of
from inductor_plugin.problem.target import names, target
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton.order import LIMIT
from inductor_plugin.templates.triton.product import text_of
from inductor_plugin.templates.triton_attention.backward import TritonAttentionBackward
from inductor_plugin.templates.triton_attention.backward_blocks import (
    BackwardBlocks,
    blocks_of,
    burdens_of,
    shared_bytes,
    why_not_descriptors,
)
from tests.support.attention.backward_cases import Case, meta_operands_of, problem_of
from tests.support.attention.lowering import graph, source_of
from tests.support.repository import REPOSITORY
from tests.support.triton import interpreter

TEMPLATE = TritonAttentionBackward()
DIMS = (32, 40, 64, 72, 80, 96, 128, 160, 192, 256)
POWERS = (32, 64, 128, 256)
HALF = Case(4096, 4096, Mask(right=0), heads=8, kv_heads=2, batch=2, dtype=torch.bfloat16)
WIDE = Case(4096, 4096, heads=64, kv_heads=64, head_dim=128, batch=80, dtype=torch.bfloat16)
"""Of more elements than 32 bits count."""
WINDOW, SLIDE, BEFORE = Mask(100, 50), Mask(4095, 0), Mask(100, -1)
"""Windows that end ahead of the diagonal, at it, and never."""
BIAS: dict[str, Any] = {"bias": (2, 8, 4096, 4096)}
LENGTHS: dict[str, Any] = {"queries": (2048,) * 4, "keys": (2048,) * 4, "batch": 1}
CUDA = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")


def problem(case: Case = HALF, gpu: str = "H100", /, **operands: Any) -> Problem:
    """Return the problem of a case, some of its operands replaced."""
    return problem_of(case, meta_operands_of(case) | operands, target(gpu))


def first(described: Problem) -> Candidate:
    return TEMPLATE.candidates(described)[0]


def facts(described: Problem) -> dict[str, Any]:
    """Return what the first kernel of a problem is compiled with."""
    kernel = first(described).kernel
    assert isinstance(kernel, TritonSource)
    return dict(kernel.constants)


def meta(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(HALF, head_dim=24), "head dims must be 32 at least, one is 24"),
        (replace(HALF, value_dim=16), "head dims must be 32 at least, one is 16"),
        (replace(HALF, head_dim=36), "must be a multiple of 8"),
        (replace(HALF, head_dim=264), "must be a multiple of 8 from 8 to 256, it is 264"),
        (replace(HALF, kv_heads=3), "8 heads of q cannot share 3 of k and v"),
        (replace(HALF, keys=0), "a dimension is empty"),
        (replace(HALF, dtype=torch.float64), "float64"),
        (replace(HALF, dtype=torch.float32, head_dim=96), "float32 with head dims of 96 and 96"),
        (replace(HALF, queries=(3, 4), keys=(3, 4), bias=(1, 1, 4, 4)), "a bias with varlen"),
    ],
)
def test_what_it_cannot_run_has_a_reason(case: Case, reason: str) -> None:
    refusal = TEMPLATE.reject(problem(case))
    assert refusal is not None
    assert reason in refusal


@pytest.mark.parametrize("name", ["do", "dq", "dv"])
def test_each_operand_has_a_dense_last_dimension(name: str) -> None:
    rows = meta(2, 8 if name != "dv" else 2, 64, 4096).transpose(-1, -2)
    reason = TEMPLATE.reject(problem(HALF, "H100", **{name: rows}))
    assert reason == f"rows of {name} need a unit stride, its strides are {tuple(rows.stride())}"


def test_out_is_not_read_so_it_may_lie_as_it_likes() -> None:
    assert TEMPLATE.reject(problem(out=meta(2, 8, 64, 4096).transpose(-1, -2))) is None


def test_each_operand_has_the_type_of_q() -> None:
    do = meta(2, 8, 4096, 64, dtype=torch.float16)
    reason = TEMPLATE.reject(problem(do=do))
    assert reason == "do must have the type of q, bfloat16, it has float16"


def test_a_gpu_may_be_too_old() -> None:
    old = replace(target("A100"), name="V100", capability=(7, 0))
    reason = TEMPLATE.reject(replace(problem(), target=old))
    assert reason is not None
    assert "compute capability 8.0" in reason


@pytest.mark.parametrize("gpu", [*names(), ""])
def test_kernels_are_few_and_fit(gpu: str) -> None:
    for dim, dtype in itertools.product(DIMS, (torch.bfloat16, torch.float32)):
        described = problem(replace(HALF, head_dim=dim, dtype=dtype), gpu or "H100")
        described = described if gpu else replace(described, target=None)
        if dtype == torch.float32 and dim > 64:
            assert TEMPLATE.reject(described), (dim, dtype)
            continue
        assert TEMPLATE.reject(described) is None, (dim, dtype)
        candidates = TEMPLATE.candidates(described)
        names = {candidate.name for candidate in candidates}
        assert 1 <= len(names) == len(candidates) <= LIMIT, (dim, dtype)
        room = described.target.shared_per_block if described.target else 99 << 10
        assert all(shared_bytes(blocks, described) <= room for blocks in blocks_of(described)), (
            dim,
            dtype,
        )


def test_narrow_dims_of_one_and_wide_dims_of_the_other_take_the_blocks_of_the_wide() -> None:
    mixed = blocks_of(problem(replace(HALF, head_dim=192, value_dim=128)))
    assert mixed == blocks_of(problem(replace(HALF, head_dim=256)))


@pytest.mark.parametrize(
    ("case", "burdens"),
    [
        (HALF, []),
        (replace(HALF, head_dim=56), ["ragged"]),
        (replace(HALF, value_dim=72), ["ragged"]),
        (replace(HALF, head_dim=56, **LENGTHS), ["ragged", "ragged varlen", "varlen"]),
        (replace(HALF, mask=WINDOW), ["window", "window ahead"]),
        (replace(HALF, mask=WINDOW, head_dim=32), ["window ahead"]),
        (replace(HALF, mask=SLIDE), ["window"]),
        (replace(HALF, mask=BEFORE), ["window"]),
        (replace(HALF, mask=Mask(-1, 50)), []),
        (replace(HALF, **BIAS), ["bias"]),
        (replace(HALF, softcap=30.0), ["softcap"]),
        (replace(HALF, softcap=30.0, kv_heads=8), ["softcap", "bias or softcap, own keys"]),
        (replace(HALF, kv_heads=8, **BIAS), ["bias", "bias or softcap, own keys"]),
        (replace(HALF, kv_heads=8), []),
    ],
)
def test_what_takes_registers_beside_the_products(case: Case, burdens: list[str]) -> None:
    assert burdens_of(attention_of(problem(case))) == burdens


@pytest.mark.parametrize(
    ("gpu", "case", "place", "name"),
    [
        ("H200", {"head_dim": 192, "mask": WINDOW}, 0, "32x32_64x32_s2_w8"),
        ("H200", {"head_dim": 256, "mask": SLIDE}, 0, "64x32_64x32_s2_w8"),
        ("H200", {"head_dim": 256, "mask": BEFORE}, 0, "64x32_64x32_s2_w8"),
        ("H200", {"head_dim": 256, "softcap": 30.0}, 0, "64x32_64x32_s2_w8"),
        ("H200", {"head_dim": 256, "softcap": 30.0, "kv_heads": 8}, 0, "32x32_64x32_s2_w8"),
        ("H200", {"head_dim": 128, **LENGTHS}, 0, "64x64_128x64_s2_w8"),
        ("H200", {"head_dim": 128, **LENGTHS}, 1, "64x64_64x64_s2_w8"),
        ("H200", {"head_dim": 128, "mask": WINDOW}, 2, "128x32_128x64_s2_w8"),
        ("B200", {"head_dim": 256, "mask": WINDOW}, 0, "64x32_64x32_s2_w8_tma"),
        ("B200", {"head_dim": 256, **LENGTHS}, 0, "32x32_64x32_s2_w8"),
        ("A100", {"head_dim": 64}, 0, "128x64_128x64_s2_w8"),
        ("A100", {"head_dim": 64, "mask": WINDOW}, 0, "64x32_64x64_s3_w4"),
        ("A100", {"head_dim": 56, **BIAS}, 0, "128x32_128x64_s2_w8"),
        ("A100", {"head_dim": 64, **BIAS}, 0, "128x32_128x64_s2_w8"),
        ("A100", {"head_dim": 128, **BIAS}, 0, "64x32_64x64_s2_w8"),
        ("A100", {"head_dim": 256, "softcap": 30.0}, 0, "32x16_64x32_s2_w8"),
    ],
)
def test_blocks_that_would_spill_are_not_offered(
    gpu: str, case: dict[str, Any], place: int, name: str
) -> None:
    """Names of what was compiled for such an attention and does not spill."""
    assert blocks_of(problem(replace(HALF, **case), gpu))[place].name == name


@pytest.mark.parametrize("gpu", names())
def test_some_blocks_are_left_whatever_is_asked_for(gpu: str) -> None:
    masks = (Mask(), WINDOW, SLIDE, BEFORE)
    extras: tuple[dict[str, Any], ...] = ({}, BIAS, LENGTHS)
    for dim, mask, more, cap, heads in product(DIMS, masks, extras, (0.0, 30.0), (2, 8)):
        case = replace(HALF, head_dim=dim, mask=mask, softcap=cap, kv_heads=heads, **more)
        assert blocks_of(problem(case, gpu)), case


def test_a_kernel_by_rows() -> None:
    kernel = first(problem()).kernel
    assert isinstance(kernel, TritonSource)
    assert kernel.grid == "rows_backward"
    assert kernel.mutated == (7, 8)
    assert kernel.extents == ((1, 0), (1, 1), (1, 2), (2, 1), (2, 2))
    assert kernel.scratch_bytes == 0


def test_a_kernel_by_tokens() -> None:
    kernel = first(problem(replace(HALF, queries=(30, 40), keys=(50, 60)))).kernel
    assert isinstance(kernel, TritonSource)
    assert kernel.grid == "tokens_backward"
    assert kernel.mutated == (9, 10)
    assert kernel.extents == ((7, 0), (1, 1), (1, 0), (2, 1), (2, 0))


def descriptors(described: Problem) -> set[tuple[int, ...]]:
    """Return which operands the kernels of a problem read through descriptors."""
    kernels = [candidate.kernel for candidate in TEMPLATE.candidates(described)]
    for kernel in kernels:
        assert isinstance(kernel, TritonSource)
        assert kernel.capability == ((9, 0) if kernel.descriptors else (8, 0))
    return {
        compiled_kernel.descriptors
        for compiled_kernel in kernels
        if isinstance(compiled_kernel, TritonSource)
    }


@pytest.mark.parametrize(("gpu", "there"), [("A100", False), ("H200", True), ("B200", True)])
def test_descriptors_need_a_gpu_that_has_them(gpu: str, there: bool) -> None:
    assert ((0, 1, 2, 3) in descriptors(problem(HALF, gpu))) is there


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (problem(replace(HALF, gap=4)), "do's stride 2 is 68 elements"),
        (problem(replace(HALF, queries=(64,), keys=(64,))), "different lengths may be empty"),
        (problem(do=meta(2, 1, 4096, 64).expand(2, 8, 4096, 64)), "do is broadcast"),
        (problem(v=meta(1, 2, 4096, 64).expand(2, 2, 4096, 64)), "v is broadcast"),
    ],
    ids=["rows that are not aligned", "sequences", "one head", "one batch"],
)
def test_descriptors_need_operands_fit_for_them(described: Problem, reason: str) -> None:
    assert TEMPLATE.reject(described) is None
    result = why_not_descriptors(described)
    assert result is not None
    assert reason in result
    assert descriptors(described) == {()}


def test_a_mask_is_taken_only_where_a_block_may_not_be_whole() -> None:
    even = ("EVEN_N1", "EVEN_M1", "EVEN_M2", "EVEN_N2")
    assert all(facts(problem())[name] for name in even)
    assert not any(facts(problem(replace(HALF, queries=4095, keys=4095)))[name] for name in even)
    assert not any(facts(problem(replace(HALF, queries=(64,), keys=(64,))))[name] for name in even)
    dynamic = replace(problem(), dynamic=(SizeClass(1, 2, 2049, 4096, 4096),))
    sequence_facts = facts(dynamic)
    assert [sequence_facts[name] for name in even] == [True, False, False, True]


def test_float32_is_rounded_to_tf32_only_where_it_may_be() -> None:
    described = problem(replace(HALF, dtype=torch.float32))
    assert facts(described)["PRECISION"] == "'tf32x3'"
    assert facts(replace(described, tf32=True))["PRECISION"] == "'tf32'"


def test_nothing_is_added_up_between_programs() -> None:
    text = text_of(str(REPOSITORY / "templates" / "triton_attention" / "backward.py"))
    assert "atomic" not in text
    assert text.count("store_output") == 2  # dense and by tokens
    assert text.count("tl.store(") == 2  # dv and dq


def compile_and_check(described: Problem, candidate: Candidate, blocks: BackwardBlocks) -> None:
    """Compile a kernel, which must not spill nor take more shared memory than was said."""
    gpu = described.target
    assert gpu is not None
    with as_target(gpu), graph():
        source = source_of(described, candidate)
    usage = interpreter.compiled(source, gpu.capability[0] * 10 + gpu.capability[1])
    what = f"{candidate.name} for {gpu.name}"
    print(f"{what}: {usage.registers} registers, {usage.shared} bytes of shared memory")
    assert usage.spills == 0, f"{what}: {usage.spills} bytes spilled, {usage.registers} registers"
    assert usage.shared <= shared_bytes(blocks, described), f"{what}: {usage.shared}"


@CUDA
@pytest.mark.usefixtures("inductor_cache")
def test_a_default_kernel_does_not_spill() -> None:
    described = problem()
    compile_and_check(described, first(described), blocks_of(described)[0])


@CUDA
@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize(
    ("gpu", "dim"),
    [
        (gpu, dim)
        for turn, gpu in enumerate(("A100", "H100", "B200"))
        for place, dim in enumerate(DIMS)
        if dim in POWERS or place % 3 == turn
    ],
)
def test_no_default_kernel_spills(gpu: str, dim: int) -> None:
    """Triton pads heads to a power of two, which decides about registers: sizes between two of them take turns among the GPUs."""
    described = problem(replace(HALF, head_dim=dim), gpu)
    compile_and_check(described, first(described), blocks_of(described)[0])


@CUDA
@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.parametrize(
    "case",
    [
        replace(WIDE, mask=Mask(100, 50, bottom_right=True)),
        Case((1 << 20,) * 4, (1 << 20,) * 4, Mask(right=0), heads=8, dtype=torch.float16),
    ],
    ids=["rows", "tokens"],
)
def test_sizes_beyond_32_bits_compile(case: Case) -> None:
    described = problem(replace(case, head_dim=64) if case.varlen else case)
    with as_target("H100"), graph():
        source = source_of(described, TEMPLATE.candidates(described)[-1])
    assert "INDEX_DTYPE : tl.constexpr = tl.int64" in source
    usage = interpreter.compiled(source, 90)
    print(usage.registers, usage.spills)
    assert "wgmma" in usage.ptx
