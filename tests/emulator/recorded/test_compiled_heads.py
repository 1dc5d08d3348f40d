"""Recorded Triton attention as calls of the emulator, by records the plugin has written."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import Measured
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import FORWARD, Mask, arguments
from inductor_plugin.problem.definition import problem_in
from inductor_plugin.problem.target import target
from tests.emulator.machine.schedule import EAGER
from tests.emulator.recorded import compiled_heads
from tests.emulator.recorded.call import Call
from tests.emulator.runtime.runtime import Runtime
from tests.support.attention.problems import attention, dense
from tests.support.cache.records import measured
from tests.support.emulator.recording import record_of
from tests.support.lowering import Arg

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
H100 = target("H100")


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return (flash(q, k, v, 0.0, True)[0],)


@pytest.mark.slow
def test_a_recorded_attention_is_right(runtime: Runtime, tmp_path: Path) -> None:
    operand = Arg((1, 2, 70, 64))
    record = record_of(tmp_path / "cache", causal, operand, operand, operand)
    problem = problem_in(record.problem)
    assert problem is not None
    row = next(row for row in record.candidates.values() if row.name == "triton_attention")
    call = compiled_heads.call_of(problem, row, H100)
    assert isinstance(call, Call), call
    assert call.note == ""
    verdict = call.run(runtime, EAGER)
    assert verdict.error <= 1
    assert verdict.changed == 0


SIZES: dict[str, Any] = {
    "batch": 1,
    "heads": 2,
    "kv_heads": 1,
    "queries": 70,
    "keys": 90,
    "dim": 64,
}
DECODED: dict[str, Any] = {**SIZES, "queries": 3, "keys": 300}


def biased() -> Problem:
    plain = attention(**SIZES, lse=False)
    keywords = arguments(scale=0.125, mask=Mask(), operands=("q", "k", "v", "bias"))
    texts = tuple((name, repr(value)) for name, value in keywords.items())
    bias = dense((1, 2, 70, 90), "bfloat16")
    return replace(plain, inputs=(*plain.inputs, bias), arguments=texts)


PROBLEMS: dict[str, tuple[str, Problem]] = {
    "a bias": ("triton_attention", biased()),
    "lse and a cap": ("triton_attention", attention(**SIZES, mask=Mask(right=0), softcap=3.0)),
    "decoding": (
        "triton_attention_decode",
        attention(**DECODED, mask=Mask(right=0, bottom_right=True)),
    ),
    "gradient": ("triton_attention_backward", attention(**SIZES, backward=True)),
}


@pytest.mark.slow
def test_what_an_attention_reads_and_writes_is_right(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(entries: Iterable[Any], row: Measured) -> Any:
        return next(entry for entry in entries if entry.name == row.name)

    monkeypatch.setattr(compiled_heads, "like", first)
    for name, (kernel, problem) in PROBLEMS.items():
        call = compiled_heads.call_of(problem, measured(kernel, kind="triton"), H100)
        assert isinstance(call, Call), call
        verdict = call.run(runtime, EAGER)
        assert verdict.error <= 1, name
        assert verdict.changed == 0, name


def test_sequences_of_their_own_lengths_are_refused() -> None:
    ends = dense((3,), "int32")
    tokens = dense((70, 2, 64), "bfloat16")
    names = ("q", "k", "v", "cu_q", "cu_k")
    keywords = arguments(scale=0.1, mask=Mask(), operands=names)
    texts = tuple((name, repr(value)) for name, value in keywords.items())
    packed = Problem(FORWARD, (tokens, tokens, tokens, ends, ends), tokens, texts)
    row = measured("triton_attention", kind="triton")
    assert "a record does not keep them" in str(compiled_heads.call_of(packed, row, H100))
