"""Whether what stands next to a product is fused with it: priced first, measured once, remembered.

    Scheduler.speedup_by_fusion(product, epilogue)
       │ lowering_epilogue: what it is        prune: can it pay, with which kernel?  ── no ──► not fused
       ▼
    Problem "mm" with its epilogue; candidates: unfused (two kernels), fused (one for each kernel kept)
       │ selection: record, or compiled, judged again by what the compiler says, and raced
       ▼
    the winner: a Triton kernel with the epilogue in it, or two kernels

All pairs of a round are handed over before the first is waited for: Inductor asks for the answers
(`FusionResult.from_callable`) when it has seen them all. Of two products that one epilogue reads, the
second waits until the first has lost: Inductor asks for no more answers after one that fuses.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir, select_algorithm
from torch._inductor.scheduler import FusionResult, Scheduler
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.cost.limits import Limits, guard, limits_of
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.shortlist import Chosen, Price, kernel_of, visitor_kernel
from inductor_plugin.counters import COUNTERS
from inductor_plugin.inductor.facts.problem import problem_of
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.inductor.fusion import visitors
from inductor_plugin.inductor.fusion.nodes import epilogue_of, node_of, prologue_of
from inductor_plugin.inductor.fusion.offers import UNFUSED, Fusion, fused_offer, unfused_offer
from inductor_plugin.inductor.graph.pending import PendingChoice
from inductor_plugin.inductor.graph.session import Session, session_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.epilogue_text import note
from inductor_plugin.problem.tolerance import STEPPED
from inductor_plugin.tuning.selection import TuningTicket

logger = logging.getLogger(__name__)

_EACH = "each"
"""Stands for all kernels where one reason does."""
_STOCK: dict[str, Any] = {}
"""Inductor's own method, while ours is in its place."""


@dataclass(frozen=True)
class _Pair:
    """Two nodes that Inductor may fuse, one of them a product whose kernel is not decided.

    Attributes:
        scheduler: Inductor's scheduler.
        config: The options.
        session: The session of the graph.
        claim: The product's.
        product: The product's buffer.
        first: The node that runs first.
        second: The other one.
        prologue: Whether the product is the second.
    """

    scheduler: Any
    config: Config
    session: Session
    claim: PendingChoice
    product: Any
    first: Any
    second: Any
    prologue: bool

    @property
    def name(self) -> str:
        return self.product.get_name()

    @property
    def limits(self) -> Limits:
        return limits_of(self.config, self.product.get_device().type)

    def price(self, kernel: Kernel, epilogue: Epilogue, unfused_us: float, best_us: float) -> Price:
        target = self.claim.ticket.problem.target
        return Price(kernel, epilogue, target, self.limits, unfused_us, best_us)

    @property
    def settled(self) -> str | None:
        """The candidate that an earlier fusion has settled; None while it is open."""
        return self.session.fused.get(self.name)


def install() -> None:
    """Put the plugin's decision in the place of Inductor's; harmless outside the plugin's scope."""
    if _STOCK:
        return
    stock = _STOCK["speedup_by_fusion"] = Scheduler.speedup_by_fusion

    @functools.wraps(stock)
    def speedup_by_fusion(scheduler: Any, node1: Any, node2: Any) -> Any:
        pair = _pair(scheduler, node1, node2)
        result = None
        if pair is not None:
            try:
                result = _decided(pair)
            except Exception:  # the border where Inductor calls us: its own decision stands
                logger.exception("the plugin could not price a fusion; Inductor decides it")
        return stock(scheduler, node1, node2) if result is None else result

    Scheduler.speedup_by_fusion = speedup_by_fusion  # type: ignore[method-assign]


def uninstall() -> None:
    """Put Inductor's own method back."""
    if _STOCK:
        Scheduler.speedup_by_fusion = _STOCK.pop("speedup_by_fusion")  # type: ignore[method-assign]


def _pair(scheduler: Any, node1: Any, node2: Any) -> _Pair | None:
    """Return what is known of two nodes, None where Inductor decides."""
    config = active_config()
    if config is None or node1.is_foreach() or node2.is_foreach():
        return None
    templates = [node.get_template_node() for node in (node1, node2)]
    if sum(one is not None for one in templates) != 1:
        return None
    product: Any = templates[0] if templates[0] is not None else templates[1]
    if not isinstance(product, ir.MultiTemplateBuffer):
        return None
    session = session_of(V.graph, config)
    claim = session.claim(product.get_name())
    if claim is None:
        return None
    prologue = templates[0] is None
    return _Pair(scheduler, config, session, claim, product, node1, node2, prologue)


def _decided(pair: _Pair) -> Any:
    """Return Inductor's answer to whether it fuses; None leaves it to Inductor."""
    COUNTERS.add(fusions=1)
    if closed := _closed(pair):
        return _refused(pair, closed)
    epilogue = _told(pair)
    device = pair.product.get_device()
    if any(node_of(one.buffer).get_device() != device for one in epilogue.reads):
        return None  # a number on the host, which Inductor hands over as one
    kept, pruned = _kept(pair, epilogue)
    if pair.prologue or epilogue.atomic or epilogue.mutates:
        return None if kept else _refused(pair, *pruned.values())
    made = _fusion(pair, epilogue)
    kept |= {} if _EACH in pruned else _visitors(pair, made, epilogue, pruned)
    if not kept:
        _remember(pair, epilogue, pruned)
        return _refused(pair, *pruned.values())
    settled, behind = pair.settled, pair.second.get_name()
    plan = functools.cache(lambda: _handed_over(pair, made, epilogue, kept, pruned))

    def answer() -> bool:
        try:
            return pair.settled == settled and _fuses(pair, *plan())
        except Exception:  # the border, as in `speedup_by_fusion`; two kernels are always right
            logger.exception("the plugin could not decide a fusion; two kernels run")
            return False

    if behind not in pair.session.behind:
        pair.session.behind.add(behind)
        plan()
    return FusionResult.from_callable(answer)


def _closed(pair: _Pair) -> str | None:
    """Return why nothing more can be fused with a product, None if something can."""
    if pair.settled is not None and pair.settled not in pair.claim.choices:
        return f"{pair.settled} has another epilogue already"
    if pair.scheduler._has_layout_conflict_for_template(pair.product):
        return "an operand's layout is no longer what the kernels were measured with"
    return None


def _refused(pair: _Pair, *reasons: str) -> Any:
    COUNTERS.add(fusions_pruned=1)
    what = "prologue" if pair.prologue else "epilogue"
    names = pair.first.get_name(), pair.second.get_name()
    why = "; ".join(dict.fromkeys(reasons)) or "no Triton kernel among the candidates"
    logger.debug("%s + %s: the %s is not fused: %s", *names, what, why)
    return FusionResult.fuse(should_fuse=False)


def _remember(pair: _Pair, epilogue: Epilogue, reasons: Mapping[str, str]) -> None:
    """Note why an epilogue was not measured, for `explain`; that of a prologue is in the log alone.

    A build measures nothing, so that nothing it refuses is refused for its time.
    """
    if not pair.prologue and pair.config.policy == "tune":
        problem = _problem(pair, epilogue, node_of(_written(pair, epilogue)).get_layout())
        pair.session.remember(problem, pair.product.get_device(), UNFUSED, reasons)


def _problem(pair: _Pair, epilogue: Epilogue, layout: ir.Layout) -> Problem:
    """Return the product with its epilogue as a problem; what that reads are operands, too."""
    reads = [one.buffer for one in epilogue.reads]
    nodes = [*pair.claim.call.nodes, *(node_of(name) for name in dict.fromkeys(reads))]
    bare = pair.claim.ticket.problem
    return replace(
        problem_of(bare.op, nodes, layout, bare.arguments), epilogue=_signature(pair, epilogue)
    )


def _told(pair: _Pair) -> Epilogue:
    """Return what would stand behind the product, or before it."""
    if not pair.prologue:
        behind = pair.second.get_nodes()
        return epilogue_of(pair.scheduler, pair.product, pair.first, behind)
    read = {node.get_name() for node in pair.claim.call.nodes}
    return prologue_of(pair.scheduler, read, pair.first, pair.second)


@dataclass(frozen=True)
class _Kernel:
    """A kernel that is worth compiling with the epilogue; ``evt`` is that of a CUTLASS kernel."""

    price: Price
    evt: visitors.Evt | None = None


def _kept(pair: _Pair, epilogue: Epilogue) -> tuple[dict[str, _Kernel], dict[str, str]]:
    """Return the kernels worth measuring with the epilogue, best first, and why others are not."""
    claim, settled = pair.claim, pair.settled
    if reason := guard(epilogue, pair.limits, len(claim.call.nodes)):
        return {}, {_EACH: reason}
    timings = pair.product.choice_timings()
    ranked = sorted(
        (one for one in claim.choices if claim.choices[one] in timings),
        key=lambda one: timings[claim.choices[one]],
    )
    best_us = 1e3 * min(timings.values())
    kept: dict[str, _Kernel] = {}
    pruned: dict[str, str] = {}
    chosen = Chosen()
    for name in ranked:
        choice = claim.choices[name]
        if not isinstance(choice, select_algorithm.TritonTemplateCaller):
            continue
        if settled is not None and name != settled:
            continue
        alone_us = 1e3 * timings[choice]
        # Before its facts are read: a warm compile comes by here for each kernel of each layer.
        if reason := chosen.dominated(alone_us):
            pruned[name] = reason
            continue
        price = pair.price(_facts(pair, name, choice), epilogue, alone_us, best_us)
        if reason := price.refused() or chosen.refused(name, price):
            pruned[name] = reason
        else:
            kept[name] = _Kernel(price)
    return kept, pruned


def _facts(pair: _Pair, name: str, choice: Any) -> Kernel:
    """Return what is known of a kernel without its epilogue."""
    measured = pair.claim.ticket.measured.get(name)
    known = pair.session.resources(measured.kernel if measured else None, pair.product.get_device())
    problem, request = pair.claim.ticket.problem, choice.bmreq
    family = choice.name.rsplit("_", 1)[0]
    text = str(choice.description)
    return kernel_of(problem, family, text, request.num_warps, request.num_stages, known)


def _fusion(pair: _Pair, epilogue: Epilogue) -> Fusion:
    bare = pair.claim.call
    layout = node_of(_written(pair, epilogue)).get_layout()
    again = bare.read_again()
    return Fusion(pair.scheduler, pair.product, pair.first, pair.second, layout, again)


def _visitors(
    pair: _Pair, made: Fusion, epilogue: Epilogue, pruned: dict[str, str]
) -> dict[str, _Kernel]:
    """Return the CUTLASS kernels that have the epilogue as a tree of visitors, and note who has not."""
    problem = pair.claim.ticket.problem
    evts, reason = visitors.kernels(made, problem, epilogue, pair.config)
    if reason:
        pruned["visitors"] = reason
    timings = pair.product.choice_timings()
    plain = {
        c.name.partition("::")[0]: ms for c, ms in sorted(timings.items(), key=lambda x: -x[1])
    }
    best_us = 1e3 * min(timings.values())
    kept: dict[str, _Kernel] = {}
    for evt in evts:
        alone_us = 1e3 * plain.get(evt.candidate.template, min(timings.values()))
        kernel = visitor_kernel(problem, evt.candidate)
        part = evt.cut.epilogue  # a split saves no more time than if it were the whole epilogue
        price = pair.price(kernel, part, alone_us, best_us)
        if refused := price.refused():
            pruned[evt.candidate.name] = refused
        else:
            kept[evt.candidate.name] = _Kernel(price, evt)
    return kept


def _handed_over(
    pair: _Pair,
    made: Fusion,
    epilogue: Epilogue,
    kept: Mapping[str, _Kernel],
    pruned: Mapping[str, str],
) -> tuple[TuningTicket, dict[str, tuple[str, _Kernel]]]:
    """Return the ticket of the fusion, and which kernel each fused candidate stands for."""
    claim, device = pair.claim, pair.product.get_device()
    bare = claim.ticket.problem
    problem = _problem(pair, epilogue, made.layout)
    settled = pair.settled
    offers = [unfused_offer(made, settled, claim.choices[settled] if settled else claim.winner())]
    fused: dict[str, tuple[str, _Kernel]] = {}
    for name, kernel in kept.items():
        if kernel.evt is not None:
            offer = visitors.offer(made, kernel.evt, problem.epilogue, kernel.price)
        else:
            offer = fused_offer(made, name, claim.choices[name], problem.epilogue, kernel.price)
        offers.append(offer)
        fused[offer.candidate_id] = name, kernel
    checked = pair.session.tolerance(replace(bare, output=problem.output)) or STEPPED
    told = note(epilogue, [made.written[one.buffer].size for one in epilogue.writes])
    return pair.session.enqueue(problem, device, offers, pruned, checked, told), fused


def _signature(pair: _Pair, epilogue: Epilogue) -> str:
    """Return the signature of a fusion; of one on top of another, with what is fused already."""
    inner = len(pair.first.get_nodes()) - 1
    return f"{epilogue.signature}+{inner}" if inner else epilogue.signature


def _written(pair: _Pair, epilogue: Epilogue) -> str:
    """Return the buffer whose numbers are compared: the last one written."""
    if epilogue.writes:
        return epilogue.writes[-1].buffer
    return next(buffer.get_name() for buffer in pair.second.get_outputs())


def _fuses(pair: _Pair, ticket: TuningTicket, choices: Mapping[str, tuple[str, _Kernel]]) -> bool:
    """Return whether the fused kernel won, and settle the product's kernel if so."""
    pair.session.wait(ticket)
    winner = ticket.selection.decide(ticket).winner
    if winner is None or winner not in choices:
        return False
    name, kernel = choices[winner]
    if kernel.evt is not None:
        visitors.settle(pair.product, kernel.evt)
    else:
        pair.product.finalize_as_triton_caller(pair.claim.choices[name])
    pair.session.settle(pair.product, ticket, winner, name)
    return True
