"""The contract of a kernel provider: what it can run, and with which kernels, best first.

    problem ─► reject(problem) ─► a reason, kept for `explain`
                    │ None
                    ▼
               candidates(problem) ─► Candidate, Candidate, ...

A template states facts. It asks no device, reads no cache and starts no process, so that the same
answers come out on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from inductor_plugin.jobs import OpKernel
from inductor_plugin.problem import Problem

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON file can hold; a configuration is stored as it is."""


@dataclass(frozen=True)
class Candidate:
    """One kernel that computes a problem.

    Attributes:
        template: Name of the template it comes from.
        name: Its own name, unique within the template: lower-case and stable, since records keep it.
        config: What the template chose (tile, stages, schedule ...); shown and stored, part of the
            candidate's identity.
        kernel: The torch operator to call, with a variant that writes to ``out=``.
        description: One line for the AUTOTUNE table.
    """

    template: str
    name: str
    config: Mapping[str, Json]
    kernel: OpKernel
    description: str = ""


@dataclass(frozen=True)
class Failed:
    """A candidate that could not be made; a value, since the other candidates go on.

    Attributes:
        reason: One line for people.
    """

    reason: str


@runtime_checkable
class Template(Protocol):
    """A family of kernels for some operators.

    Attributes:
        name: Lower-case, stable, unique in a registry; part of every key.
        ops: Inductor's names of the operators it serves (``mm``, ``addmm`` ...).
    """

    @property
    def name(self) -> str:
        """Return the template's name."""
        ...

    @property
    def ops(self) -> tuple[str, ...]:
        """Return the operators it serves."""
        ...

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        ...

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first. Only called if not rejected."""
        ...
