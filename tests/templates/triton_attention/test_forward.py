"""What the Triton attention templates serve and why not, and which kernels they offer; nothing is lowered."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.attention import Mask, attention_of
from inductor_plugin.problem.target import KIB, Target, names, target
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates import register_builtin
from inductor_plugin.templates.triton.order import LIMIT
from inductor_plugin.templates.triton_attention.block import (
    ForwardBlock,
    fits,
    shared_bytes,
)
from inductor_plugin.templates.triton_attention.decode import (
    KeySplit,
    TritonAttentionDecode,
    scratch_bytes,
    shares_of,
)
from inductor_plugin.templates.triton_attention.facts import (
    NO_LIMIT,
    Pieces,
    constants_of,
    pieces_of,
    why_not_tma,
)
from inductor_plugin.templates.triton_attention.forward import TritonAttention, candidate
from tests.support.attention.backward_cases import Case
from tests.support.attention.forward_cases import meta_operands_of, operand_of, problem_of

DIMS = (32, 40, 64, 80, 96, 128, 192, 256)
A100, H100, B200 = target("A100"), target("H100"), target("B200")
FORWARD, DECODE = TritonAttention(), TritonAttentionDecode()


def dense(
    queries: int = 4096, keys: int = 4096, gpu: Target | None = H100, **facts: Any
) -> Problem:
    """Return a bfloat16 attention of 2 sequences and 8 heads."""
    usual: dict[str, Any] = {"heads": 8, "kv_heads": 8, "batch": 2, "dtype": torch.bfloat16}
    case = Case(queries, keys, **(usual | facts))
    return problem_of(case, meta_operands_of(case), gpu)


def varlen(bias: bool = False) -> Problem:
    """Return an attention of 16 sequences with 4096 tokens in all."""
    q = torch.empty(4096, 8, 64, dtype=torch.bfloat16, device="meta")
    ends = torch.empty(17, dtype=torch.int32, device="meta")
    more = {"bias": torch.empty(16, 8, 300, 300, device="meta")} if bias else {}
    operands = {"q": q, "k": q, "v": q, **more, "cu_q": ends, "cu_k": ends}
    return problem_of(Case((256,) * 16, (256,) * 16), operands)


def changed(problem: Problem, index: int, **facts: Any) -> Problem:
    """Return a problem one of whose operands is another."""
    inputs = list(problem.inputs)
    inputs[index] = replace(inputs[index], **facts)
    return replace(problem, inputs=tuple(inputs))


def with_bias(size: tuple[int, ...], **facts: Any) -> Problem:
    """Return an attention with a bias in the place of lse."""
    case = Case(100, 300, heads=8, kv_heads=8, batch=2, dtype=torch.bfloat16)
    operands = meta_operands_of(case)
    del operands["lse"]
    bias = torch.empty(size, dtype=torch.bfloat16, device="meta")
    product = problem_of(case, {**operands, "bias": bias})
    return changed(product, 3, **facts)


REFUSED: dict[str, tuple[Callable[[], Problem], str]] = {
    "another dtype": (
        lambda: changed(dense(), 1, dtype="float16"), "have bfloat16, float16 and bfloat16"
    ),
    "float64": (lambda: dense(dtype=torch.float64), "float64"),
    "another output": (
        lambda: replace(dense(), output=replace(dense().output, dtype="float32")),
        "it writes bfloat16, this asks for float32",
    ),
    "a CPU": (lambda: changed(dense(), 0, device="cpu"), "not all on a CUDA device"),
    "packed": (lambda: changed(dense(), 0, layout="mkldnn"), "opaque layout"),
    "a head dim of 320": (lambda: dense(head_dim=320), "head dim must be a multiple of 8 from 8 to 256, it is 320"),
    "a head dim of 36": (lambda: dense(head_dim=36), "it is 36"),
    "a value dim of 4": (lambda: dense(value_dim=4), "value dim must be a multiple of 8 from 8 to 256, it is 4"),
    "uneven heads": (lambda: dense(heads=8, kv_heads=3), "8 heads of q cannot share 3"),
    "no keys": (lambda: dense(keys=0), "a dimension is empty"),
    "a transposed k": (
        lambda: changed(dense(), 1, stride=(1, 2, 3, 4096)), "unit stride"
    ),
    "a bias of sequences": (lambda: varlen(bias=True), "a bias with varlen is not supported"),
    "ends of 64 bits": (lambda: changed(varlen(), 3, dtype="int64"), "cu_q and cu_k must be dense int32"),
    "ends with gaps": (lambda: changed(varlen(), 4, stride=(2,)), "cu_q and cu_k must be dense int32"),
    "a flat bias": (lambda: with_bias((100, 300)), "four dimensions, this has 2"),
    "a bias of truth values": (lambda: with_bias((1, 1, 100, 300), dtype="bool"), "it is bool"),
    "an old GPU": (
        lambda: dense(gpu=replace(A100, capability=(7, 5))), "compute capability 8.0, the device has 7.5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("template", [FORWARD, DECODE])
def test_what_cannot_be_run_has_a_reason(template: Any, what: str) -> None:
    make, reason = REFUSED[what]
    refusal = template.reject(make())
    assert refusal is not None
    assert reason in refusal


@pytest.mark.parametrize("dim", range(8, 257, 8))
def test_every_head_dim_has_a_kernel_on_every_gpu(dim: int) -> None:
    for gpu in [*map(target, names()), None]:
        problem = dense(head_dim=dim, gpu=gpu)
        assert FORWARD.reject(problem) is None
        offered = FORWARD.candidates(problem)
        assert 2 <= len(offered) <= LIMIT, gpu
        assert len({offer.name for offer in offered}) == len(offered)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("value_dim", [32, 128, 256])
def test_every_type_and_value_dim_has_a_kernel(dtype: torch.dtype, value_dim: int) -> None:
    for gpu in map(target, names()):
        problem = dense(dtype=dtype, value_dim=value_dim, gpu=gpu)
        assert FORWARD.candidates(problem)
        few = dense(queries=1, dtype=dtype, value_dim=value_dim, gpu=gpu)
        assert DECODE.reject(few) is None
        assert DECODE.candidates(few)


def sources(offered: Any) -> list[TritonSource]:
    result: list[TritonSource] = []
    for offer in offered:
        assert isinstance(offer, Candidate)
        assert isinstance(offer.kernel, TritonSource)
        result.append(offer.kernel)
    return result


def kinds(problem: Problem) -> set[tuple[bool, bool]]:
    """Return which of (TMA, warps of their own) are offered."""
    flags = [dict(source.constants) for source in sources(FORWARD.candidates(problem))]
    return {(bool(flag["USE_TMA"]), bool(flag["WARP_SPECIALIZE"])) for flag in flags}


def test_tma_is_offered_where_the_hardware_has_it() -> None:
    assert kinds(dense(gpu=A100)) == {(False, False)}
    assert kinds(dense(gpu=H100)) == {(False, False), (True, False)}
    assert kinds(dense(gpu=B200)) == {(False, False), (True, False), (True, True)}
    assert kinds(dense(gpu=B200, head_dim=256)) == {(False, False), (True, False)}
    assert kinds(dense(gpu=B200, head_dim=96)) == {(False, False), (True, False)}
    assert kinds(dense(gpu=H100, head_dim=96)) == {(False, False), (True, False)}
    assert kinds(dense(dtype=torch.float32)) == {(False, False)}
    assert kinds(with_bias((1, 1, 100, 300))) == {(False, False), (True, False)}


UNALIGNED = {
    "offset": ({"offset": 4}, "q's offset is 4 elements"),
    "row": ({"stride": (1 << 25, 1 << 18, 68, 1)}, "q's stride 2 is 68 elements"),
    "head": ({"stride": (1 << 25, 262148, 64, 1)}, "q's stride 1 is 262148 elements"),
    "unknown": (
        {"divisors": (8, 8, 2, 1, 16)}, "q's stride 2 is some multiple of 2 elements"
    ),
    "one row": (
        {"size": (2, 8, 1, 64), "stride": (512, 64, 3, 1)}, "q's stride 2 is 3 elements"
    ),
    "overlapping": ({"stride": (1 << 25, 1 << 18, 32, 1)}, "q's rows overlap"),
    "broadcast rows": ({"stride": (1 << 25, 1 << 18, 0, 1)}, "q's rows overlap"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNALIGNED)
def test_why_an_operand_cannot_be_read_through_tma(what: str) -> None:
    facts, reason = UNALIGNED[what]
    problem = changed(dense(), 0, **facts)
    refusal = why_not_tma(problem)
    assert refusal is not None
    assert reason in refusal
    assert kinds(problem) == {(False, False)}


def test_a_broadcast_head_or_a_single_sequence_can_be_read_through_tma() -> None:
    assert why_not_tma(dense()) is None
    assert why_not_tma(changed(dense(), 1, stride=(1 << 18, 0, 64, 1))) is None
    assert why_not_tma(changed(dense(batch=1), 0, stride=(3, 1 << 18, 64, 1))) is None


def test_what_a_dense_kernel_is_told() -> None:
    (first, *_) = sources(FORWARD.candidates(dense()))
    assert first.grid == "rows"
    assert first.extents == ((0, 0), (0, 1), (0, 2))
    assert first.mutated == (3,)
    assert dict(first.constants)["SPLITS"] == 1
    assert first.scratch_bytes == 0


def test_what_a_kernel_of_sequences_is_told() -> None:
    (first, *_) = sources(FORWARD.candidates(varlen()))
    assert first.grid == "tokens"
    assert first.extents == ((3, 0), (0, 1), (0, 0))
    assert first.mutated == ()
    assert DECODE.reject(varlen()) == "it is for sequences of one length"


def test_constants_follow_mask_scale_and_cap() -> None:
    plain = constants_of(dense())
    assert (plain["LEFT"], plain["RIGHT"], plain["BENT"]) == (-1, -1, False)
    assert float(plain["SCALE_LOG2"]) == pytest.approx(64**-0.5 * math.log2(math.e))
    assert "CAP_LOG2" not in plain
    wide = constants_of(dense(mask=Mask(NO_LIMIT, 3)))
    assert (wide["LEFT"], wide["RIGHT"]) == (-1, 3)
    capped = constants_of(dense(softcap=20.0))
    assert capped["BENT"]
    assert float(capped["CAP_LOG2"]) == pytest.approx(20 * math.log2(math.e))
    assert constants_of(dense(scale=-1.0))["BENT"]


def test_a_bias_is_broadcast_where_it_has_one_element_or_no_stride() -> None:
    flags = ("BIAS_B", "BIAS_H", "BIAS_M", "BIAS_N")
    constants = constants_of(with_bias((1, 8, 1, 300)))
    assert [constants[flag] for flag in flags] == [False, True, False, True]
    expanded = constants_of(with_bias((2, 8, 100, 300), stride=(0, 0, 300, 1)))
    assert [expanded[flag] for flag in flags] == [False, False, True, True]


def test_float32_is_exact_unless_tf32_is_allowed() -> None:
    wide = dense(dtype=torch.float32)
    assert constants_of(wide)["PRECISION"] == "'ieee'"
    assert constants_of(replace(wide, tf32=True))["PRECISION"] == "'tf32'"


def test_keys_known_to_be_whole_steps_need_no_mask() -> None:
    def even(problem: Problem) -> bool:
        return bool(candidate(problem, ForwardBlock(64, 64, 2, 4)).config["EVEN_N"])

    assert even(dense(keys=4096))
    assert not even(dense(keys=4100))
    dynamic = replace(dense(), dynamic=(SizeClass(1, 2, 2049, 4096, 4096),))
    assert not even(dynamic)
    assert not even(varlen())


@pytest.mark.parametrize(
    ("dim", "pieces"),
    [(8, Pieces(16, 0)), (40, Pieces(32, 16)), (64, Pieces(64, 0)), (80, Pieces(64, 16)),
     (96, Pieces(64, 32)), (112, Pieces(128, 0)), (160, Pieces(128, 32)), (192, Pieces(128, 64)),
     (256, Pieces(256, 0))],
)  # fmt: skip
def test_a_head_dim_is_padded_to_one_or_two_powers_of_two(dim: int, pieces: Pieces) -> None:
    assert pieces_of(dim) == pieces


def test_few_queries_take_low_blocks() -> None:
    def heights(queries: int) -> set[int]:
        offered = sources(FORWARD.candidates(dense(queries=queries)))
        return {int(dict(offer.constants)["BLOCK_M"]) for offer in offered}

    assert heights(4096) == {64, 128}
    assert heights(20) == {16, 32}
    assert heights(1) == {16}


def test_few_programs_take_low_blocks_first() -> None:
    many, few = (
        sources(FORWARD.candidates(dense(queries=4096 // n, batch=2 // n)))[0] for n in (1, 2)
    )
    assert dict(many.constants)["BLOCK_M"] == 128
    assert few.constants != many.constants or dict(few.constants)["BLOCK_M"] == 128
    short = sources(FORWARD.candidates(dense(queries=256, batch=1)))[0]
    assert dict(short.constants)["BLOCK_M"] == 64


def test_what_does_not_fit_is_not_offered() -> None:
    problem = dense(head_dim=128)
    assert fits(ForwardBlock(128, 64, 3, 8), problem)
    assert not fits(ForwardBlock(128, 128, 4, 8), problem)  # 288 KiB
    assert not fits(ForwardBlock(128, 128, 2, 4), problem)  # 256 sums a thread
    small = dense(head_dim=256, gpu=target("L40S"))
    for source in sources(FORWARD.candidates(small)):
        facts = dict(source.constants)
        block = ForwardBlock(
            int(facts["BLOCK_M"]), int(facts["BLOCK_N"]), source.num_stages, source.num_warps
        )
        assert shared_bytes(block, small) <= 99 * KIB


def test_decoding_is_for_few_rows_and_many_keys() -> None:
    assert DECODE.reject(dense(queries=1)) is None
    assert DECODE.reject(dense(queries=8, heads=32)) is None  # 8 queries of 4 heads
    reason = DECODE.reject(dense(queries=17, heads=32))
    assert reason == "it is for at most 64 rows of one key head, this has 17 queries of 4 heads"
    assert DECODE.reject(dense(queries=1, keys=100)) == "it is for at least 128 keys, this has 100"


def test_heads_that_share_keys_are_rows_of_one_block() -> None:
    offered = sources(DECODE.candidates(dense(queries=3, heads=24)))
    assert len(offered) > 1
    for source in offered:
        facts = dict(source.constants)
        assert (facts["BLOCK_M"], facts["HEADS_PER_KV"], facts["ROWS"]) == (4, 3, 16)
        assert source.grid == "rows"
        assert source.extents == ((0, 0), (1, 1), (0, 2))


def test_keys_are_divided_until_all_multiprocessors_are_busy() -> None:
    splits = [share.splits for share in shares_of(dense(queries=1, keys=65536))]
    assert splits[0] == H100.multiprocessors // 16
    assert {1, 8, 16} == set(splits)
    assert {share.splits for share in shares_of(dense(queries=1, keys=65536, batch=64))} == {1, 2}
    assert {share.splits for share in shares_of(dense(queries=1, keys=256))} == {1, 2}


def test_scratch_holds_sums_maxima_totals_and_counters() -> None:
    problem = dense(queries=3, heads=32)
    (source,) = sources(DECODE.candidates(problem)[:1])
    facts = dict(source.constants)
    tiles, rows, splits = 2 * 8, int(facts["ROWS"]), int(facts["SPLITS"])
    assert source.scratch_bytes == 4 * (tiles * splits * rows * (64 + 2) + tiles)
    assert scratch_bytes(attention_of(problem), KeySplit(64, 2, 4, 1)) == 0


@pytest.mark.parametrize("place", [(0, 0), (0, 2), (1, 1)])
def test_a_result_of_unknown_size_is_not_divided(place: tuple[int, int]) -> None:
    problem = replace(dense(queries=1), dynamic=(SizeClass(*place, 2, 2, 2),))
    assert {share.splits for share in shares_of(problem)} == {1}
    keys = replace(dense(queries=1), dynamic=(SizeClass(1, 2, 2049, 4096, 4096),))
    assert max(share.splits for share in shares_of(keys)) > 1


def test_both_templates_together_offer_no_more_than_twelve() -> None:
    registry = Registry()
    register_builtin(registry)
    mine = [registry.get(name) for name in (FORWARD.name, DECODE.name)]
    for dim in DIMS:
        problem = dense(queries=1, head_dim=dim)
        assert all(record.reject(problem) is None for record in mine)
        offered = [c.name for record in mine for c in record.candidates(problem)]
        assert 4 <= len(offered) <= LIMIT
        assert len(set(offered)) == len(offered)


def test_operands_are_read_from_tensors() -> None:
    created = operand_of(torch.empty(2, 3, 4, device="meta").transpose(0, 1))
    assert created == Operand((3, 2, 4), (4, 12, 1), "float32", "cuda")


def test_operands_of_8_bits_are_for_gpus_that_convert_them_and_not_for_descriptors() -> None:
    def narrow(gpu: str, **facts: Any) -> Problem:
        case = replace(Case(2048, 2048, Mask(), head_dim=128, dtype=torch.float8_e4m3fn), **facts)
        return problem_of(case, meta_operands_of(case), target(gpu))

    template = TritonAttention()
    assert "compute capability 8.9" in str(template.reject(narrow("A100")))
    for gpu in ("L40S", "H200", "B200"):
        problem = narrow(gpu)
        assert template.reject(problem) is None
        candidates = template.candidates(problem)
        assert candidates
        assert not any(competitor.config["USE_TMA"] for competitor in candidates)
        assert all(competitor.config["NARROW"] for competitor in candidates)
    wrong = narrow("H200")
    wrong = replace(wrong, output=replace(wrong.output, dtype="float8_e4m3fn"))
    assert "it writes bfloat16" in str(template.reject(wrong))
