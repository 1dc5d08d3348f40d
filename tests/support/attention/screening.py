"""An attention's facts, its operands, and how a worker screens a kernel for them on a CPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from dataclasses import replace

from inductor_plugin.kernels.call import ExternKernel, OpKernel, TensorSpec
from inductor_plugin.problem.attention import Attention, Mask, arguments
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Outcome,
    Sampling,
    ScreenJob,
    WorkerSettings,
)
from tests.support.candidates.operands import tensor
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings(sys_path=(str(REPOSITORY), *sys.path), kind="bench", threads=1)
CHECK = NumberCheck(Tolerance(1e-3, 1e-3))
QUICK = Sampling(warmup=0, samples=1, min_sample_ms=0.01, max_total_s=1.0, cold_cache=False)
B, H, HKV, D, DV = 1, 4, 2, 32, 24
CAUSAL = Mask(right=0)
WINDOW = Mask(left=20, right=3, bottom_right=True)
BOTTOM_RIGHT = Mask(right=0, bottom_right=True)
LENGTHS = {CAUSAL: (80, 100), WINDOW: (100, 80), BOTTOM_RIGHT: (100, 80)}
"""Sq and Sk: CAUSAL leaves 20 keys unseen; in the others the first queries see nothing."""


def facts_of(mask: Mask, dtype: str, *, backward: bool = False) -> Attention:
    operands = ("do", "q", "k", "v", "out", "lse", "delta", "dq", "dv")
    operands = operands if backward else ("q", "k", "v", "lse")
    queries, keys = LENGTHS[mask]
    return Attention(backward, B, H, HKV, queries, keys, D, DV, 0.25, mask, 0.0, operands, dtype)


def operands_of(facts: Attention) -> tuple[tuple[TensorSpec, ...], TensorSpec]:
    """Return inputs and output; q, k and v are views of [B, S, H, D]."""

    def view(seed: int, heads: int, rows: int, width: int) -> TensorSpec:
        stride = (rows * heads * width, width, heads * width, 1)
        return tensor(B, heads, rows, width, seed=seed, stride=stride, dtype=facts.dtype)

    sq, sk = facts.queries, facts.keys
    rows = {name: tensor(B, H, sq, seed=s) for s, name in enumerate(("lse", "delta"), start=1)}
    by_name = {
        **rows,
        "q": view(3, H, sq, D),
        "k": view(4, HKV, sk, D),
        "v": view(5, HKV, sk, DV),
        "do": view(6, H, sq, DV),
        "out": view(7, H, sq, DV),
        "dq": view(8, H, sq, D),
        "dv": view(9, HKV, sk, DV),
    }
    output = view(0, HKV, sk, D) if facts.backward else view(0, H, sq, DV)
    if facts.dtype.startswith("float8"):
        output = replace(output, dtype="bfloat16")
    return tuple(by_name[name] for name in facts.operands), output


def candidate(facts: Attention, fault: str, name: str = "") -> BenchCandidate:
    inputs, output = operands_of(facts)
    mask = facts.mask
    args = (fault, facts.scale, mask.left, mask.right, mask.bottom_right)
    op = f"attention_faults::{'backward' if facts.backward else 'forward'}"
    kernel = OpKernel(op, args, imports=("tests.support.attention.faults",))
    return BenchCandidate(name or fault, kernel, inputs, output, 20.0)


def aten(facts: Attention) -> BenchCandidate:
    call_arguments = arguments(scale=facts.scale, mask=facts.mask, operands=facts.operands)
    name = f"attention_cpu{'_backward' if facts.backward else ''}"
    inputs, output = operands_of(facts)
    kernel = ExternKernel(name, tuple(call_arguments.items()), has_out=False)
    return BenchCandidate("aten", kernel, inputs, output, 20.0)


def screened(
    worker: BenchWorker,
    facts: Attention,
    competitor: BenchCandidate,
    library: BenchCandidate | None,
) -> Outcome:
    about = f"{facts.backward} {facts.mask} {facts.dtype} {library and library.candidate_id}"
    return worker.screen(ScreenJob(about, library, competitor, QUICK, CHECK, facts))
