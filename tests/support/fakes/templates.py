"""Templates as packages bring them, rightly and wrongly; importable by reference, as those of a package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.template import Candidate

_MATRIX = Operand((8, 8), (8, 1), "float32", "cpu")
PRODUCT = Problem("mm", (_MATRIX, _MATRIX), _MATRIX)


class Plain:
    """A template that has nothing to offer."""

    name = "plain"
    ops = ("mm",)

    def reject(self, problem: Problem) -> str | None:
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return ()


class Other(Plain):
    """Another one."""

    name = "other"


class Misnamed(Plain):
    """One whose name is none."""

    name = "Not A Name"


PLAIN, OTHER = Plain(), Other()
CLASSES = [Plain, Other]


def plain() -> Plain:
    """Return one: an entry point may name a function."""
    return Plain()


def several() -> list[Any]:
    return [Plain(), Other()]


def half_wrong() -> list[Any]:
    return [Plain(), Misnamed()]


def twice() -> list[Any]:
    return [Plain(), Plain()]


def nothing() -> None:
    """Return nothing, as a function that registers by itself does."""


def broken() -> Any:
    """Raise, as the import of a package without its library does."""
    raise OSError("libkernels.so: cannot open shared object file")
