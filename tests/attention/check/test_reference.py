"""What the benchmark worker thinks of attention kernels: right ones pass, wrong ones are caught."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.attention.check.reference import Reference
from inductor_plugin.attention.math import attention_math_backward
from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.problem.attention import Attention, Mask
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    FinalJob,
    ScreenJob,
)
from tests.support.attention import reference as attention_reference
from tests.support.attention.screening import (
    BOTTOM_RIGHT,
    CAUSAL,
    DV,
    HKV,
    QUICK,
    WINDOW,
    B,
    D,
    H,
    aten,
    candidate,
    facts_of,
    operands_of,
    screened,
)
from tests.support.candidates.operands import tensor


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    "mask", [CAUSAL, WINDOW, BOTTOM_RIGHT], ids=["causal", "window", "bottom-right"]
)
def test_right_kernels_pass(worker: BenchWorker, mask: Mask, backward: bool, dtype: str):
    facts = facts_of(mask, dtype, backward=backward)
    library = candidate(facts, "", "another")
    outcome = screened(worker, facts, candidate(facts, "good"), library)
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert outcome.error is not None
    assert 0 < outcome.error < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_kernel_is_held_against_aten_s(worker: BenchWorker, backward: bool, dtype: str):
    facts = replace(facts_of(CAUSAL, dtype, backward=backward), kv_heads=H, value_dim=D)
    inputs, output = operands_of(facts)
    wide = {spec.seed: spec for spec in inputs if spec.seed in (3, 6, 7, 8)}  # queries' shapes
    keys = tensor(B, H, facts.keys, D, dtype=dtype)
    widened = tuple(
        replace(keys, seed=operand.seed)
        if operand.seed in (4, 5, 9)
        else operand
        if operand.seed in (1, 2)
        else replace(wide[3], seed=operand.seed)
        for operand in inputs
    )
    out = keys if backward else replace(wide.get(3, output), seed=0)
    theirs = replace(aten(facts), inputs=widened, output=out)
    ours = replace(candidate(facts, "good"), inputs=widened, output=out)
    first = screened(worker, facts, theirs, theirs)
    assert (first.status, first.reason) == ("ok", "")
    assert first.error is not None
    outcome = screened(worker, facts, ours, theirs)
    assert (outcome.status, outcome.reason) == ("ok", "")
    wrong = replace(candidate(facts, "one_wrong_tile"), inputs=widened, output=out)
    assert screened(worker, facts, wrong, theirs).status == "wrong"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("mask", "backward", "fault", "words"),
    [
        (WINDOW, False, "off_by_one", "out: error"),
        (WINDOW, False, "log2_lse", "lse: error"),
        (WINDOW, False, "unscaled", "out: error"),
        (WINDOW, False, "one_wrong_tile", "out: "),
        (WINDOW, False, "nan_in_empty_row", "out: "),
        (WINDOW, False, "empty_lse", "lse: "),
        (WINDOW, False, "no_lse", "lse: error inf"),
        (WINDOW, False, "hides_nan", "is a number where an operand is NaN"),
        (WINDOW, False, "adds_the_mask", "is NaN or infinite where all it depends on are numbers"),
        (CAUSAL, False, "adds_the_mask", "is NaN or infinite where all it depends on are numbers"),
        (WINDOW, False, "coarse", "out: error"),
        (BOTTOM_RIGHT, False, "top_left", "out: error"),
        # Seen at other addresses; the second trial, in the same process, has other operands from its beginning.
        (CAUSAL, False, "keeps_addresses", "is a number where an operand is NaN"),
        (CAUSAL, False, "no_maximum", "NaN or infinite where scores are large"),
        (WINDOW, False, "clamped_scores", "where scores are large and values small"),
        (CAUSAL, False, "flushed", "out: "),
        (CAUSAL, False, "every_tenth_call", "out: error"),
        (WINDOW, True, "off_by_one", "error"),
        (WINDOW, True, "gradients_unscaled", "dk: error"),
        (WINDOW, True, "no_delta", "dk: error"),
        (WINDOW, True, "one_wrong_tile", "dq: "),
        (WINDOW, True, "one_wrong_key_tile", "dk: "),
        (WINDOW, True, "one_head_of_a_group", "dv: error"),
        (BOTTOM_RIGHT, True, "top_left", "error"),
        (CAUSAL, True, "dv_forgets_unseen", "dv: "),
    ],
)
def test_wrong_kernels_are_caught(
    worker: BenchWorker, mask: Mask, backward: bool, fault: str, words: str, dtype: str
):
    facts = facts_of(mask, dtype, backward=backward)
    library = candidate(facts, "", "another")
    outcome = screened(worker, facts, candidate(facts, fault), library)
    assert outcome.status == "wrong", outcome
    assert words in outcome.reason


@pytest.mark.parametrize("expanded", [2, 5], ids=["queries", "values"])
def test_an_operand_that_is_expanded_is_not_changed_in_place(
    worker: BenchWorker, expanded: int
) -> None:
    """As keys and values of one head that all heads of the queries share."""
    facts = replace(facts_of(CAUSAL, "bfloat16"), kv_heads=H)
    base = candidate(facts, "good")
    q, k, v, lse = base.inputs
    k, v = (replace(each, size=(B, H, *each.size[2:])) for each in (k, v))
    specs = [q, k, v, lse]
    at = 0 if expanded == 2 else 2
    spec = specs[at]
    specs[at] = replace(spec, stride=(spec.stride[0], 0, *spec.stride[2:]))
    specs[1] = replace(k, stride=(k.size[2] * H * D, D, H * D, 1))
    changed = replace(base, inputs=tuple(specs))
    library = replace(candidate(facts, "", f"expanded {expanded}"), inputs=tuple(specs))
    outcome = screened(worker, facts, changed, library)
    assert (outcome.status, outcome.reason) == ("ok", "")


def test_what_no_sampled_row_shows_is_seen_beside_the_library_kernel(worker: BenchWorker):
    facts = replace(facts_of(CAUSAL, "bfloat16"), heads=16)
    rows, width = facts.queries, facts.heads
    stride = (rows * width * D, D, width * D, 1)
    q = tensor(B, width, rows, D, seed=3, stride=stride, dtype="bfloat16")
    stride = (rows * width * DV, DV, width * DV, 1)
    out = tensor(B, width, rows, DV, stride=stride, dtype="bfloat16")

    def wide_candidate(fault: str, name: str = "") -> BenchCandidate:
        faulty = candidate(facts, fault, name)
        inputs = (q, *faulty.inputs[1:3], tensor(B, width, rows, seed=1))
        return replace(faulty, inputs=inputs, output=out)

    outcome = screened(
        worker, facts, wide_candidate("outside_the_sample"), wide_candidate("", "many heads")
    )
    assert outcome.status == "wrong"
    assert "further from the library kernel's" in outcome.reason
    assert "head 1, row 7" in outcome.reason
    assert (
        screened(worker, facts, wide_candidate("good"), wide_candidate("", "many heads")).status
        == "ok"
    )


def test_guard_bytes_lie_around_lse_too(worker: BenchWorker):
    facts = facts_of(WINDOW, "bfloat16")
    outcome = screened(worker, facts, candidate(facts, "overruns"), candidate(facts, "", "another"))
    assert (outcome.status, outcome.reason) == ("red_zone", "it wrote 16 bytes behind its output")


def test_a_library_kernel_that_is_wrong_is_reported_and_not_followed(worker: BenchWorker):
    facts = facts_of(WINDOW, "bfloat16")
    library = candidate(facts, "nan_in_empty_row", "library with NaN")
    outcome = screened(worker, facts, library, library)
    assert outcome.status == "ok"
    assert outcome.reason.startswith("the library kernel's out is off float64 by inf")
    assert screened(worker, facts, candidate(facts, "good"), library).status == "ok"
    assert screened(worker, facts, candidate(facts, "unscaled"), library).status == "wrong"


def test_what_the_library_kernel_hides_itself_is_not_asked_of_others(worker: BenchWorker):
    facts = facts_of(WINDOW, "float32")
    library = candidate(facts, "hides_nan", "library that hides NaN")
    assert "is a number where" in screened(worker, facts, library, library).reason
    assert screened(worker, facts, candidate(facts, "hides_nan"), library).status == "ok"


def test_without_a_library_kernel_the_types_alone_decide(worker: BenchWorker):
    facts = facts_of(WINDOW, "bfloat16")
    assert screened(worker, facts, candidate(facts, "good"), None).status == "ok"
    assert screened(worker, facts, candidate(facts, "unscaled"), None).status == "wrong"


def test_nothing_is_checked_where_the_user_does_not_want_it(worker: BenchWorker):
    facts = facts_of(WINDOW, "bfloat16")
    library = candidate(facts, "", "another")
    job = ScreenJob("unchecked", library, candidate(facts, "unscaled"), QUICK, None, facts)
    assert (worker.screen(job).status, worker.screen(job).error) == ("ok", None)


def test_a_kernel_may_take_q_k_and_v_in_one_buffer(worker: BenchWorker):
    facts = replace(facts_of(WINDOW, "bfloat16"), keys=100, value_dim=D)
    heads = H + 2 * HKV
    base = tensor(B, 100, heads, D, seed=3, dtype="bfloat16", storage=B * 100 * heads * D)
    lse = tensor(B, H, 100, seed=1)

    def view(first: int, count: int) -> TensorSpec:
        stride = (100 * heads * D, D, heads * D, 1)
        return replace(base, size=(B, count, 100, D), stride=stride, offset=first * D)

    views = (view(0, H), view(H, HKV), view(H + HKV, HKV), lse)
    out = tensor(B, H, 100, D, dtype="bfloat16")
    library = replace(candidate(facts, "", "on views"), inputs=views, output=out)
    for fault, status in (("good", "ok"), ("unscaled", "wrong"), ("hides_nan", "wrong")):
        args = (H, HKV, fault, facts.scale, 20, 3, True)
        kernel = OpKernel(
            "attention_faults::packed", args, imports=("tests.support.attention.faults",)
        )
        competitor = BenchCandidate(fault, kernel, (base, lse), out, 20.0)
        outcome = screened(worker, facts, competitor, library)
        assert outcome.status == status, outcome


def test_finals_measure_what_was_screened(worker: BenchWorker):
    facts = facts_of(WINDOW, "bfloat16", backward=True)
    racers = (candidate(facts, "", "another"), candidate(facts, "good"))
    for racer in racers:
        assert screened(worker, facts, racer, racers[0]).status == "ok"
    about = f"True {WINDOW} bfloat16 another"
    outcomes = worker.final(FinalJob(about, racers, 2, QUICK))
    assert [(outcome.status, len(outcome.samples_ms)) for outcome in outcomes] == [
        ("ok", 2),
        ("ok", 2),
    ]


@pytest.mark.parametrize("wrong", ["", "top-left", "cu_seqlens ignored", "empty rows"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_sequences_behind_one_another(wrong: str, backward: bool):
    torch.manual_seed(0)
    cu = {
        "cu_q": torch.tensor([0, 40, 40, 100], dtype=torch.int32),
        "cu_k": torch.tensor([0, 50, 60, 90], dtype=torch.int32),
    }
    names = ("do",) if backward else ()
    mask = Mask(right=0, bottom_right=True)
    facts = Attention(
        backward,
        3,
        H,
        HKV,
        100,
        90,
        D,
        DV,
        0.25,
        mask,
        0.0,
        (*names, "q", "k", "v", *cu),
        "bfloat16",
    )
    shapes = {"q": (100, H, D), "k": (90, HKV, D), "v": (90, HKV, DV), "do": (100, H, DV)}
    x = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}

    def kernel(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        operands = cu if wrong != "cu_seqlens ignored" or dtype != torch.float32 else {}
        tensors = x if operands else {n: t.transpose(0, 1)[None] for n, t in x.items()}
        used = replace(mask, bottom_right=wrong != "top-left" or dtype != torch.float32)
        more: dict[str, Any] = {"mask": used, "scale": 0.25, "dtype": dtype, **operands}
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        if backward:
            dq, dk, dv, _ = attention_reference.backward(tensors["do"], q, k, v, **more)
            named = {"dk": dk, "dq": dq, "dv": dv}
        else:
            named = dict(
                zip(("out", "lse"), attention_reference.forward(q, k, v, **more), strict=True)
            )
        if not operands:
            named = {n: t[0] if n == "lse" else t[0].transpose(0, 1) for n, t in named.items()}
        return {n: t.float() if n == "lse" else t.bfloat16() for n, t in named.items()}

    reference = Reference(facts, {**{n: x[n] for n in (*names, "q", "k", "v")}, **cu})
    assert reference.take(kernel(torch.float64)).reason == ""
    outputs = kernel(torch.float32)
    if wrong == "empty rows":
        name, row = ("dq", 40) if backward else ("lse", 41)
        line = outputs[name] if backward else outputs[name].T
        line[row] = 0.5  # the first 30 of the last sequence see no key
    assert bool(reference.judge(outputs).reason) == bool(wrong)


def few_keys(seed: int) -> tuple[Attention, dict[str, torch.Tensor]]:
    """Return a gradient of 37 080 rows with heads of 8, of which 256 are sampled."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(rows: int) -> torch.Tensor:
        return torch.randn(12, rows, 3, 8, generator=generator).half().transpose(1, 2)

    operands = {name: drawn(17 if name in "kv" else 1030) for name in ("do", "q", "k", "v")}
    operands["bias"] = torch.randn(1, 3, 1030, 17, generator=generator).half()
    names = ("do", "q", "k", "v", "out", "lse", "bias", "dq", "dv")
    return Attention(
        True, 12, 3, 3, 1030, 17, 8, 8, 8**-0.5, Mask(), 0.0, names, "float16"
    ), operands


@pytest.mark.parametrize("seed", [92, 225])
def test_a_row_that_is_not_sampled_may_be_worse_off_than_all_that_are(seed: int):
    facts, operands = few_keys(seed)
    reference = Reference(facts, operands)
    prepared = reference.prepared
    aten: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    theirs = aten(
        *(operands[name] for name in ("do", "q", "k", "v")),
        *(prepared["out"], prepared["lse"], 0.0, False),
        attn_mask=operands["bias"],
        scale=facts.scale,
    )
    assert reference.take(dict(zip(("dq", "dk", "dv"), theirs, strict=True))).reason == ""
    dq, dk, dv = (torch.empty_like(operands[name]) for name in ("q", "k", "v"))
    ours: Any = attention_math_backward
    ours(
        *(operands[name] for name in ("do", "q", "k", "v")),
        *(prepared["out"], prepared["lse"], operands["bias"], dq, dv, facts.scale, -1, -1, False),
        out=dk,
    )
    assert reference.judge({"dq": dq, "dk": dk, "dv": dv}).reason == ""
    unsampled = dq.clone()
    unsampled[5, 1, 500] *= 1.1
    assert "dq: " in reference.judge({"dq": unsampled, "dk": dk, "dv": dv}).reason


def test_operands_that_lie_in_one_another_are_not_poisoned():
    facts = replace(facts_of(BOTTOM_RIGHT, "float32"), heads=HKV, queries=80, value_dim=D)
    same = torch.randn(B, HKV, 80, D)
    reference = Reference(facts, {"q": same, "k": same, "v": same})
    assert reference.plant({"q": [same], "k": [same], "v": [same]}) is None
    assert not same.isnan().any()
    q, k = same.clone(), same.clone()
    restore = reference.plant({"q": [q], "k": [k], "v": [same]})
    assert restore is not None
    assert (int(q.isnan().sum()), int(k.isnan().sum())) == (1, 1)
    restore()
    assert torch.equal(q, same)
    assert torch.equal(k, same)
