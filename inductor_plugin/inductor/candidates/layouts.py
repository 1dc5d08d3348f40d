"""Layouts in Inductor's graph: candidates behind copies, and inputs that keep the strides they were measured with.

An input whose layout is still open (`ir.FlexibleLayout`) is measured with the strides it would have. When
the graph is lowered, Inductor decides what is open by the order in which each buffer is filled
(`GraphLowering.finalize`); before that, what a chosen kernel reads is fixed to what was measured. What
somebody else has fixed otherwise by then is not what was measured: the library kernel runs.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.facts import compat
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.copied import MOST_OPERANDS, how, name_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import LayoutVerdict
from inductor_plugin.problem.layout import judge_problem, laid, why_not_copied
from inductor_plugin.template import Candidate, Contracted, CudaSource, Template

logger = logging.getLogger(__name__)

COPIED = 4
"""Candidates behind copies that one template offers for a problem."""
COPIES = "_copied"
"""What is written behind a template's name where its kernels refuse a problem even behind copies."""


@dataclass(frozen=True)
class Read:
    """One input of a call as it was measured.

    Attributes:
        node: The input: a buffer, or a view of one.
        stride: Its strides then.
    """

    node: Any
    stride: tuple[Any, ...]

    @property
    def moved(self) -> bool:
        """Whether it lies otherwise now; what is still open does not."""
        if is_open(self.node):
            return False
        now = self.node.get_stride()
        pairs = zip(self.node.get_size(), self.stride, now, strict=True)
        return any(
            then != stride and not V.graph.sizevars.statically_known_equals(then, stride)
            for extent, then, stride in pairs
            if extent != 1
        )


class Layouts:
    """The inputs of a call as they were measured, and what becomes of them."""

    def __init__(self, call: AutotuneCall) -> None:
        """Keep the strides the inputs of a call have now, or would have if nothing else decides them."""
        self._call = call
        self._reads = [
            Read(node, tuple(_measured(node)))
            for node in call.nodes
            if isinstance(_inner(node), (ir.Buffer, ir.BaseView))
        ]

    @property
    def open(self) -> bool:
        """Whether the layout of an input is still to be decided."""
        return any(is_open(one.node) for one in self._reads)

    def hold(self) -> None:
        """Fix what is still open to the strides that were measured."""
        for one in self._reads:
            if is_open(one.node):
                _inner(one.node).freeze_layout_with_exact_strides(list(one.stride))

    def moved(self) -> list[Read]:
        """Return the inputs that lie otherwise than they were measured."""
        return [one for one in self._reads if one.moved]

    def kept(self, choice: Any, libraries: Sequence[Any]) -> Any:
        """Return a choice, or the library kernel, with one warning, where an input has moved.

        Args:
            choice: What was measured to be the fastest.
            libraries: The library kernels, which take any strides.
        """
        found = self.moved()
        if not found or not libraries or choice in libraries:
            return choice
        said = "; ".join(
            f"{one.node.get_name()} was measured with strides {_text(one.stride)} and has "
            f"{_text(one.node.get_stride())}"
            for one in found
        )
        warn_once(
            f"{self._call.problem.describe()}: {said}, which something else in the graph asks for; {libraries[0].name} runs "
            f"instead of {choice.name}"
        )
        return libraries[0]


def before_layouts(graph: GraphLowering, act: Callable[[], None]) -> None:
    """Call ``act`` before Inductor decides the layouts of a graph that are still open."""
    original = graph.finalize

    def finalize() -> None:
        act()
        original()

    graph.finalize = finalize


def is_open(node: Any) -> bool:
    """Return whether the layout of an input is still to be decided; a view's is its own."""
    inner = _inner(node)
    return isinstance(inner, ir.Buffer) and isinstance(inner.layout, ir.FlexibleLayout)


def offered(template: Template, problem: Problem) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates of a template, those behind copies last, and why some are not offered."""
    refused: dict[str, str] = {}
    reason = template.reject(problem)
    if reason is not None:
        refused[template.name] = reason
    found = [] if reason else [*template.candidates(problem)]
    copied = copied_candidates(template, problem)
    if isinstance(copied, str):
        refused[f"{template.name}{COPIES}"] = copied
    return [*found, *(copied if isinstance(copied, list) else ())], refused


def copied_candidates(template: Template, problem: Problem) -> list[Candidate] | str | None:
    """Return the candidates of a template behind copies; why there are none; None if nothing needs one.

    Only operators can copy when they are called. The kernels Inductor generates would have to have
    their copies in the graph, where all other candidates would pay for them.
    """
    if not isinstance(template, Contracted) or len(problem.inputs) > MOST_OPERANDS:
        return None
    verdict = judge_problem(template.contract(problem.op), problem, preferred=True)
    if verdict.kind != "copy":
        return None
    there = laid(problem, verdict)
    if reason := template.reject(there):
        return reason
    made = [_behind_copies(one, verdict) for one in template.candidates(there)]
    found = [one for one in made if one is not None][:COPIED]
    return (why_not_copied(problem, verdict) or found) if found else None


def _behind_copies(candidate: Candidate, verdict: LayoutVerdict) -> Candidate | None:
    kernel = candidate.kernel
    recipes = {index: one.recipe for index, one in verdict.copies.items()}
    op = name_of(len(verdict.verdicts) - 1)
    imports = ("inductor_plugin.ops.copied",)
    if isinstance(kernel, CudaSource):
        given = (kernel.op, how(kernel.op, kernel.arguments, kernel.imports, recipes))
        kernel = replace(kernel, op=op, arguments=given, imports=imports)
    elif isinstance(kernel, OpKernel):
        kernel = OpKernel(
            op, ("", kernel.op, how(kernel.op, kernel.args, kernel.imports, recipes)), imports
        )
    else:
        return None
    which = "_".join(str(index) for index in recipes)
    return replace(
        candidate,
        name=f"{candidate.name}_copied_{which}",
        config={**candidate.config, "copied_bytes": verdict.copied_bytes},
        kernel=kernel,
        description=f"{candidate.description}, {verdict.copied_bytes} bytes copied".lstrip(", "),
    )


def _measured(node: Any) -> Sequence[Any]:
    """Return the strides an input is measured with: those that templates were generated for."""
    recorded: Any = V.graph.buffer_layout_constraints.get(node.get_name())
    if recorded is not None and is_open(node):
        return recorded.stride
    return compat.strides(node)


def _inner(node: Any) -> Any:
    """Return the buffer or view in its boxes."""
    while isinstance(node, ir.MutableBox):
        node = node.data
    return node


def _text(stride: Sequence[Any]) -> str:
    return f"({', '.join(map(str, stride))})"


@functools.cache
def warn_once(text: str) -> None:
    """Warn once a process for each problem that has moved."""
    logger.warning("%s", text)
