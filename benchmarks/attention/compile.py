"""Resources of each Triton attention kernel: registers, spills and shared memory, without a GPU.

    python -m benchmarks.attention.compile [--gpu A100 ...] [--dim 64 ...] [--mask causal ...]
                                           [--first 3] [--missing]
                                           [--out benchmarks/results/attention_triton.json]

Every candidate of a head dim is lowered by Inductor and compiled by Triton and ptxas for the GPU's
architecture. Rows of the file for other head dims, masks and GPUs are kept if their sources have not
changed; ``--missing`` compiles only what the file lacks. Exits with 1 if a kernel spills, computes
nothing, or needs more shared memory than the GPU has.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.repository import RESULTS
from benchmarks.harness.sources import sources_digest
from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Mask, attention_of
from inductor_plugin.problem.target import Target, target
from inductor_plugin.template import Candidate, Template, TritonSource
from inductor_plugin.templates.triton_attention.backward import TritonAttentionBackward
from inductor_plugin.templates.triton_attention.decode import TritonAttentionDecode
from inductor_plugin.templates.triton_attention.forward import TritonAttention
from tests.support.attention import backward_cases
from tests.support.attention.backward_cases import Case
from tests.support.attention.forward_cases import meta_operands_of, problem_of
from tests.support.attention.lowering import graph, source_of
from tests.support.triton import interpreter

OUT = RESULTS / "attention_triton.json"
GPUS = ("A100", "H200", "B200")
DIMS = range(32, 257, 8)
"""All head dims of the backward; the forward supports 8, 16 and 24 as well."""
MASKS = {
    "none": Mask(),
    "causal": Mask(right=0),
    "window": Mask(100, 50, bottom_right=True),
}
BACKWARD = "backward"
SOFTCAP = 30.0
"""Bound of the scores, that of Gemma 2's logits."""
KINDS = (
    *MASKS, "varlen", "decode", "bias", "softcap", BACKWARD, f"{BACKWARD} window",
    f"{BACKWARD} varlen", f"{BACKWARD} bias", f"{BACKWARD} bias causal", f"{BACKWARD} softcap",
)  # fmt: skip
"""What is compiled for each head dim: dense with each mask, sequences with a causal one, decoding, a full
bias without a mask, a soft-cap with a causal one; and gradients: dense with a causal mask, with a window,
sequences, a bias without a mask and with a causal one, a soft-cap."""
FEWEST_REGISTERS = 32
"""With fewer nothing is computed: Triton silently compiles kernels it cannot handle to a trap."""
LENGTH = 4096
"""Queries and keys; more than enough programs for the largest block."""
TEMPLATES = {
    "triton_attention": "templates/triton_attention/forward.jinja",
    "triton_attention_decode": "templates/triton_attention/decode.jinja",
    "triton_attention_backward": "templates/triton_attention/backward.jinja",
}
"""Sources of the kernels; the constants follow from a kernel's name and its row."""


@dataclass(frozen=True)
class Row:
    """Resources of one kernel.

    Attributes:
        gpu: The GPU it is compiled for.
        template: Its template.
        head_dim: D and Dv.
        mask: One of `KINDS`.
        dtype: Type of q, k and v.
        name: Name of the candidate.
        registers: Registers of a thread.
        spills: Bytes a thread writes to memory for want of registers, and reads.
        shared: Bytes of shared memory of a block.
    """

    gpu: str
    template: str
    head_dim: int
    mask: str
    dtype: str
    name: str
    registers: int
    spills: int
    shared: int

    @property
    def key(self) -> tuple[str | int, ...]:
        """What identifies the row."""
        return self.gpu, self.template, self.head_dim, self.mask, self.dtype, self.name


def problems(
    gpu: Target, dims: Sequence[int], masks: Sequence[str], dtype: str
) -> Iterator[tuple[Template, str, Problem]]:
    """Yield the attentions whose candidates are compiled, with the template of each."""
    for dim, name in product(dims, masks):
        case = case_of(name, dim, dtype)
        if name.startswith(BACKWARD):
            operands = backward_cases.meta_operands_of(case)
            yield TritonAttentionBackward(), name, backward_cases.problem_of(case, operands, gpu)
        else:
            template = TritonAttentionDecode() if name == "decode" else TritonAttention()
            yield template, name, problem_of(case, meta_operands_of(case), gpu)


def case_of(kind: str, dim: int, dtype: str) -> Case:
    """Return the attention of one of `KINDS`; gradients have four heads of q for each of k and v."""
    backward = kind.startswith(BACKWARD)
    features = set(kind.split())
    causal = features & {"causal", "varlen", "softcap"} or kind == BACKWARD
    lengths: Any = (LENGTH // 2,) * 4 if "varlen" in features else LENGTH
    case = Case(
        lengths, lengths, MASKS["window" if "window" in features else "causal" if causal else "none"],
        heads=8, kv_heads=2 if backward else 8, batch=1 if "varlen" in features else 2, head_dim=dim,
        dtype=getattr(torch, dtype),
    )  # fmt: skip
    if kind == "decode":
        return replace(case, queries=1, heads=32, batch=4)
    if "bias" in features:
        return replace(case, bias=(case.batch, case.heads, LENGTH, LENGTH))
    return replace(case, softcap=SOFTCAP) if "softcap" in features else case


def compiled(gpu: Target, mask: str, problem: Problem, candidate: Candidate) -> Row:
    """Compile one candidate; called within `as_target` of the GPU."""
    arch = gpu.capability[0] * 10 + gpu.capability[1]
    assert isinstance(candidate.kernel, TritonSource)
    usage = interpreter.compiled(source_of(problem, candidate), arch)
    q = problem.inputs[attention_of(problem).operands.index("q")]
    return Row(
        gpu=gpu.name,
        template=candidate.template,
        head_dim=q.size[-1],
        mask=mask,
        dtype=q.dtype,
        name=candidate.name,
        registers=usage.registers,
        spills=usage.spills,
        shared=usage.shared,
    )


def complaints(rows: Sequence[Row]) -> list[str]:
    """Return a line for each problem of a kernel."""
    lines: list[str] = []
    for row in rows:
        what = f"{row.template} {row.name}, head dim {row.head_dim}, {row.mask}, {row.dtype}, {row.gpu}"
        if row.spills:
            lines.append(f"{what}: {row.spills} bytes spilled with {row.registers} registers")
        if row.registers < FEWEST_REGISTERS:
            lines.append(f"{what}: {row.registers} registers, so that it can compute nothing")
        room = target(row.gpu).shared_per_block
        if row.shared > room:
            lines.append(f"{what}: {row.shared} bytes of shared memory of {room}")
    return lines


def joined(out: Path, rows: Sequence[Row]) -> list[Row]:
    """Return these rows, and those of the file with the same sources."""
    stored_rows = {row.key: row for row in stored(out)}
    measured = {(row.gpu, row.template, row.head_dim, row.mask, row.dtype) for row in rows}
    kept = [row for key, row in stored_rows.items() if key[:5] not in measured]
    return sorted([*kept, *rows], key=lambda row: row.key)


def stored(out: Path) -> list[Row]:
    """Return the rows of a file whose templates have not changed."""
    if not out.exists():
        return []
    report = json.loads(out.read_text())
    rows = [Row(**fields) for fields in report["kernels"]]
    now = digests()
    return [row for row in rows if report["sources"].get(row.template) == now[row.template]]


def held(
    out: Path, gpu: Target, mask: str, problem: Problem, candidates: Sequence[Candidate]
) -> bool:
    """Return whether a file has all these kernels of a problem."""
    attention = attention_of(problem)
    facts = attention.head_dim, mask, attention.dtype
    keys = {row.key for row in stored(out)}
    return {(gpu.name, x.template, *facts, x.name) for x in candidates} <= keys


def digests() -> dict[str, str]:
    """Return a digest of each template's text."""
    return {name: sources_digest((path,)) for name, path in TEMPLATES.items()}


def main() -> int:
    """Compile, write the file, and print what spills."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gpu", nargs="+", default=list(GPUS))
    parser.add_argument("--dim", nargs="+", type=int, default=list(DIMS))
    parser.add_argument("--mask", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--first", type=int, default=12, help="candidates of each")
    parser.add_argument("--missing", action="store_true", help="only what the file does not hold")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for gpu in map(target, arguments.gpu):
        for template, mask, problem in problems(
            gpu, arguments.dim, arguments.mask, arguments.dtype
        ):
            chosen = template.candidates(problem)[: arguments.first]
            if arguments.missing and held(arguments.out, gpu, mask, problem, chosen):
                continue
            with as_target(gpu), graph():
                for candidate in chosen:
                    rows.append(compiled(gpu, mask, problem, candidate))
                    print(" ".join(map(str, asdict(rows[-1]).values())), flush=True)
            write(arguments.out, joined(arguments.out, rows))
    wrong = complaints(rows)
    print("\n".join(wrong) or f"{len(rows)} kernels, none spills")
    return 1 if wrong else 0


def write(out: Path, rows: Sequence[Row]) -> None:
    """Write the file."""
    report = {
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "sources": digests(),
        "kernels": [asdict(row) for row in rows],
    }
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
