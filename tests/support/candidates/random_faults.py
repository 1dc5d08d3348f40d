"""A template for every product on a CPU whose candidates mostly fail, in ways that depend on the problem.

A worker imports this module because an `OpKernel` names it. The correct operator counts its calls, so
that a test can check that it ran.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import ctypes
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.errors import CallRefusedError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate

CALLS: Counter[str] = Counter()
"""Calls in this process, by fault."""

COSTLY_ONE_IN = 48
"""A crash costs a worker, 4 s, and a hang the time limit of a candidate: few problems have them."""

Fault = Callable[[Tensor, Tensor], object]


def _raises(out: Tensor, right: Tensor) -> None:
    raise ValueError("this candidate raises")


def _refuses(out: Tensor, right: Tensor) -> None:
    raise CallRefusedError("this candidate takes no such operands")


def _nan(out: Tensor, right: Tensor) -> None:
    out.copy_(right)
    out.view(-1)[-1:] = torch.nan


def _hangs(out: Tensor, right: Tensor) -> None:
    ctypes.CDLL(None).sleep(600)


RIGHT: dict[str, Fault] = {"good": lambda out, right: out.copy_(right)}
CHEAP: dict[str, Fault] = {
    "raises": _raises,
    "refuses": _refuses,
    "wrong": lambda out, right: out.copy_(right * 1.5),
    "turned": lambda out, right: out.copy_(right.flip(-1)),
    "writes_nothing": lambda out, right: None,
    "nan": _nan,
}
COSTLY: dict[str, Fault] = {"segfaults": lambda out, right: ctypes.string_at(0), "hangs": _hangs}

_library = torch.library.Library("random_faults", "FRAGMENT")


def _define(name: str, fault: Fault) -> None:
    def product(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        CALLS[name] += 1
        fault(out, torch.matmul(a, b))
        return out

    def added(
        bias: Tensor, a: Tensor, b: Tensor, alpha: float, beta: float, *, out: Tensor
    ) -> Tensor:
        CALLS[name] += 1
        compute = torch.addmm if a.dim() == 2 else torch.baddbmm
        fault(out, compute(bias, a, b, alpha=alpha, beta=beta))
        return out

    _library.define(f"{name}(Tensor a, Tensor b, *, Tensor(x!) out) -> Tensor(x!)")
    _library.define(
        f"{name}.added(Tensor bias, Tensor a, Tensor b, float alpha, float beta, *, "
        "Tensor(x!) out) -> Tensor(x!)"
    )
    _library.impl(name, product, "CPU")
    _library.impl(f"{name}.added", added, "CPU")


for _name, _fault in {**RIGHT, **CHEAP, **COSTLY}.items():
    _define(_name, _fault)


def faults_of(problem: Problem) -> list[str]:
    """Return the candidates of a problem: a correct one, and two or three faulty ones."""
    text = json.dumps(problem.fields(), sort_keys=True)
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    cheap = sorted(CHEAP)
    names = ["good", cheap[number % 6], cheap[(number // 6 + 1 + number) % 6]]
    if number % COSTLY_ONE_IN == 0:
        names.append(sorted(COSTLY)[number // COSTLY_ONE_IN % 2])
    return list(dict.fromkeys(names))


class RandomFaults:
    """Offers the candidates of `faults_of`."""

    name = "random_faults"
    version = "1"
    ops = ("mm", "bmm", "addmm", "baddbmm")

    def reject(self, problem: Problem) -> str | None:
        del problem
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        arguments = dict(problem.arguments)
        args: tuple[float, ...] = ()
        overload = ""
        if len(problem.inputs) == 3:
            args = float(arguments.get("alpha", "1")), float(arguments.get("beta", "1"))
            overload = ".added"
        return [
            Candidate(
                self.name,
                fault,
                {"fault": fault, "args": repr(args)},
                OpKernel(
                    f"random_faults::{fault}{overload}",
                    args,
                    ("tests.support.candidates.random_faults",),
                ),
            )
            for fault in faults_of(problem)
        ]


@contextmanager
def offered() -> Generator[None]:
    """Register the template for the block."""
    template: Any = RandomFaults()
    default_registry().register(template)
    try:
        yield
    finally:
        default_registry().unregister(template.name)
