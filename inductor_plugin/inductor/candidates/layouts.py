"""Layouts in Inductor's graph: candidates that copy operands, and inputs that keep their measured strides.

An input whose layout is still open (`ir.FlexibleLayout`) is measured with the strides it would have.
When the graph is lowered, Inductor decides open layouts by the order in which each buffer is filled
(`GraphLowering.finalize`); before that, the inputs of a chosen kernel are fixed to the measured strides.
If another part of the graph has fixed other strides by then, the measurement is not valid: the library
kernel runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from inductor_plugin.errors import warn_once
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.facts import compat
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.copied import MOST_OPERANDS, how, name_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import LayoutVerdict
from inductor_plugin.problem.layout import judge_problem, laid, why_not_copied
from inductor_plugin.registry import version_of
from inductor_plugin.template import Candidate, Contracted, CudaSource, Template

logger = logging.getLogger(__name__)

COPIED = 4
"""Candidates with copied operands that one template offers for a problem."""
COPIES = "_copied"
"""Appended to a template's name if its kernels refuse a problem even with copied operands."""


@dataclass(frozen=True)
class MeasuredInput:
    """One input of a call as it was measured.

    Attributes:
        node: The input: a buffer, or a view of one.
        stride: Its strides when measured.
    """

    node: Any
    stride: tuple[Any, ...]

    @property
    def moved(self) -> bool:
        """Whether its strides differ now; an open layout counts as unchanged."""
        if is_open(self.node):
            return False
        now = self.node.get_stride()
        pairs = zip(self.node.get_size(), self.stride, now, strict=True)
        return any(
            before != after and not V.graph.sizevars.statically_known_equals(before, after)
            for extent, before, after in pairs
            if extent != 1
        )


class Layouts:
    """The inputs of a call as they were measured, and whether they still are."""

    def __init__(self, call: AutotuneCall) -> None:
        """Keep the strides the inputs of a call have now, or would have if their layouts stay open."""
        self._call = call
        self._reads = [
            MeasuredInput(node, tuple(_measured(node)))
            for node in call.nodes
            if isinstance(_inner(node), (ir.Buffer, ir.BaseView))
        ]

    @property
    def open(self) -> bool:
        """Whether the layout of any input is still open."""
        return any(is_open(read.node) for read in self._reads)

    def hold(self) -> None:
        """Fix open layouts to the strides that were measured."""
        for read in self._reads:
            if is_open(read.node):
                _inner(read.node).freeze_layout_with_exact_strides(list(read.stride))

    def moved(self) -> list[MeasuredInput]:
        """Return the inputs whose strides differ from the measured strides."""
        return [read for read in self._reads if read.moved]

    def kept(self, choice: Any, libraries: Sequence[Any]) -> Any:
        """Return a choice; if an input has other strides now, the library kernel, with one warning.

        Args:
            choice: The choice that was measured as fastest.
            libraries: The library kernels, which take any strides.
        """
        moved = self.moved()
        if not moved or not libraries or choice in libraries:
            return choice
        changes = "; ".join(
            f"{read.node.get_name()} was measured with strides {_text(read.stride)} and has "
            f"{_text(read.node.get_stride())}"
            for read in moved
        )
        warn_once(
            logger,
            f"{self._call.problem.describe()}: {changes}, which something else in the graph asks for; {libraries[0].name} runs "
            f"instead of {choice.name}",
        )
        return libraries[0]


def before_layouts(graph: GraphLowering, act: Callable[[], None]) -> None:
    """Call ``act`` before Inductor decides the open layouts of a graph."""
    original = graph.finalize

    def finalize() -> None:
        act()
        original()

    graph.finalize = finalize


def is_open(node: Any) -> bool:
    """Return whether the layout of an input is still open; a view's layout never is."""
    inner = _inner(node)
    return isinstance(inner, ir.Buffer) and isinstance(inner.layout, ir.FlexibleLayout)


def offered(template: Template, problem: Problem) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates of a template, those with copied operands last, and why some are missing."""
    refused: dict[str, str] = {}
    reason = template.reject(problem)
    if reason is not None:
        refused[template.name] = reason
    direct = [] if reason else [*template.candidates(problem)]
    copied = copied_candidates(template, problem)
    if isinstance(copied, str):
        refused[f"{template.name}{COPIES}"] = copied
    version = version_of(template)
    candidates = (*direct, *(copied if isinstance(copied, list) else ()))
    return [replace(candidate, version=version) for candidate in candidates], refused


def copied_candidates(template: Template, problem: Problem) -> list[Candidate] | str | None:
    """Return a template's candidates with copied operands; or why there are none; None if not needed.

    Only operators can copy when they are called. Kernels that Inductor generates would need the
    copies in the graph, where they would slow down all other candidates too.
    """
    if not isinstance(template, Contracted) or len(problem.inputs) > MOST_OPERANDS:
        return None
    verdict = judge_problem(template.contract(problem.op), problem, preferred=True)
    if verdict.kind != "copy":
        return None
    copied_problem = laid(problem, verdict)
    if reason := template.reject(copied_problem):
        return reason
    copied = [_with_copies(plain, verdict) for plain in template.candidates(copied_problem)]
    offered = [candidate for candidate in copied if candidate is not None][:COPIED]
    return (why_not_copied(problem, verdict) or offered) if offered else None


def _with_copies(candidate: Candidate, verdict: LayoutVerdict) -> Candidate | None:
    kernel = candidate.kernel
    recipes = {index: copy.recipe for index, copy in verdict.copies.items()}
    op = name_of(len(verdict.verdicts) - 1)
    imports = ("inductor_plugin.ops.copied",)
    if isinstance(kernel, CudaSource):
        arguments = (kernel.op, how(kernel.op, kernel.arguments, kernel.imports, recipes))
        kernel = replace(kernel, op=op, arguments=arguments, imports=imports)
    elif isinstance(kernel, OpKernel):
        kernel = OpKernel(
            op, ("", kernel.op, how(kernel.op, kernel.args, kernel.imports, recipes)), imports
        )
    else:
        return None
    copied = "_".join(str(index) for index in recipes)
    return replace(
        candidate,
        name=f"{candidate.name}_copied_{copied}",
        config={**candidate.config, "copied_bytes": verdict.copied_bytes},
        kernel=kernel,
        description=f"{candidate.description}, {verdict.copied_bytes} bytes copied".lstrip(", "),
    )


def _measured(node: Any) -> Sequence[Any]:
    """Return the strides an input is measured with: those its templates were generated for."""
    recorded: Any = V.graph.buffer_layout_constraints.get(node.get_name())
    if recorded is not None and is_open(node):
        return recorded.stride
    return compat.strides(node)


def _inner(node: Any) -> Any:
    """Return the buffer or view inside its boxes."""
    while isinstance(node, ir.MutableBox):
        node = node.data
    return node


def _text(stride: Sequence[Any]) -> str:
    return f"({', '.join(map(str, stride))})"
