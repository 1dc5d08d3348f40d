"""The CUTLASS kernels of the fused cases: lowered without a GPU, with the very call that is written.

`offered` runs in a worker that sees no GPU. A kernel goes to the checker as the text of its call, so
that the views of operands are those of generated code.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.kernels.call import ExternKernel, OpKernel, SequenceKernel, Tensor
from inductor_plugin.tuning.task import CppBuild, TaskCandidate
from inductor_plugin.worker.jobs import BenchCandidate
from tests.gpu.harness.fused_cases import FusedCase, cases
from tests.gpu.harness.offers import GPU, LIBRARY, Offered, argument
from tests.support.lowering import Lab

OPERATOR = "torch.ops.inductor_plugin.cutlass_mm_epilogue.out"
FIRST = 2
"""Kernels of a plain case that run: the best two have different tiles or schedules."""


@dataclass(frozen=True)
class WrittenCall:
    """A call of the operator in generated code.

    Attributes:
        names: The graph's inputs, in order.
        a: A, as it is written.
        b: B.
        operands: What the epilogue reads, as it is written.
        aux: Names of what it writes besides ``out``.
        out: Name of the last of its writes.
        buffers: What is allocated, by name.
        returned: Names of what the graph returns, in order.
        kernel: ``SYMBOL@DIGEST``, or ``SYMBOL@PATH`` once it is built.
        launch: What follows the kernel's name.
    """

    names: tuple[str, ...]
    a: str
    b: str
    operands: str
    aux: tuple[str, ...]
    out: str
    buffers: tuple[tuple[str, Tensor], ...]
    returned: tuple[str, ...]
    kernel: str
    launch: tuple[Any, ...]


@dataclass(frozen=True)
class FusedOffer(Offered):
    """One CUTLASS kernel with an epilogue, not built yet."""

    call: WrittenCall

    def at(self, library: str, symbol: str) -> FusedOffer:
        """Return it with the library it was built into."""
        if not library:
            return self
        return replace(self, call=replace(self.call, kernel=f"{symbol}@{library}"))


def fused_case(identity: str) -> FusedCase:
    """Return a case by its name."""
    return cases()[identity]


def is_visited(candidate: BenchCandidate) -> bool:
    """Return True for a CUTLASS kernel with an epilogue."""
    kernel = candidate.kernel
    return isinstance(kernel, SequenceKernel) and isinstance(kernel.parts[0].kernel, OpKernel)


def visited_first(candidate: BenchCandidate) -> float:
    """Say that CUTLASS kernels with an epilogue are the fastest, at times a GPU could have."""
    if isinstance(candidate.kernel, SequenceKernel):
        return 0.0090 if is_visited(candidate) else 0.0200
    return 0.0100 if isinstance(candidate.kernel, ExternKernel) else 0.0102


def offered(identities: Sequence[str], inductor_dir: str) -> dict[str, list[Offered] | str]:
    """Lower cases for a GPU that is not there, and return the kernels of each, or why not."""
    from inductor_plugin.config import set_environment

    set_environment({"TORCHINDUCTOR_CACHE_DIR": inductor_dir})
    torch.set_grad_enabled(True)  # a worker has switched it off; a user's process has not
    return {identity: _attempted(identity) for identity in identities}


def _attempted(identity: str) -> list[Offered] | str:
    try:
        return _lowered(fused_case(identity), identity)
    except Exception as error:  # noqa: BLE001  a case that does not lower costs itself alone
        return f"{type(error).__name__}: {error}"


def _lowered(given: FusedCase, identity: str) -> list[Offered] | str:
    with (
        tempfile.TemporaryDirectory() as folder,
        as_target(GPU),
        Lab(visited_first, Path(folder)).open() as lab,
    ):
        arguments = [argument(one) for one in given.specs]
        code = lab.lower(
            given.function, *arguments, gemm_backends="ATEN,TRITON,CUTLASS", max_candidates=4
        )
        entries = [one for work in lab.tasks for one in work.entries]
        mine = [one for one in entries if one.name.startswith("fused.cutlass")]
        if not mine:
            return (
                f"no CUTLASS kernel with an epilogue; offered are {[one.name for one in entries]}"
            )
        most = FIRST if given.name.endswith(": bf16") else 1
        return [_offered(identity, one, code) for one in mine[:most]]


def _offered(identity: str, entry: TaskCandidate, code: str) -> FusedOffer:
    assert entry.bench is not None
    assert isinstance(entry.build, CppBuild)
    candidate = entry.bench(LIBRARY, "symbol")
    assert isinstance(candidate.kernel, SequenceKernel)
    (part,) = candidate.kernel.parts
    kernel, *launch = part.arguments[3:-1]
    call = replace(written(code), kernel=str(kernel), launch=tuple(launch))
    about = f"{entry.name} {entry.description}"
    return FusedOffer(identity, entry.candidate_id, entry.name, about, entry.build, candidate, call)


def written(code: str) -> WrittenCall:
    """Return the one call of a CUTLASS kernel with an epilogue in generated code.

    Raises:
        LookupError: There is none, or there are several.
    """
    found = re.findall(rf"^ *({re.escape(OPERATOR)}\(.*\))$", code, re.M)
    if len(found) != 1:
        raise LookupError(f"{len(found)} calls of {OPERATOR} are written, not one")
    call: Any = ast.parse(found[0], mode="eval").body
    a, b, operands, *kernel, aux = call.args
    named = {one.arg: ast.unparse(one.value) for one in call.keywords}
    names = re.search(r"^ *(\w+(?:, \w+)*),? = args$", code, re.M)
    (returned,) = re.findall(r"^ *return \((.*?),? ?\)$", code, re.M)
    if names is None:
        raise LookupError("the code takes no arguments")
    made = re.findall(
        r"^ *(buf\d+) = empty_strided_cuda\((\(.*?\)), (\(.*?\)), torch\.(\w+)\)", code, re.M
    )
    buffers = tuple(
        (name, Tensor(ast.literal_eval(size), ast.literal_eval(stride), dtype, "cuda:0"))
        for name, size, stride, dtype in made
    )
    launch = [ast.literal_eval(one) for one in kernel]
    return WrittenCall(
        names=tuple(names[1].split(", ")),
        a=ast.unparse(a),
        b=ast.unparse(b),
        operands=ast.unparse(operands),
        aux=tuple(ast.unparse(one) for one in aux.elts),
        out=named["out"],
        buffers=buffers,
        returned=tuple(one.strip() for one in returned.split(", ")),
        kernel=launch[0],
        launch=tuple(launch[1:]),
    )
