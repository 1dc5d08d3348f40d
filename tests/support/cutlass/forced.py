"""Forces CUTLASS kernels to win where graphs are lowered for a simulated CUDA device."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.worker.jobs import BenchCandidate
from tests.support import gpu
from tests.support.lowering import Lab

BACKENDS = "ATEN,CUTLASS"


@dataclass(frozen=True)
class Written:
    """One call of a CUTLASS operator in generated code.

    Attributes:
        op: Its name.
        operands: Source text of the tensors.
        kernel: ``SYMBOL@DIGEST``.
        arguments: Positional arguments after the kernel's name.
        named: Source text of the keyword arguments.
    """

    op: str
    operands: tuple[str, ...]
    kernel: str
    arguments: tuple[object, ...]
    named: dict[str, str]

    @property
    def symbol(self) -> str:
        return self.kernel.partition("@")[0]


def fastest(part: str) -> Callable[[BenchCandidate], float]:
    """Return a clock by which kernels with ``part`` in their name are ten times faster."""

    def clock(candidate: BenchCandidate) -> float:
        return 1.0 if part in candidate.candidate_id else 10.0

    return clock


@contextmanager
def opened(part: str, cache_dir: Path, lab: type[Lab] = Lab) -> Generator[Lab]:
    """Open a lab on a simulated device, where kernels with ``part`` in their name win."""
    with gpu.installed(), lab(fastest(part), cache_dir).open() as running:
        yield running


def calls(code: str) -> list[Written]:
    """Return the calls of CUTLASS operators in generated code in order, those with copies included."""
    lines = re.findall(
        r"^ *(torch\.ops\.inductor_plugin\.(?:cutlass|copied)_\w+\.out\(.*\))$", code, re.M
    )
    return [_parsed(line) for line in lines]


def _parsed(line: str) -> Written:
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    kernel = next(i for i, argument in enumerate(call.args) if isinstance(argument, ast.Constant))
    named = call.args[kernel]
    assert isinstance(named, ast.Constant)
    return Written(
        op=ast.unparse(call.func).removeprefix("torch.ops.inductor_plugin."),
        operands=tuple(ast.unparse(operand) for operand in call.args[:kernel]),
        kernel=str(named.value),
        arguments=tuple(ast.literal_eval(argument) for argument in call.args[kernel + 1 :]),
        named={str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords},
    )
