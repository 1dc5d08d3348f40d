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
from torch._inductor import ir
from torch._inductor.graph import GraphLowering

from inductor_plugin.config import Config
from inductor_plugin.counters import COUNTERS
from inductor_plugin.inductor.candidates.layouts import before_layouts
from inductor_plugin.inductor.candidates.offers import (
    Call,
    is_library,
    misread,
    offer_of,
    unwrapped,
)
from inductor_plugin.inductor.candidates.template_choice import template_choices
from inductor_plugin.inductor.facts import toolchain
from inductor_plugin.inductor.facts.problem import device_text, problem_of
from inductor_plugin.inductor.graph import deferral
from inductor_plugin.inductor.graph.claim import Claim
from inductor_plugin.inductor.graph.output_guard import OutputGuard
from inductor_plugin.inductor.graph.packs import make_ready
from inductor_plugin.problem import Problem
from inductor_plugin.problem.tolerance import reduction_length, tolerance
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.environment import float32_precision, provenance
from inductor_plugin.tuning.offer import Offer
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.tuning.pins import Pins, read_pins
from inductor_plugin.tuning.refusal import remember
from inductor_plugin.tuning.runtime import RUNTIME, Site
from inductor_plugin.tuning.selection import Selection, Ticket
from inductor_plugin.tuning.table import summary, table
from inductor_plugin.tuning.trace import MAIN_TRACK

logger = logging.getLogger(__name__)

OBSERVERS: list[Callable[[Sequence[Ticket]], None]] = []
"""Are given all problems of a graph once they are decided."""

_SCALED = frozenset({"addmm", "baddbmm", "scaled_mm"})
"""Operators with scalars (alpha, beta ...), which only Inductor's library kernels carry."""

_SESSIONS: weakref.WeakKeyDictionary[GraphLowering, Session] = weakref.WeakKeyDictionary()


class Session:
    """The plugin's part in the compile of one graph."""

    def __init__(self, graph: GraphLowering, config: Config) -> None:
        """Follow ``graph`` until its scheduler has decided everything."""
        self.config = config
        self._graph: Callable[[], GraphLowering | None] = weakref.ref(graph)
        self._files = OperandFiles()
        # 0.5 ms a call, of which a model has hundreds.
        self._toolchain = functools.cache(toolchain.cpp_toolchain)
        self._pins: Pins | None = read_pins(config.pin_file) if config.policy == "pinned" else None
        self._tickets: dict[str, Ticket] = {}
        self._selections: dict[str, tuple[Site, Selection]] = {}
        self._deferred: list[deferral.Deferred] = []
        self._claims: dict[str, Claim] = {}
        self._made: list[Claim] = []
        self._before = COUNTERS.snapshot()
        self._deadline: float | None = None
        self._reported = False
        self.guard = None
        if config.check_outputs != "off":
            self.guard = OutputGuard(graph, config.check_outputs)
        before_layouts(graph, self._hold)
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
        call = self.call(nodes, layout, input_gen_fns)
        # Stock offers some convolution kernels twice, word for word.
        distinct: dict[str, tuple[Offer, Any]] = {}
        for choice in choices:
            offer = offer_of(choice, call)
            distinct.setdefault(offer.candidate_id, (offer, choice))
        offers = [offer for offer, _ in distinct.values()]
        by_id = {name: choice for name, (_, choice) in distinct.items()}
        ticket = self.enqueue(problem, layout.device, offers, rejected, accepted_error(problem))
        if self.guard is not None:
            self.guard.follow(by_id, ticket, self.site(layout.device)[0].environment)
        self._made.append(Claim(self, ticket, by_id, call))
        return self._made[-1]

    def enqueue(
        self,
        problem: Problem,
        device: torch.device,
        offers: Sequence[Offer],
        rejected: Mapping[str, str],
        tolerance: float | None,
        epilogue: Mapping[str, str] | None = None,
    ) -> Ticket:
        """Hand over a problem, of a product with its epilogue also the text that the record keeps."""
        site, selection = self.site(device)
        names = sorted(one.candidate_id for one in offers)
        name = f"{site.device} {problem.fields()} {names}"
        ticket = self._tickets.get(name)
        if ticket is None:
            ticket = selection.plan(problem, offers, rejected, tolerance, self._budget())
            self._tickets[name] = ticket
            ticket.epilogue = epilogue or {}
            if ticket.task is not None:
                site.progress.expect(len(ticket.task.entries))
                site.pipeline.submit(ticket.task)
        return ticket

    def keep(self, buffer: str, claim: Claim) -> None:
        """Remember the claim behind a buffer whose kernel the scheduler decides."""
        self._claims[buffer] = claim

    def claim(self, buffer: str) -> Claim | None:
        """Return the claim behind a buffer, None if it is not the plugin's."""
        return self._claims.get(buffer)

    def note(
        self,
        problem: Problem,
        choices: Sequence[Any],
        nodes: Sequence[Any],
        layout: ir.Layout,
        rejected: Mapping[str, str],
    ) -> None:
        """Remember why a call has one choice only, for `explain`; nothing is measured."""
        if choices:
            only = offer_of(choices[0], self.call(nodes, layout, None)).candidate_id
            self.remember(problem, layout.device, only, rejected)

    def remember(
        self, problem: Problem, device: torch.device, only: str, rejected: Mapping[str, str]
    ) -> None:
        """Remember why a problem has one candidate only, for `explain`."""
        if self.config.policy in ("tune", "build"):
            site, _ = self.site(device)
            remember(site.store, site.environment, problem, only, rejected)

    def defer(self, claim: Claim, nodes: list[Any], choices: list[Any], layout: ir.Layout) -> Any:
        """Return a node whose kernel is decided when the whole graph is lowered."""
        box, deferred = deferral.stand_in(layout, nodes, choices, claim.timings, claim.winner)
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

    def call(
        self,
        nodes: Sequence[Any],
        layout: ir.Layout,
        input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None,
    ) -> Call:
        """Return a call with what the options say of it."""
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

    def site(self, device: torch.device) -> tuple[Site, Selection]:
        """Return what a device's problems are tuned on, and what decides them."""
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

    def _hold(self) -> None:
        for claim in self._made:
            claim.hold()

    def _settle(self) -> None:
        """Replace every buffer that stands in for a decision."""
        for claim in self._made:
            claim.compare()
        graph = self._graph()
        deferred, self._deferred = self._deferred, []
        for one in deferred:
            if graph is not None:
                deferral.settle(graph, one)

    def _end(self) -> None:
        """Report and clean up: everything is decided."""
        graph = self._graph()
        if self.guard is not None and graph is not None:
            self.guard.watch(graph)
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


def accepted_error(problem: Problem) -> float:
    """Return how far a candidate's numbers may be from the library kernel's."""
    return tolerance(
        problem.output.dtype,
        problem.inputs[0].dtype if problem.inputs else problem.output.dtype,
        reduction_length(problem),
        tf32=problem.output.device != "cpu" and float32_precision() != "highest",
    )


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
    return {"cpp": toolchain.compiler_version()}
