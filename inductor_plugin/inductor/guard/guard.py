"""Compares each tuned graph with the same graph of library kernels, before Inductor stores it.

Every choice was the fastest alone; together they may still be slower (layouts that are copied, epilogues that are
not fused, caches). Inductor itself never runs the graph it has compiled (pytorch/pytorch#161764, #154301).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.virtualized import V

from inductor_plugin.cache import Decision, digest_of
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.inductor.artifacts.entries import add_record
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.inductor.graph import unstored
from inductor_plugin.inductor.graph.graph_record import (
    LIBRARY,
    TUNED,
    Held,
    held,
    is_settled,
    record_of,
    row,
)
from inductor_plugin.inductor.graph.trial import Trial, compiling
from inductor_plugin.inductor.guard.comparison import Comparison, search
from inductor_plugin.inductor.guard.fx_graph import copied, problem_of, uncounted, why_not_run
from inductor_plugin.inductor.guard.operands import real_inputs
from inductor_plugin.inductor.guard.turns import compare
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.environment import provenance
from inductor_plugin.tuning.pins.replay import read_pins
from inductor_plugin.tuning.report.terminal import show

logger = logging.getLogger(__name__)

_NAME = "fx_codegen_and_compile"
_SHARE, _LEAST_S = 0.05, 0.5
"""Share of the time of a compile, and seconds at least, in which two graphs are run in turns."""

_ALL = Held(everything=True)


@dataclass(frozen=True)
class Guarded:
    """A graph that was compiled and tuned, and what it takes to compile it again.

    Attributes:
        compiled: The compiled graph.
        trial: Its compile.
        again: Compiles a copy of the graph in which the library kernels of problems are held.
        inputs: Real inputs.
        problem: The graph's facts.
        config: The options.
        limit_s: Seconds in which two graphs are run in turns.
    """

    compiled: Any
    trial: Trial
    again: Callable[[Held], Any]
    inputs: Sequence[Any]
    problem: Mapping[str, Any]
    config: Config
    limit_s: float


def install() -> None:
    """Wrap the function with which Inductor compiles a graph that is not in its cache."""
    module: Any = compile_fx_module
    stock = getattr(module, _NAME)
    if getattr(stock, "__module__", "") == __name__:
        return

    @functools.wraps(stock)
    def codegen(gm: Any, example_inputs: Sequence[Any], *arguments: Any, **keywords: Any) -> Any:
        config = active_config()
        if config is None or not _concerns(config) or V.aot_compilation or why_not_run(gm):
            return stock(gm, example_inputs, *arguments, **keywords)
        problem, original = problem_of(gm, example_inputs), copied(gm)
        trial, started = Trial(digest_of(problem)), time.perf_counter()
        with compiling(trial):
            compiled = stock(gm, example_inputs, *arguments, **keywords)
        limit_s = max(_LEAST_S, _SHARE * (time.perf_counter() - started))

        def again(given_up: Held) -> Any:
            own = {name: _apart(value) for name, value in keywords.items()}
            with compiling(Trial(trial.digest, given_up, is_extra=True)):
                return stock(copied(original), example_inputs, *arguments, **own)

        if isinstance(compiled, CompiledFxGraph):
            given_up = trial.in_effect
            if _is_due(trial, config):
                guarded = Guarded(compiled, trial, again, (), problem, config, limit_s)
                compiled, given_up = _guarded(guarded, example_inputs)
            agreed = trial.agreed(given_up)
            compiled = compiled if agreed == given_up else again(agreed)
        _carry(trial, config)
        return compiled

    codegen.__module__ = __name__
    setattr(module, _NAME, codegen)


def uninstall() -> None:
    """Restore Inductor's own function."""
    module: Any = compile_fx_module
    current = getattr(module, _NAME)
    if getattr(current, "__module__", "") == __name__:
        setattr(module, _NAME, current.__wrapped__)


def _apart(value: Any) -> Any:
    """Return a copy of an argument that a compile changes (`BoxedBool`), any other as it is."""
    return copy.copy(value) if dataclasses.is_dataclass(value) else value


def _choices(trial: Trial) -> dict[str, str]:
    """Return the winners that are no library kernels, by the digests of their problems."""
    winners = {ticket.digest: ticket.verdict for ticket in trial.tickets}
    return {
        digest: chosen
        for digest, verdict in winners.items()
        if verdict is not None
        and (chosen := verdict.given_up or verdict.winner) is not None
        and chosen != verdict.library
    }


def _concerns(config: Config) -> bool:
    """Return True if graphs are compared, or if the pin file says what some of them give up."""
    if config.policy == "pinned":
        return read_pins(config.pin_file).has(GRAPH)
    return config.verify_graph != "off"


def _is_due(trial: Trial, config: Config) -> bool:
    """Return True if a graph is to be compared: it has choices of ours that have not been, where something is measured."""
    choices = _choices(trial)
    if not choices or trial.store is None or config.policy != "tune":
        return False
    record = trial.store.record(trial.environment, GRAPH, trial.digest)
    if is_settled(record, choices):
        return False
    is_new = record is not None or not all(ticket.hit for ticket in trial.tickets)
    return is_new or config.verify_graph == "on"


def _carry(trial: Trial, config: Config) -> None:
    """Record the graph's record for ``torch.compiler.save_cache_artifacts``, if it has one."""
    store, environment = trial.store, trial.environment
    if store is None or config.cache == "off":
        return
    if store.record(environment, GRAPH, trial.digest) is not None:
        add_record(store, environment, GRAPH, trial.digest)


def _guarded(graph: Guarded, example_inputs: Sequence[Any]) -> tuple[Any, Held]:
    """Return the compiled graph, or one that gives up choices because it was slower than with library kernels, and which."""
    started, unchanged = time.perf_counter(), (graph.compiled, graph.trial.in_effect)
    try:
        with uncounted(), _random_numbers_kept(example_inputs):
            inputs = real_inputs(example_inputs)
            if inputs is None:
                return unchanged
            return _verified(dataclasses.replace(graph, inputs=inputs), _choices(graph.trial))
    except Exception as error:  # noqa: BLE001  the border: no compile fails because it was to be compared
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        warn_once(logger, f"a tuned graph was not compared with library kernels: {reason}")
        return unchanged
    finally:
        COUNTERS.add(compare_s=time.perf_counter() - started)
        verdicts = [ticket.verdict for ticket in graph.trial.tickets]
        unstored.mark_provisional(
            provisional=any(v is not None and v.provisional for v in verdicts)
        )


@contextmanager
def _random_numbers_kept(example_inputs: Sequence[Any]) -> Generator[None]:
    """Leave the user's random numbers as they are: a backward graph is compiled in the middle of a step."""
    devices = [value.device for value in example_inputs if isinstance(value, torch.Tensor)]
    random: Any = torch.random  # typed partly
    with random.fork_rng(devices=sorted({d.index or 0 for d in devices if d.type == "cuda"})):
        yield


def _verified(graph: Guarded, choices: Mapping[str, str]) -> tuple[Any, Held]:
    margin, library = graph.config.never_slower_margin, graph.again(_ALL)
    tried: dict[frozenset[str], tuple[Any, Comparison]] = {}

    def compared(compiled: Any) -> Comparison | None:
        return compare(compiled, library, graph.inputs, graph.limit_s)

    def is_fast(given_up: frozenset[str]) -> bool:
        compiled = graph.again(held(given_up))
        comparison = compared(compiled)
        if comparison is None:
            return False
        tried[given_up] = compiled, comparison
        return not (comparison.is_slower(margin) or comparison.disturbed)

    tuned = graph.again(Held()) if graph.trial.is_reduced else graph.compiled
    whole = compared(tuned)
    if whole is None:  # a few turns take too long
        return graph.compiled, graph.trial.in_effect
    if not whole.is_slower(margin):
        _keep(graph, choices, Held(), whole, whole)
        return tuned, Held()
    given_up = search(_most_suspicious_first(graph.trial, choices), is_fast)
    if given_up == frozenset(choices):
        _keep(graph, choices, _ALL, whole, whole)
        return library, _ALL
    compiled, best = tried[given_up]
    _keep(graph, choices, held(given_up), whole, best)
    return compiled, held(given_up)


def _most_suspicious_first(trial: Trial, choices: Mapping[str, str]) -> list[str]:
    """Return the problems with choices of ours, those that gain the least alone first."""
    gains = {
        ticket.digest: ticket.verdict.speedup or 1.0
        for ticket in trial.tickets
        if ticket.verdict is not None
    }
    return sorted(choices, key=lambda digest: (gains[digest], digest))


def _keep(
    graph: Guarded, choices: Mapping[str, str], given_up: Held, whole: Comparison, best: Comparison
) -> None:
    """Write the graph's record, and log it."""
    facts = dict(provenance(graph.trial.tickets[0].problem.output.device))
    rows = [
        row(TUNED, whole.tuned_ms, {**facts, "choices": dict(choices)}, disturbed=whole.disturbed),
        row(LIBRARY, whole.library_ms, facts, disturbed=whole.disturbed),
    ]
    speedup, reason = (
        whole.speedup,
        f"the tuned graph is {whole.speedup:.3f}x faster than with library kernels",
    )
    if given_up.everything:
        reason = f"{reason}, so that all library kernels stay"
        speedup = 1.0
    elif given_up.digests:
        rows.append(row(given_up.candidate, best.tuned_ms, facts, disturbed=best.disturbed))
        speedup = best.speedup
        reason = f"{reason}, {speedup:.3f}x with library kernels for {len(given_up.digests)} of {len(choices)} problems"
    now = time.time()
    decision = Decision(
        winner=given_up.candidate,
        library=LIBRARY,
        reason=reason,
        margin=graph.config.never_slower_margin,
        speedup=speedup,
        decided_at=now,
        candidates=len(rows),
    )
    record = record_of((graph.trial.environment, graph.trial.digest), graph.problem, rows, decision)
    assert graph.trial.store is not None
    graph.trial.store.put_record(record)
    COUNTERS.add(graphs_compared=1, graphs_reduced=int(given_up != Held()))
    line = f"inductor-plugin: {record.describe}: {reason}"
    logger.info("%s", line)
    show([line], graph.config, measured=True)
