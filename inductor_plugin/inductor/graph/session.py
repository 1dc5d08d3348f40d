"""State of the compile of one graph: its configuration, its open problems, its final report."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering

from inductor_plugin.config import Config
from inductor_plugin.inductor.artifacts import entries
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.candidates.check import number_check, size_ends
from inductor_plugin.inductor.candidates.layouts import before_layouts
from inductor_plugin.inductor.candidates.offers import (
    is_cpp,
    is_library,
    offer_of,
    scalars_of,
    why_not_repacked,
)
from inductor_plugin.inductor.candidates.template_choice import template_choices
from inductor_plugin.inductor.facts import compat, toolchain
from inductor_plugin.inductor.facts.attached import attached
from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.inductor.facts.scope import host_counts
from inductor_plugin.inductor.facts.toolchain import software_of
from inductor_plugin.inductor.graph import (
    deferral,
    misses,
    run_page,
    stored,
    trial,
    unstored,
)
from inductor_plugin.inductor.graph.chosen import ChosenKernels
from inductor_plugin.inductor.graph.due import Due, due_of_decisions, first_of
from inductor_plugin.inductor.graph.kernel_ranges import RangeWriter, are_written
from inductor_plugin.inductor.graph.output_guard import OutputGuard
from inductor_plugin.inductor.graph.packs import make_ready
from inductor_plugin.inductor.graph.pending import PendingChoice
from inductor_plugin.inductor.graph.pinning import Pinning
from inductor_plugin.inductor.graph.ranks import GraphShares
from inductor_plugin.inductor.graph.report import keep_graph, report
from inductor_plugin.inductor.graph.unstarted import Unstarted
from inductor_plugin.problem import Problem
from inductor_plugin.problem.number_check import NumberCheck, bias_of
from inductor_plugin.problem.product import ROLES
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.budget import Budget
from inductor_plugin.tuning.counters import COUNTERS, Counters
from inductor_plugin.tuning.ends import SizeEnd
from inductor_plugin.tuning.environment import provenance
from inductor_plugin.tuning.holder import wait_s
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.tuning.pins.pin import Pin
from inductor_plugin.tuning.ranks.agreed import Agreed
from inductor_plugin.tuning.ranks.ledger import LEDGER
from inductor_plugin.tuning.refusal import remember
from inductor_plugin.tuning.runtime import RUNTIME, DeviceContext
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.devices.lookup import is_nvidia, known

OBSERVERS: list[Callable[[Sequence[TuningTicket]], None]] = []
"""Called with all problems of a graph once they are decided."""

_SCALED = frozenset(op for op, roles in ROLES.items() if "c" in roles)
"""Operators with scalars (alpha and beta of what is added; `scaled_mm`'s dtype), which only the choices of library kernels contain."""


class Session:
    """The plugin's state during the compile of one graph."""

    def __init__(self, graph: GraphLowering, config: Config) -> None:
        """Serve ``graph`` until its scheduler has decided everything."""
        self.config = config
        self._graph: Callable[[], GraphLowering | None] = weakref.ref(graph)
        self._files = OperandFiles()
        # 0.5 ms a call, of which a model has hundreds.
        self._toolchain = functools.cache(toolchain.cpp_toolchain)
        self._pinning = Pinning.of(config)
        self._tickets: dict[tuple[str, ...], TuningTicket] = {}
        self._unstarted = Unstarted()
        self._contexts: dict[str, tuple[DeviceContext, Selection]] = {}
        self._deferred: list[deferral.Deferred] = []
        self._pending: list[PendingChoice] = []
        self._by_buffer: dict[str, PendingChoice] = {}
        self._budget = Budget(config.tune_budget_s) if config.tune_budget_s > 0 else None
        self._reported = False
        self._trial = trial.current()
        self._is_extra = self._trial is not None and self._trial.is_extra
        self._shares = GraphShares(decides=not self._is_extra)
        self.counters = Counters() if self._is_extra else COUNTERS
        self._untuned = 0  # calls on a CPU that have one kernel
        self._single: list[tuple[DeviceContext, Problem]] = []  # problems with a single candidate
        ranges = [RangeWriter()] if are_written(graph) else []
        checks = [OutputGuard(graph, config.check_outputs)] if config.check_outputs != "off" else []
        self.chosen = ChosenKernels([*checks, *ranges])
        before_layouts(graph, self._hold)
        _watch(graph, self._settle, self._end)

    def call(
        self,
        op: str,
        choices: Sequence[Any],
        nodes: Sequence[Any],
        layout: ir.Layout,
        input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None = None,
    ) -> AutotuneCall:
        """Return a call with the limits of the options and the scalars of its library kernel."""
        return AutotuneCall(
            op=op,
            nodes=nodes,
            layout=layout,
            input_gen_fns=input_gen_fns or {},
            arguments=scalars_of(choices),
            timeout_s=self.config.bench_timeout_s,
            compile_timeout_s=self.config.compile_timeout_s,
            files=self._files,
            toolchain=self._toolchain,
        )

    def with_templates(
        self, call: AutotuneCall, choices: list[Any]
    ) -> tuple[list[Any], dict[str, str]]:
        """Return the choices including those of registered templates, and why others are left out."""
        bias = bias_of(call.problem)
        hazard = why_not_repacked(call.nodes, bias) if any(map(is_cpp, choices)) else None
        if hazard is not None:
            choices = [choice for choice in choices if not is_cpp(choice)]
        if is_nvidia(device_text(call.layout.device)):
            make_ready(self.config, call.problem.target)
        registry = default_registry()
        if call.op in _SCALED and not any(map(is_library, choices)):
            reason = "no library kernel among the choices tells the call's scalars; add ATEN to the backends"
            ours: list[Any] = []
            rejected = {template.name: reason for template in registry.for_op(call.op)}
        else:
            ours, rejected = template_choices(call, registry, self.config)
        return [*choices, *ours], rejected | ({"cpp": hazard} if hazard is not None else {})

    def submit(
        self, call: AutotuneCall, choices: Sequence[Any], rejected: Mapping[str, str]
    ) -> PendingChoice:
        """Submit a call for tuning; compiling and measuring, if needed, go on when this returns."""
        # Inductor offers some convolution kernels twice, with the same text.
        distinct: dict[str, tuple[CandidateOffer, Any]] = {}
        for choice in choices:
            offer = offer_of(choice, call)
            distinct.setdefault(offer.candidate_id, (offer, choice))
        offers = [offer for offer, _ in distinct.values()]
        by_id = {name: choice for name, (_, choice) in distinct.items()}
        check = number_check(call.problem, call.names, call.seeds)
        ticket = self.enqueue(
            call.problem,
            call.layout.device,
            offers,
            rejected,
            check,
            ends=lambda: size_ends(call),
        )
        context, _ = self.context(call.layout.device)
        self.chosen.follow(by_id, ticket, context.environment)
        self._pending.append(PendingChoice(ticket, by_id, call, self.wait))
        return self._pending[-1]

    def enqueue(
        self,
        problem: Problem,
        device: torch.device,
        offers: Sequence[CandidateOffer],
        rejected: Mapping[str, str],
        check: NumberCheck | None,
        epilogue: Mapping[str, str] | None = None,
        ends: Callable[[], tuple[SizeEnd, ...]] = tuple,
        *,
        held: bool = False,
    ) -> TuningTicket:
        """Submit a problem.

        Args:
            problem: The problem.
            device: Where it runs.
            offers: Its candidates.
            rejected: Templates that refused it, and why.
            check: How results are compared; None for not at all.
            epilogue: The text of `epilogue_text` that the record keeps.
            ends: Returns the ends of its size class; called only if something is measured.
            held: Whether the library kernel runs whatever is chosen.
        """
        context, selection = self.context(device)
        check = check if known(context.device).compared else None
        key = (
            context.device,
            problem_digest(problem),
            *sorted(offer.candidate_id for offer in offers),
        )
        ticket = self._tickets.get(key)
        if ticket is None:
            ticket = selection.plan(problem, offers, rejected, check, self._budget)
            if self._trial is not None:
                place = ticket.digest, context.store, context.environment
                share = self._shares.get(context)
                ticket.held = self._trial.holds(*place, self._pinning.pins, share)
            self._tickets[key] = ticket
            ticket.epilogue = epilogue or {}
            start = functools.partial(self._start, ticket, context, ends)
            self._unstarted.add(ticket, start)
        ticket.held |= held
        return ticket

    def _start(
        self, ticket: TuningTicket, context: DeviceContext, ends: Callable[[], tuple[SizeEnd, ...]]
    ) -> None:
        """Start the race of a planned ticket, if it has one."""
        if not ticket.hit and self.config.policy != "build" and not self._is_extra:
            misses.add(ticket, context.store, context.environment)
        if ticket.task is not None and ticket.task.measured:
            ticket.task.ends = ends()
            compat.count_autotuning()
        self._shares.submit(context, ticket)

    def withdraw(self, ticket: TuningTicket) -> None:
        """Drop a ticket whose problem is submitted once more, with another candidate: the graph's decision is the later one."""
        self._tickets = {key: each for key, each in self._tickets.items() if each is not ticket}

    def keep(self, buffer: str, pending: PendingChoice) -> None:
        """Remember the pending choice of a buffer whose kernel the scheduler decides."""
        self._by_buffer[buffer] = pending

    def claim(self, buffer: str) -> PendingChoice | None:
        """Return the pending choice of a buffer, None if it is not the plugin's."""
        return self._by_buffer.get(buffer)

    def record_only_choice(
        self, call: AutotuneCall, choices: Sequence[Any], rejected: Mapping[str, str]
    ) -> None:
        """Record why a call has only one choice, for `explain`; nothing is measured."""
        if choices:
            self._untuned += call.layout.device.type == "cpu"
            only = offer_of(choices[0], call).candidate_id
            if self._pinning.pins is not None:
                self._pinning.only(call.problem, self.context(call.layout.device)[1], only)
            self.remember(call.problem, call.layout.device, only, rejected)

    def remember(
        self, problem: Problem, device: torch.device, only: str, rejected: Mapping[str, str]
    ) -> None:
        """Record why a problem has only one candidate, for `explain`."""
        if self.config.policy in ("tune", "build") and not self._is_extra:
            context, _ = self.context(device)
            remember(context.store, context.environment, problem, only, rejected)
            if rejected:  # without a reason, no record is written that the graph's entry could name
                self._single.append((context, problem))

    def pin_of_fusion(self, problem: Problem, device: torch.device) -> Pin | None:
        """Return the pin of a product with its epilogue, with ``policy=pinned``."""
        return self._pinning.fusion(problem, self.context(device)[1])

    def agreed_fusion(self, problem: Problem, device: torch.device) -> Agreed | None:
        """Return what the ranks of the job have decided about a fusion; None if they have not."""
        return self._shares.look_up(self.context(device)[0], problem)

    def refuse_fusion(self, problem: Problem, device: torch.device, only: str, why: str) -> str:
        """Return what runs where a fusion is refused before it is measured: another rank may have decided otherwise."""
        context, selection = self.context(device)
        winner = self._shares.refuse(context, problem, only, why)
        if winner == only:
            self._pinning.keep_refused(problem, selection, only, why)
        return winner

    def defer(self, pending: PendingChoice, choices: list[Any]) -> Any:
        """Return a node whose kernel is decided when the whole graph is lowered."""
        box, deferred = deferral.stand_in(pending.call, choices, pending.timings, pending.winner)
        self._deferred.append(deferred)
        return box

    def wait(self, ticket: TuningTicket) -> None:
        """Wait until the race of a ticket, if any, has ended."""
        self._unstarted.start_all()
        self._shares.tuner(self._context_of(ticket)).wait(ticket, wait_s(self.config))

    def _context_of(self, ticket: TuningTicket) -> DeviceContext:
        contexts = self._contexts.values()
        return next(each for each, selection in contexts if selection is ticket.selection)

    def wait_all(self) -> None:
        """Wait until nothing of this graph is measured any more."""
        for ticket in list(self._tickets.values()):
            self.wait(ticket)

    def context(self, device: torch.device) -> tuple[DeviceContext, Selection]:
        """Return what a device's problems are tuned on, and what decides them."""
        text = device_text(device)
        if text not in self._contexts:
            context = RUNTIME.context(self.config, text, software_of(text))
            context.renew()
            selection = Selection(
                replace(self.config, policy="cached") if self._is_extra else self.config,
                context.store,
                context.environment,
                lambda: provenance(text),
                self.counters,
                self._pinning.pins,
                host_counts=host_counts(),
                remote=context.remote(),
            )
            self._contexts[text] = (context, selection)
            self._shares.add(context, host_counts=host_counts())
        return self._contexts[text]

    def _hold(self) -> None:
        for pending in self._pending:
            pending.hold()

    def _settle(self) -> None:
        """Replace every placeholder buffer by the winner's node."""
        for pending in self._pending:
            pending.compare()
        graph = self._graph()
        deferred, self._deferred = self._deferred, []
        for decision in deferred:
            if graph is not None:
                deferral.settle(graph, decision)

    def _end_graph(self) -> None:
        """Mark and watch what the graph consists of now that all of it is decided."""
        again = Due(at=0.0) if any(each.is_undecidable for each in self._pending) else None
        unstored.add_due(first_of([due_of_decisions(self._tickets.values()), again]))
        graph = self._graph()
        if graph is not None:
            unstored.mark_repacked(graph)
            self.chosen.watch(graph)

    def _end(self) -> None:
        """Clean up and report once everything is decided."""
        self._end_graph()
        if self._reported:
            return
        self._reported = True
        self._unstarted.start_all()
        self._files.remove()
        tickets = list(self._tickets.values())
        self._shares.release(tickets)
        if self._trial is not None:
            # A graph's branches and loops have sessions of their own.
            self._trial.tickets += tuple(tickets)
            self._trial.contexts |= {text: each for text, (each, _) in self._contexts.items()}
        if not self._is_extra:
            terms = {
                each: each.terms(host_counts=host_counts()) for each, _ in self._contexts.values()
            }
            placed = [(self._context_of(ticket), ticket) for ticket in tickets]
            named = [(terms[c].group, t) for c, t in placed if not self._shares.is_open(c, t)]
            stored.add_decisions(named)
            LEDGER.add_decisions(named, terms.values())
            self._carry(tickets)
            for observe in OBSERVERS:
                observe(tickets)
            contexts = self._contexts.values()
            report(tickets, contexts, self.config, untuned=self._untuned > 0)
            keep_graph(self.config, self._graph(), contexts, tickets, self._single)
            if self.config.report:
                run_page.add(self.config, self._graph(), contexts, tickets)
            self._pinning.keep(tickets, self._trial)
            self._pinning.refuse(tickets)

    def _carry(self, tickets: Sequence[TuningTicket]) -> None:
        """Record what was decided for ``torch.compiler.save_cache_artifacts``."""
        if self.config.cache == "off":
            return
        for context, selection in self._contexts.values():
            decided = (ticket for ticket in tickets if ticket.selection is selection)
            entries.add_decisions(context.store, context.environment, decided)


def session_of(graph: GraphLowering, config: Config) -> Session:
    """Return the session of the graph that is being lowered."""
    return attached(graph, "session", lambda: Session(graph, config))


def _watch(graph: GraphLowering, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call ``before`` and ``after`` around the scheduler of this graph alone."""
    hooked: Any = graph  # the hook is private
    original = hooked._update_scheduler

    def watched() -> None:
        before()
        original()
        after()

    hooked._update_scheduler = watched
