"""What the worker's check accepts of kernels that take operands of 8 bits, and what it does not."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import pytest

from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.problem.attention import Attention, Mask, arguments
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.attention.screening import (
    BOTTOM_RIGHT,
    CAUSAL,
    WINDOW,
    candidate,
    facts_of,
    operands_of,
    screened,
)

NARROW_FAULTS = (
    "one_wrong_tile", "nan_in_empty_row", "unscaled", "top_left", "log2_lse", "empty_lse", "hides_nan",
    "adds_the_mask", "coarse", "a_little_more",
)  # fmt: skip


def ours(facts: Attention) -> BenchCandidate:
    """Return the plugin's own operator, which rounds no weights."""
    call_arguments = arguments(scale=facts.scale, mask=facts.mask, operands=facts.operands)
    inputs, output = operands_of(facts)
    kernel = ExternKernel("attention_fmha", tuple(call_arguments.items()), has_out=False)
    return BenchCandidate("fmha", kernel, inputs, output, 20.0)


@pytest.mark.parametrize("mask", [CAUSAL, WINDOW, BOTTOM_RIGHT], ids=["causal", "window", "last"])
def test_kernels_for_8_bits_may_round_weights_to_as_many(worker: BenchWorker, mask: Mask):
    facts = facts_of(mask, "float8_e4m3fn")
    exact = screened(worker, facts, ours(facts), ours(facts))
    assert (exact.status, exact.reason) == ("ok", "")
    rounded = screened(worker, facts, candidate(facts, "good"), ours(facts))
    assert (rounded.status, rounded.reason) == ("ok", "")
    assert exact.error is not None
    assert rounded.error is not None
    assert exact.error < 0.02 < rounded.error < 0.2


@pytest.mark.parametrize("fault", NARROW_FAULTS)
def test_kernels_for_8_bits_that_are_wrong_are_caught(worker: BenchWorker, fault: str):
    facts = facts_of(BOTTOM_RIGHT, "float8_e4m3fn")
    outcome = screened(worker, facts, candidate(facts, fault), ours(facts))
    assert outcome.status == "wrong", outcome


def test_all_errors_together_show_what_no_single_one_does(worker: BenchWorker):
    facts = facts_of(CAUSAL, "float8_e4m3fn")
    outcome = screened(worker, facts, candidate(facts, "a_little_more"), ours(facts))
    assert outcome.status == "wrong"
    assert "root mean square, accepted is 0.0398" in outcome.reason
