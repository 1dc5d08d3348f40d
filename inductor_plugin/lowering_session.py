"""One graph being compiled: its configuration, its open problems, its report at the end."""

from __future__ import annotations

import functools
import logging
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import ir, select_algorithm
from torch._inductor.graph import GraphLowering

from inductor_plugin import lowering_deferral, lowering_toolchain
from inductor_plugin.config import Config
from inductor_plugin.counters import COUNTERS
from inductor_plugin.decision import guarded
from inductor_plugin.environment import float32_precision, provenance
from inductor_plugin.lowering_choices import Call, is_library, misread, offer_of, unwrapped
from inductor_plugin.lowering_packs import make_ready
from inductor_plugin.lowering_problem import device_text, problem_of, reduction_length
from inductor_plugin.lowering_template import template_choices
from inductor_plugin.numerics import tolerance
from inductor_plugin.offer import Offer
from inductor_plugin.operand_files import OperandFiles
from inductor_plugin.pins import Pins, read_pins
from inductor_plugin.problem import Problem
from inductor_plugin.refusal import remember
from inductor_plugin.registry import default_registry
from inductor_plugin.runtime import RUNTIME, Site
from inductor_plugin.selection import Selection, Ticket
from inductor_plugin.table import summary, table
from inductor_plugin.trace import MAIN_TRACK

logger = logging.getLogger(__name__)

OBSERVERS: list[Callable[[Sequence[Ticket]], None]] = []
"""Are given all problems of a graph once they are decided."""

_SCALED = frozenset({"addmm", "baddbmm", "scaled_mm"})
"""Operators with scalars (alpha, beta ...), which only Inductor's library kernels carry."""

_SESSIONS: weakref.WeakKeyDictionary[GraphLowering, Session] = weakref.WeakKeyDictionary()


class Claim:
    """One call's ticket together with the choices it stands for."""

    def __init__(self, session: Session, ticket: Ticket, choices: Mapping[str, Any]) -> None:
        """Bind a ticket to the choices of one call, by candidate."""
        self._session = session
        self.ticket = ticket
        self._choices = choices

    def winner(self) -> ir.ChoiceCaller:
        """Return the choice that runs, waiting for it if necessary.

        Raises:
            NoValidChoicesError: Nothing could be measured and there is no library kernel.
        """
        self._session.await_ticket(self.ticket)
        chosen = self._session.selection(self.ticket).decide(self.ticket).winner
        if chosen is not None and chosen in self._choices:
            return self._choices[chosen]
        for choice in self._choices.values():
            if is_library(choice):
                return choice
        # Nothing was measured, or not yet: what has not failed may run.
        measured = self.ticket.measured
        for name, choice in self._choices.items():
            if name not in measured or measured[name].status == "skipped":
                return choice
        raise select_algorithm.NoValidChoicesError(
            f"no candidate for {self.ticket.problem.describe()} could be used"
        )

    def timings(self, _hint_override: int | None = None) -> dict[Any, float]:
        """Return milliseconds by choice, the winner the fastest, as Inductor's scheduler asks."""
        winner = self.winner()
        selection = self._session.selection(self.ticket)
        verdict = selection.decide(self.ticket)
        values = guarded(selection.medians(self.ticket), verdict)
        timed = {self._choices[n]: t for n, t in values.items() if n in self._choices}
        # Without timings (a lost worker, a tight budget) the scheduler still needs one entry.
        timed = timed if winner in timed else {winner: 1.0}
        # Where a template does not fit the layout, it looks up every library kernel, failed or not.
        for choice in self._choices.values():
            if is_library(choice):
                timed.setdefault(choice, float("inf"))
        return timed


class Session:
    """The plugin's part in the compile of one graph."""

    def __init__(self, graph: GraphLowering, config: Config) -> None:
        """Follow ``graph`` until its scheduler has decided everything."""
        self.config = config
        self._graph: Callable[[], GraphLowering | None] = weakref.ref(graph)
        self._files = OperandFiles()
        # 0.5 ms a call, of which a model has hundreds.
        self._toolchain = functools.cache(lowering_toolchain.cpp_toolchain)
        self._pins: Pins | None = read_pins(config.pin_file) if config.policy == "pinned" else None
        self._tickets: dict[str, Ticket] = {}
        self._selections: dict[str, tuple[Site, Selection]] = {}
        self._deferred: list[lowering_deferral.Deferred] = []
        self._before = COUNTERS.snapshot()
        self._deadline: float | None = None
        self._reported = False
        _watch(graph, self._settle, self._end)

    def selection(self, ticket: Ticket) -> Selection:
        """Return the selection that decides a ticket."""
        return self._selections[ticket.problem.output.device][1]

    def problem(
        self, name: str, choices: Sequence[Any], nodes: Sequence[Any], layout: ir.Layout
    ) -> Problem:
        """Return the facts of a call."""
        return problem_of(name, nodes, layout, _arguments(choices))

    def with_templates(
        self, problem: Problem, choices: list[Any], nodes: Sequence[Any], layout: ir.Layout
    ) -> tuple[list[Any], dict[str, str]]:
        """Return the choices with those of registered templates, and who is left out and why."""
        wrong = {id(one): misread(one, nodes) for one in choices}
        choices = [one for one in choices if wrong[id(one)] is None]
        make_ready(self.config, problem.target)
        registry = default_registry()
        if problem.op in _SCALED and not any(map(is_library, choices)):
            why = "no library kernel among the choices tells the call's scalars; add ATEN to the backends"
            ours: list[Any] = []
            rejected = {one.name: why for one in registry.for_op(problem.op)}
        else:
            ours, rejected = template_choices(registry, problem, nodes, layout, self.config)
        rejected.update(("cpp", reason) for reason in wrong.values() if reason is not None)
        return [*choices, *ours], rejected

    def submit(
        self,
        problem: Problem,
        choices: Sequence[Any],
        nodes: Sequence[Any],
        layout: ir.Layout,
        input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None,
        rejected: Mapping[str, str],
    ) -> Claim:
        """Hand a call over; it is being measured, if it must be, when this returns."""
        site, selection = self._site(layout.device)
        call = self._call(nodes, layout, input_gen_fns)
        # Stock offers some convolution kernels twice, word for word.
        distinct: dict[str, tuple[Offer, Any]] = {}
        for choice in choices:
            offer = offer_of(choice, call)
            distinct.setdefault(offer.candidate_id, (offer, choice))
        offers = [offer for offer, _ in distinct.values()]
        by_id = {name: choice for name, (_, choice) in distinct.items()}
        name = f"{site.device} {problem.fields()} {sorted(by_id)}"
        ticket = self._tickets.get(name)
        if ticket is None:
            ticket = selection.plan(
                problem, offers, rejected, self._tolerance(problem), self._budget()
            )
            self._tickets[name] = ticket
            if ticket.task is not None:
                site.progress.expect(len(ticket.task.entries))
                site.pipeline.submit(ticket.task)
        return Claim(self, ticket, by_id)

    def note(
        self,
        problem: Problem,
        choices: Sequence[Any],
        nodes: Sequence[Any],
        layout: ir.Layout,
        rejected: Mapping[str, str],
    ) -> None:
        """Remember why a call has one choice only, for `explain`; nothing is measured."""
        if self.config.policy not in ("tune", "build"):
            return
        site, _ = self._site(layout.device)
        if choices:
            only = offer_of(choices[0], self._call(nodes, layout, None)).candidate_id
            remember(site.store, site.environment, problem, only, rejected)

    def defer(self, claim: Claim, nodes: list[Any], choices: list[Any], layout: ir.Layout) -> Any:
        """Return a node whose kernel is decided when the whole graph is lowered."""
        box, deferred = lowering_deferral.stand_in(
            layout, nodes, choices, claim.timings, claim.winner
        )
        self._deferred.append(deferred)
        return box

    def await_ticket(self, ticket: Ticket) -> None:
        """Wait until a ticket's race, if it has one, has ended."""
        task = ticket.task
        if task is None or task.done.is_set():
            return
        site, _ = self._selections[ticket.problem.output.device]
        limit_s = self._limit_s()
        started = time.perf_counter_ns()
        with site.progress.shown():
            in_time = site.pipeline.wait(task, limit_s)
        ended = time.perf_counter_ns()
        site.trace.add(MAIN_TRACK, f"wait {ticket.problem.describe()}", started, ended)
        COUNTERS.add(wall_s=(ended - started) / 1e9)
        if not in_time:
            logger.warning(
                "%s was not tuned (%s); the library kernel is used",
                ticket.problem.describe(),
                task.error,
            )

    def _call(
        self,
        nodes: Sequence[Any],
        layout: ir.Layout,
        input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None,
    ) -> Call:
        return Call(
            nodes=nodes,
            layout=layout,
            input_gen_fns=input_gen_fns or {},
            timeout_s=self.config.bench_timeout_s,
            compile_timeout_s=self.config.compile_timeout_s,
            files=self._files,
            toolchain=self._toolchain,
        )

    def _limit_s(self) -> float:
        """Return how long a race may take at the very most; every wait has a limit."""
        entries = sum(len(t.task.entries) for t in self._tickets.values() if t.task is not None)
        per_entry = self.config.compile_timeout_s + 2 * self.config.bench_timeout_s
        return 60.0 + entries * per_entry

    def _site(self, device: torch.device) -> tuple[Site, Selection]:
        if device.type not in self._selections:
            text = device_text(device)
            site = RUNTIME.site(self.config, text, _software(text))
            selection = Selection(
                self.config,
                site.store,
                site.environment,
                lambda: provenance(text),
                COUNTERS,
                self._pins,
            )
            self._selections[device.type] = (site, selection)
        return self._selections[device.type]

    def _budget(self) -> float | None:
        if self._deadline is None and self.config.tune_budget_s > 0:
            self._deadline = time.monotonic() + self.config.tune_budget_s
        return self._deadline

    def _tolerance(self, problem: Problem) -> float:
        return tolerance(
            problem.output.dtype,
            problem.inputs[0].dtype if problem.inputs else problem.output.dtype,
            reduction_length(problem),
            tf32=problem.output.device != "cpu" and float32_precision() != "highest",
        )

    def _settle(self) -> None:
        """Replace every buffer that stands in for a decision."""
        graph = self._graph()
        deferred, self._deferred = self._deferred, []
        for one in deferred:
            if graph is not None:
                lowering_deferral.settle(graph, one)

    def _end(self) -> None:
        """Report and clean up: everything is decided."""
        if self._reported:
            return
        self._reported = True
        self._files.remove()
        tickets = list(self._tickets.values())
        for site, _ in self._selections.values():
            site.trace.write()
            site.store.add_counts(
                hits=sum(t.hit for t in tickets), misses=sum(not t.hit for t in tickets)
            )
        spent = COUNTERS.snapshot().since(self._before)
        for observe in OBSERVERS:
            observe(tickets)
        line = summary(tickets, spent)
        logger.info("%s", line)
        shown = self.config.table == "on" or (
            self.config.table == "auto" and spent.benchmarked and sys.stderr.isatty()
        )
        if shown:
            text = "\n".join([*(table(ticket) for ticket in tickets), line])
            sys.stderr.write(f"{text}\n")


def session_of(graph: GraphLowering, config: Config) -> Session:
    """Return the session of the graph that is being lowered."""
    session = _SESSIONS.get(graph)
    if session is None:
        session = _SESSIONS[graph] = Session(graph, config)
    return session


def _watch(graph: GraphLowering, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call ``before`` and ``after`` around the scheduler of this graph alone."""
    hooked: Any = graph  # the hook is private
    original = hooked._update_scheduler

    def watched() -> None:
        before()
        original()
        after()

    hooked._update_scheduler = watched


def _arguments(choices: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return the scalar arguments of a call, which its library kernel carries."""
    for choice in filter(is_library, choices):
        scalars: dict[str, Any] = unwrapped(choice).kwargs
        return tuple((name, repr(value)) for name, value in sorted(scalars.items()))
    return ()


def _software(device: str) -> dict[str, str]:
    """Return what besides torch decides how fast candidates are here: the C++ compiler."""
    if device != "cpu":
        return {}
    return {"cpp": lowering_toolchain.compiler_version()}
