"""Graphs out of Inductor's cache: each carries its decisions, for ``TORCH_TRACE``, and is served under a job where the ranks agree to them, unless it is due.

A rank that finds a graph in Inductor's cache would run the decisions of an earlier job, while another rank, which does not
find it, takes those of this job.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._inductor import codecache, output_code

from inductor_plugin.cache.graph import LIBRARY, HeldProblems
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.cache.remote.exchange import is_worth_sending
from inductor_plugin.config import Config
from inductor_plugin.errors import DeviceError
from inductor_plugin.inductor.facts.scope import active_config, host_counts
from inductor_plugin.inductor.graph import due, torch_trace
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import of_verdict
from inductor_plugin.tuning.ranks.board import publish
from inductor_plugin.tuning.ranks.job import Job, current, joined
from inductor_plugin.tuning.ranks.ledger import LEDGER
from inductor_plugin.tuning.ticket import TuningTicket

if TYPE_CHECKING:
    from inductor_plugin.tuning.runtime import DeviceContext

logger = logging.getLogger(__name__)

_MARK = "inductor_plugin_decisions"
_LAST = threading.local()
"""Of each thread that compiles: the decisions of the graph that it has lowered last, and then that graph."""


class GraphDecision(NamedTuple):
    """A decision in a graph, which is stored as a plain tuple.

    Attributes:
        group: The ranks that would take it together.
        problem: Operator and digest; `GRAPH` and its own digest for what the graph gives up.
        winner: What was decided for; the graph may still have given it up.
        library: The library kernel.
    """

    group: str
    problem: str
    winner: str
    library: str | None

    @property
    def is_of_graph(self) -> bool:
        """Whether it says what the graph gives up."""
        return self.problem.startswith(f"{GRAPH}/")


def forget_decisions() -> None:
    """Forget the decisions of the graph that this thread has compiled last: it was not stored."""
    _LAST.decisions, _LAST.lowered = (), None


def add_decisions(tickets: Iterable[tuple[str, TuningTicket]]) -> None:
    """Remember decisions of the graph that this thread compiles, each with the name of its group; its branches and loops add their own."""
    added = (
        GraphDecision(group, f"{t.problem.op}/{t.digest}", winner, t.verdict.library)
        for group, t in tickets
        if t.verdict is not None and (winner := t.verdict.given_up or t.verdict.winner) is not None
    )
    _LAST.decisions = tuple(dict.fromkeys([*getattr(_LAST, "decisions", ()), *added]))


def add_graph(context: DeviceContext, name: str, given_up: HeldProblems) -> None:
    """Remember what the graph that this thread has compiled gives up; ranks decide that, too.

    Args:
        context: What the graph is decided on.
        name: The graph, as a problem of ranks.
        given_up: The problems whose library kernel runs in it.
    """
    group = context.terms(host_counts=host_counts()).group
    added = GraphDecision(group, name, given_up.candidate, LIBRARY)
    _LAST.decisions = (*getattr(_LAST, "decisions", ()), added)


def install() -> None:
    """Let graphs out of Inductor's cache be served where the job agrees, and let `verify_ranks` see all graphs."""
    _wrap(codecache.FxGraphCache, "_lookup_graph", _looking_up, static=True)
    _wrap(output_code.CompiledFxGraph, "post_compile", _noting, static=False)


def uninstall() -> None:
    """Restore Inductor's own functions."""
    _unwrap(codecache.FxGraphCache, "_lookup_graph", static=True)
    _unwrap(output_code.CompiledFxGraph, "post_compile", static=False)


def carry_decisions(compiled_graph: Any) -> tuple[GraphDecision, ...]:
    """Return the decisions in a graph, which it takes along from now on, into Inductor's cache, too."""
    if not hasattr(compiled_graph, _MARK):
        decisions: list[GraphDecision] = list(getattr(_LAST, "decisions", ()))
        setattr(compiled_graph, _MARK, tuple(tuple(fields) for fields in decisions))
        _LAST.decisions, _LAST.lowered = (), compiled_graph
    return tuple(GraphDecision(*fields) for fields in getattr(compiled_graph, _MARK))


def _wrap(owner: Any, name: str, wrapper: Any, *, static: bool) -> None:
    stock = getattr(owner, name)
    if getattr(stock, "__module__", "") == __name__:
        return
    wrapped = functools.wraps(stock)(wrapper(stock))
    wrapped.__module__ = __name__
    setattr(owner, name, staticmethod(wrapped) if static else wrapped)


def _unwrap(owner: Any, name: str, *, static: bool) -> None:
    wrapped = getattr(owner, name)
    if getattr(wrapped, "__module__", "") == __name__:
        stock = wrapped.__wrapped__
        setattr(owner, name, staticmethod(stock) if static else stock)


def _looking_up(stock: Any) -> Any:
    def lookup_graph(*arguments: Any, **keywords: Any) -> Any:
        forget_decisions()  # those of a graph that was not stored are not the next one's
        graph, *rest = stock(*arguments, **keywords)
        config = active_config()
        key = arguments[0] if arguments else keywords.get("key", "")
        if graph is not None and config is not None and due.is_dropped(graph, key, config):
            return (None, *rest)
        job = None if graph is None or config is None else current(config)
        if job is None or config is None or _is_agreed(job, config, graph):
            return (graph, *rest)
        return (None, *rest)

    return lookup_graph


def _is_agreed(job: Job, config: Config, graph: Any) -> bool:
    """Return whether the ranks of a job decide as a graph in Inductor's cache."""
    decisions = carry_decisions(graph)
    contexts = _contexts(config, graph) if decisions else {}
    for decision in decisions:
        context = contexts.get(decision.group)
        if context is None:
            logger.info("a graph in Inductor's cache was decided in another environment")
            return False
        verdict = Verdict(decision.winner, decision.library, "from Inductor's cache")
        record = None
        if not decision.is_of_graph:
            op, _, digest = decision.problem.partition("/")
            # With the times, by which other ranks judge fusions as the earlier job did.
            record = context.store.record(context.environment, op, digest)
            if config.policy == "cached" and (record is None or not is_worth_sending(record)):
                # It was compiled alone, from nothing: others are not to be kept from tuning by it.
                logger.info("a graph in Inductor's cache rests on no measurement")
                return False
        own = of_verdict(verdict, record, job.rank)
        agreed = publish(job, decision.group, decision.problem, own)
        if agreed is None or agreed.winner != decision.winner:
            logger.info("a graph in Inductor's cache decides %s otherwise", decision.problem)
            return False
    return True


def _contexts(config: Config, graph: Any) -> dict[str, DeviceContext]:
    """Return the groups in which this process decides about a graph: since it was stored, a driver or compiler may have changed."""
    # 0.2 s, which a process needs only as a rank.
    from inductor_plugin.inductor.facts.problem import device_text  # noqa: PLC0415
    from inductor_plugin.inductor.facts.toolchain import software_of  # noqa: PLC0415
    from inductor_plugin.tuning.runtime import RUNTIME  # noqa: PLC0415

    devices = {
        device_text(torch.device(kind, index))
        for kind in graph.device_types
        for index in [*graph.device_idxs] or [0]
    }
    contexts: dict[str, DeviceContext] = {}
    for device in devices:
        with suppress(DeviceError):  # nothing is tuned there
            context = RUNTIME.context(config, device, software_of(device))
            contexts[context.terms(host_counts=host_counts()).group] = context
    return contexts


def _noting(stock: Any) -> Any:
    def post_compile(self: Any, *arguments: Any, **keywords: Any) -> Any:
        config = active_config()
        decisions = () if config is None else carry_decisions(self)
        lowered, _LAST.lowered = getattr(_LAST, "lowered", None), None
        if decisions and lowered is not self:
            # Out of Inductor's cache; what was decided while it was lowered was written then.
            torch_trace.write_stored([(d.problem, d.winner, d.library) for d in decisions])
        if config is not None and joined() is not None:
            kernels = [each for each in decisions if not each.is_of_graph]
            LEDGER.add_winners({f"{each.group}/{each.problem}": each.winner for each in kernels})
            LEDGER.add_code([each.problem for each in kernels], getattr(self, "source_code", ""))
        return stock(self, *arguments, **keywords)

    return post_compile
