"""Whether the neighbour of a product is fused with it: estimated first, measured once, recorded.

    Scheduler.speedup_by_fusion(product, epilogue)
       │ epilogue: its operations             prune: can it pay, with which kernel?  ── no ──► not fused
       ▼
    Problem "mm" with its epilogue; candidates: unfused (two kernels), fused (one for each kernel kept)
       │ selection: record, or compiled, judged again by what the compiler says, and raced
       ▼
    the winner: a Triton kernel with the epilogue in it, or two kernels

All pairs of a round are submitted before the first is waited for: Inductor asks for the answers
(`FusionResult.from_callable`) after it has visited them all. If one epilogue reads two products, the
second pair is submitted only after the first has lost: Inductor asks for no answer after a pair is fused.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch._inductor import ir, select_algorithm
from torch._inductor.scheduler import FusionResult, Scheduler
from torch._inductor.virtualized import V

from inductor_plugin.cost.limits import guard
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.shortlist import Shortlist, kernel_of, visitor_kernel
from inductor_plugin.inductor.candidates.check import number_check
from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.inductor.facts.scope import active_config, is_reproducible
from inductor_plugin.inductor.fusion import visitors
from inductor_plugin.inductor.fusion.nodes import node_of
from inductor_plugin.inductor.fusion.offers import UNFUSED, fused_offer, unfused_offer
from inductor_plugin.inductor.fusion.pair import Fusion, state_of
from inductor_plugin.problem.epilogue_text import dump
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.ranks.agreed import LIBRARY, warn_not_offered
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.devices.lookup import uuid_of
from inductor_plugin.worker.turn import turn

logger = logging.getLogger(__name__)

_EACH = "each"
"""Key under which a reason is filed that holds for every kernel."""
_BESIDES = "another process measured on the GPU meanwhile"
_STOCK: dict[str, Any] = {}
"""Inductor's own method, while ours replaces it."""


def install() -> None:
    """Replace Inductor's decision by the plugin's; without effect outside the plugin's scope."""
    if _STOCK:
        return
    stock = _STOCK["speedup_by_fusion"] = Scheduler.speedup_by_fusion

    @functools.wraps(stock)
    def speedup_by_fusion(scheduler: Any, node1: Any, node2: Any) -> Any:
        fusion = _fusion(scheduler, node1, node2)
        result = None
        if fusion is not None:
            try:
                result = _decided(fusion)
            except Exception:  # the border where Inductor calls us: its own decision is used
                logger.exception("inductor-plugin: could not price a fusion; Inductor decides it")
        if result is not None:
            return result
        measured = functools.partial(stock, scheduler, node1, node2)
        if fusion is None:
            return measured()
        if is_reproducible(fusion.config):
            return _not_fused(fusion, "Inductor would measure it, and keeps no record of that")
        return _measured_here(fusion, measured)

    Scheduler.speedup_by_fusion = speedup_by_fusion  # type: ignore[method-assign]


def uninstall() -> None:
    """Put Inductor's own method back."""
    if _STOCK:
        Scheduler.speedup_by_fusion = _STOCK.pop("speedup_by_fusion")  # type: ignore[method-assign]


def _fusion(scheduler: Any, node1: Any, node2: Any) -> Fusion | None:
    """Return the fusion of two nodes, None where Inductor decides."""
    config = active_config()
    if config is None or node1.is_foreach() or node2.is_foreach():
        return None
    templates = [node.get_template_node() for node in (node1, node2)]
    if sum(template is not None for template in templates) != 1:
        return None
    product: Any = templates[0] if templates[0] is not None else templates[1]
    if not isinstance(product, ir.MultiTemplateBuffer):
        return None
    state = state_of(V.graph, config)
    pending = state.session.claim(product.get_name())
    if pending is None:
        return None
    prologue = templates[0] is None
    return Fusion(scheduler, config, state, pending, product, node1, node2, prologue)


def _decided(fusion: Fusion) -> Any:
    """Return the answer for Inductor's scheduler; None leaves the decision to Inductor."""
    fusion.state.session.counters.add(fusions=1)
    if closed := _closed(fusion):
        return _not_fused(fusion, closed)
    epilogue = fusion.epilogue
    if any(node_of(read.buffer).get_device() != fusion.device for read in epilogue.reads):
        return None  # a scalar tensor on the host, which Inductor passes by value
    if fusion.config.policy == "pinned":
        return _replayed(fusion)
    if not (fusion.prologue or epilogue.atomic or epilogue.mutates):
        agreed = fusion.state.session.agreed_fusion(fusion.problem, fusion.device)
        if agreed is not None:
            return _decided_by(fusion, agreed.winner or UNFUSED, "the ranks have decided so")
    return _estimated(fusion)


def _estimated(fusion: Fusion) -> Any:
    """Return the answer by estimates, or the one that comes when what they keep is measured."""
    epilogue = fusion.epilogue
    reason = guard(epilogue, fusion.limits, len(fusion.pending.call.nodes))
    shortlist = Shortlist() if reason else _shortlist(fusion)
    pruned = {_EACH: reason} if reason else shortlist.pruned
    if fusion.prologue or epilogue.atomic or epilogue.mutates:
        return None if shortlist.kept else _not_fused(fusion, *pruned.values())
    kernels = {} if reason else _visitors(fusion, shortlist)
    if not shortlist.kept:
        winner = _remember(fusion, pruned)
        return _decided_by(fusion, winner, *pruned.values())
    return _answer(fusion, shortlist, kernels)


def _replayed(fusion: Fusion) -> Any:
    """Return what the pin file says: two kernels, or one of those that are offered; None for what it cannot say."""
    epilogue = fusion.epilogue
    if fusion.prologue or epilogue.atomic or epilogue.mutates:
        return None
    pin = fusion.state.session.pin_of_fusion(fusion.problem, fusion.device)
    if pin is None:
        return _not_fused(fusion, "no pin says so")
    return _decided_by(fusion, pin.winner, "two kernels are pinned")


def _decided_by(fusion: Fusion, winner: str, *reasons: str) -> Any:
    """Return the answer that a decision gives which was taken elsewhere, or before anything was measured."""
    if winner.startswith(UNFUSED):
        return _not_fused(fusion, *reasons)
    return _answer(fusion, *_pinned(fusion, winner))


def _answer(
    fusion: Fusion, shortlist: Shortlist, kernels: Mapping[str, visitors.VisitorKernel]
) -> Any:
    """Return the answer that comes once the kernels of the shortlist are measured, or their pin is read."""
    settled, after = fusion.settled, fusion.second.get_name()
    submitted = functools.cache(lambda: _submit(fusion, shortlist, kernels))

    def answer() -> bool:
        try:
            return fusion.settled == settled and _fuses(fusion, *submitted())
        except Exception:  # the border, as in `speedup_by_fusion`; two kernels are always correct
            logger.exception("inductor-plugin: could not decide a fusion; two kernels run")
            return False

    if after not in fusion.state.submitted:
        fusion.state.submitted.add(after)
        submitted()
    return FusionResult.from_callable(answer)


def _measured_here(fusion: Fusion, stock: Callable[[], Any]) -> Any:
    """Return Inductor's own decision, which it measures in this process: on a GPU after the worker has done its work.

    Two processes that measure on one GPU at once measure each other: what was measured so decides nothing, two kernels run.
    """
    if fusion.device.type == "cpu":
        return stock()
    session, uuid = fusion.state.session, uuid_of(device_text(fusion.device))

    def alone(measure: Callable[[], Any]) -> tuple[Any, bool]:
        session.wait_all()
        with turn(uuid) as mine:
            return measure(), bool(mine)

    result, trusted = alone(stock)
    measured_later = result.callable_fn
    if measured_later is None:
        return result if trusted or not result.should_fuse else _not_fused(fusion, _BESIDES)

    def later() -> bool:
        fuses, trusted = alone(measured_later)
        return fuses and trusted

    return replace(result, callable_fn=later)


def _closed(fusion: Fusion) -> str | None:
    """Return why nothing more can be fused with a product, None if something can."""
    if fusion.settled is not None and fusion.settled not in fusion.pending.choices:
        return f"{fusion.settled} has another epilogue already"
    if fusion.scheduler._has_layout_conflict_for_template(fusion.product):
        return "an operand's layout is no longer what the kernels were measured with"
    return None


def _not_fused(fusion: Fusion, *reasons: str) -> Any:
    fusion.state.session.counters.add(fusions_pruned=1)
    what = "prologue" if fusion.prologue else "epilogue"
    names = fusion.first.get_name(), fusion.second.get_name()
    why = "; ".join(dict.fromkeys(reasons)) or "no Triton kernel among the candidates"
    logger.debug("%s + %s: the %s is not fused: %s", *names, what, why)
    return FusionResult.fuse(should_fuse=False)


def _remember(fusion: Fusion, reasons: Mapping[str, str]) -> str:
    """Record why an epilogue was not measured, for `explain`, and return what runs; a prologue's reason is only logged.

    Nothing is recorded in a build: it measures nothing, so its refusals do not rest on times.
    """
    if fusion.prologue or fusion.config.policy == "build":
        return UNFUSED
    session, why = fusion.state.session, "; ".join(dict.fromkeys(reasons.values()))
    winner = session.refuse_fusion(fusion.problem, fusion.device, UNFUSED, why)
    if fusion.config.policy == "tune" and winner == UNFUSED:
        session.remember(fusion.problem, fusion.device, UNFUSED, reasons)
    return winner


def _shortlist(fusion: Fusion) -> Shortlist:
    """Return the Triton kernels worth measuring with the epilogue, best first."""
    choices, timings = fusion.pending.choices, fusion.timings
    ranked = sorted(
        (name for name in choices if choices[name] in timings),
        key=lambda name: timings[choices[name]],
    )
    shortlist = Shortlist()
    for name in ranked:
        choice = choices[name]
        if not isinstance(choice, select_algorithm.TritonTemplateCaller):
            continue
        if fusion.settled is not None and name != fusion.settled:
            continue
        unfused_us = 1e3 * timings[choice]
        kernel = functools.partial(_kernel, fusion, name, choice)
        shortlist.offer(
            name,
            unfused_us,
            lambda kernel=kernel, us=unfused_us: fusion.estimate(kernel(), fusion.epilogue, us),
        )
    return shortlist


def _kernel(fusion: Fusion, name: str, choice: Any) -> Kernel:
    """Return the facts of a kernel without its epilogue."""
    measured = fusion.pending.ticket.measured.get(name)
    resources = fusion.state.resources(measured.kernel if measured else None, fusion.device)
    problem, request = fusion.pending.ticket.problem, choice.bmreq
    family = choice.name.rsplit("_", 1)[0]
    text = str(choice.description)
    return kernel_of(problem, family, text, request.num_warps, request.num_stages, resources)


def _visitors(fusion: Fusion, shortlist: Shortlist) -> dict[str, visitors.VisitorKernel]:
    """Add the CUTLASS kernels with the epilogue as a visitor tree to the shortlist; return them by name."""
    problem, timings = fusion.pending.ticket.problem, fusion.timings
    kernels, reason = visitors.kernels(fusion)
    if reason:
        shortlist.pruned["visitors"] = reason
    slowest_first = sorted(timings.items(), key=lambda item: -item[1])
    plain = {choice.name.partition("::")[0]: ms for choice, ms in slowest_first}
    kept: dict[str, visitors.VisitorKernel] = {}
    for kernel in kernels:
        name = kernel.candidate.name
        unfused_us = 1e3 * plain.get(kernel.candidate.template, min(timings.values()))
        part = kernel.split.epilogue  # a part saves at most the time that it takes as an epilogue
        estimate = fusion.estimate(visitor_kernel(problem, kernel.candidate), part, unfused_us)
        if why_not := estimate.why_not():
            shortlist.pruned[name] = why_not
        else:
            shortlist.kept[name] = estimate
            kept[name] = kernel
    return kept


def _pinned(fusion: Fusion, winner: str) -> tuple[Shortlist, dict[str, visitors.VisitorKernel]]:
    """Return the pinned kernel as the shortlist, which is empty if that is not offered; no estimate rules it out."""
    shortlist, problem = Shortlist(), fusion.pending.ticket.problem
    for name, choice in fusion.pending.choices.items():
        is_triton = isinstance(choice, select_algorithm.TritonTemplateCaller)
        if not is_triton or fusion.settled not in (None, name):
            continue
        estimate = fusion.estimate(_kernel(fusion, name, choice), fusion.epilogue, 0.0)
        if fused_offer(fusion, name, choice, estimate).candidate_id == winner:
            shortlist.kept[name] = estimate
            return shortlist, {}
    for kernel in visitors.kernels(fusion)[0]:
        name, part = kernel.candidate.name, kernel.split.epilogue
        estimate = fusion.estimate(visitor_kernel(problem, kernel.candidate), part, 0.0)
        if visitors.offer(fusion, kernel, estimate).candidate_id == winner:
            shortlist.kept[name] = estimate
            return shortlist, {name: kernel}
    return shortlist, {}


def _submit(
    fusion: Fusion, shortlist: Shortlist, kernels: Mapping[str, visitors.VisitorKernel]
) -> tuple[TuningTicket, dict[str, tuple[str, visitors.VisitorKernel | None]]]:
    """Return the ticket of the fusion, and the product's kernel of each fused candidate."""
    pending, problem, settled = fusion.pending, fusion.problem, fusion.settled
    offers = [
        unfused_offer(fusion, settled, pending.choices[settled] if settled else pending.winner())
    ]
    fused: dict[str, tuple[str, visitors.VisitorKernel | None]] = {}
    for name, estimate in shortlist.kept.items():
        kernel = kernels.get(name)
        offer: CandidateOffer
        if kernel is not None:
            offer = visitors.offer(fusion, kernel, estimate)
        else:
            offer = fused_offer(fusion, name, pending.choices[name], estimate)
        offers.append(offer)
        fused[offer.candidate_id] = name, kernel
    epilogue = fusion.epilogue
    check = number_check(problem, fusion.added, fusion.call.seeds)
    text = dump(epilogue, [fusion.written[write.buffer].size for write in epilogue.writes])
    # A graph that gives up the product's kernel must not get it back with the epilogue.
    own = pending.ticket
    held = own.held and own.selection.decide(own).given_up is not None
    ticket = fusion.state.session.enqueue(
        problem, fusion.device, offers, shortlist.pruned, check, text, held=held
    )
    return ticket, fused


def _fuses(
    fusion: Fusion,
    ticket: TuningTicket,
    fused: Mapping[str, tuple[str, visitors.VisitorKernel | None]],
) -> bool:
    """Return whether the fused kernel won, and settle the product's kernel if so."""
    session = fusion.state.session
    session.wait(ticket)
    agreed = ticket.agreed
    if agreed is not None and agreed.winner not in {o.candidate_id for o in ticket.offers}:
        # Another rank had better estimates of it: it was measured there, and this rank can offer it, too.
        shortlist, kernels = _pinned(fusion, agreed.winner)
        if shortlist.kept:
            session.withdraw(ticket)
            ticket, fused = _submit(fusion, shortlist, kernels)
            session.wait(ticket)
        elif agreed.winner != LIBRARY:
            warn_not_offered(ticket.problem, agreed)
    winner = ticket.selection.decide(ticket).winner
    if winner is None or winner not in fused:
        return False
    name, kernel = fused[winner]
    if kernel is not None:
        visitors.settle(fusion.product, kernel)
    else:
        fusion.product.finalize_as_triton_caller(fusion.pending.choices[name])
    fusion.state.settle(fusion.product, ticket, winner, name)
    return True
