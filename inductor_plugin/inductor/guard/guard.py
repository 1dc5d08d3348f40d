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
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.virtualized import V

from inductor_plugin.cache import digest_of
from inductor_plugin.cache.graph import TUNED, HeldProblems, choices_in
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.inductor.allowance import (
    LEAST_RUN_S,
    START_S,
    Allowance,
    Cost,
    account_of,
)
from inductor_plugin.inductor.artifacts.entries import add_record
from inductor_plugin.inductor.facts.scope import active_config, without_plugin
from inductor_plugin.inductor.graph import stored, unstored
from inductor_plugin.inductor.graph.due import (
    Due,
    due_of_decisions,
    first_of,
    is_for_comparison,
)
from inductor_plugin.inductor.graph.ranks import given_back_on_failure
from inductor_plugin.inductor.graph.record import is_cut, is_settled
from inductor_plugin.inductor.graph.trial import Trial, compiling
from inductor_plugin.inductor.guard.bench import (
    CompiledGraph,
    GraphBench,
    NotComparedError,
    is_ready,
    load_settings,
)
from inductor_plugin.inductor.guard.comparison import MOST_RUNS
from inductor_plugin.inductor.guard.description import CannotDescribeError, Described
from inductor_plugin.inductor.guard.fx_graph import copied, problem_of, uncounted, why_not_run
from inductor_plugin.inductor.guard.output_code import hidden, show
from inductor_plugin.inductor.guard.verification import GuardedGraph, VerifiedGraph, verified
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.pins.replay import read_pins
from inductor_plugin.tuning.validity import again_at, due_at, is_provisional
from inductor_plugin.worker.bench_farm.bench import FarmBench

logger = logging.getLogger(__name__)

_SHARE = 0.05
"""Share of the time of a compile in which two graphs are run in turns, at most."""
_ASKED_S = 5.0
"""Seconds in which graphs may be run in turns where the user has asked for it."""
_AFTER_FAILURE_S = 86400.0
"""Seconds after which a graph is compiled again whose comparison failed: the worker may have been killed by chance."""
_UNTUNED = {"max_autotune": False, "max_autotune_gemm": False, "max_autotune_pointwise": False}


@dataclass(frozen=True)
class _UncompiledGraph:
    """A graph before it is compiled, and how it is.

    Attributes:
        original: A copy of the graph, which compiling does not change; None if it must not be run.
        examples: Its example inputs.
        compile: Compiles a graph: Inductor's function with all other arguments.
    """

    original: fx.GraphModule | None
    examples: Sequence[Any]
    compile: Callable[[fx.GraphModule], Any]

    def again(self, trial: Trial) -> CompiledGraph:
        """Compile the graph once more, as a trial; nothing of it is counted, nor shown if it is only compared."""
        assert self.original is not None
        gm, seen = copied(self.original), hidden() if trial.is_extra else nullcontext()
        with compiling(trial), given_back_on_failure(), uncounted(), seen:
            return CompiledGraph(self.compile(gm), gm)


@given_back_on_failure()
def compile_graph(
    stock: Callable[..., Any],
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *arguments: Any,
    **keywords: Any,
) -> Any:
    """Compile a graph that is not in Inductor's cache, and compare it where the options say so.

    Args:
        stock: Inductor's function, ``fx_codegen_and_compile``.
        gm: The graph.
        example_inputs: Its example inputs.
        arguments: The others of Inductor's function.
        keywords: Likewise.
    """
    config = active_config()
    if config is None or not _concerns(config) or V.aot_compilation:
        return stock(gm, example_inputs, *arguments, **keywords)

    def once_more(graph: fx.GraphModule) -> Any:
        own = {name: _apart(value) for name, value in keywords.items()}
        return stock(graph, example_inputs, *arguments, **own)

    problem, (original, reason) = problem_of(gm, example_inputs), _original(gm)
    source = _UncompiledGraph(original, example_inputs, once_more)
    trial, waited_s, started = Trial(digest_of(problem)), _waited_s(), time.perf_counter()
    with compiling(trial):
        compiled = stock(gm, example_inputs, *arguments, **keywords)
    elapsed_s, at_once = time.perf_counter() - started, unstored.is_due_at_once()
    allowance = _allowance(trial, config, elapsed_s)
    if isinstance(compiled, CompiledFxGraph):
        is_waiting = _is_waiting(trial)
        graph, due = VerifiedGraph(compiled, trial.in_effect, is_settled=not is_waiting), None
        if allowance is not None and not is_waiting and _is_due(trial, config):
            own_s = max(0.0, elapsed_s - (_waited_s() - waited_s))
            cost = _cost(trial, own_s, elapsed_s)
            if reason:
                _leave_out(problem, reason)
            elif why := _too_dear(cost, config, allowance):
                _leave_out(problem, why)
                due = _due(trial, own_s, cost)
            else:
                tuned = CompiledGraph(compiled, gm)
                make = functools.partial(
                    _of, tuned, trial, source, problem, config, cost, allowance
                )
                graph = _guarded(make, graph, problem, _spending(config, allowance))
                due = _due(trial, own_s, replace(cost, runs=MOST_RUNS)) if graph.is_cut else None
        compiled, given_up = _as_agreed(trial, graph, compiled, source)
        if trial.place is not None:
            stored.add_graph(trial.place, trial.name, given_up)
        _mark(trial, graph, due, at_once=at_once)
    _carry(trial, config)
    return compiled


def _as_agreed(
    trial: Trial, graph: VerifiedGraph, compiled: Any, source: _UncompiledGraph
) -> tuple[Any, HeldProblems]:
    """Return the code that runs and what it gives up: in a job what its ranks have agreed on.

    There no code of a comparison runs, as some of its problems were decided by this rank alone. What the ranks give up is
    compiled once more as any graph: it may ask for fusions that the whole graph has not, which the job decides then.

    Args:
        trial: The graph's compile.
        graph: What the comparison has found.
        compiled: What was compiled first.
        source: The graph before that.
    """
    agreed = trial.agreed(graph.given_up)
    if trial.share is None or source.original is None:
        show(graph.code, instead_of=compiled)
        return graph.code, graph.given_up
    if agreed == trial.in_effect:
        return compiled, agreed
    again = Trial(trial.digest, agreed)
    code = source.again(again).code
    trial.tickets += again.tickets  # what these wait for makes the graph due, too
    return code, agreed


def _original(gm: fx.GraphModule) -> tuple[fx.GraphModule | None, str]:
    """Return a copy of a graph, or why it must not or cannot be compiled and run once more."""
    if reason := why_not_run(gm):
        return None, reason
    try:
        return copied(gm), ""
    except Exception as error:  # noqa: BLE001  the border: no compile fails because it was to be compared
        return None, f"it cannot be copied: {type(error).__name__}: {error}"


def _apart(value: Any) -> Any:
    """Return a copy of an argument that a compile changes (`BoxedBool`), any other as it is."""
    return copy.copy(value) if dataclasses.is_dataclass(value) else value


def _waited_s() -> float:
    """Return the seconds that compiles of this process have waited for tuning."""
    return COUNTERS.snapshot().wall_s


def _allowance(trial: Trial, config: Config, elapsed_s: float) -> Allowance | None:
    """Return the seconds that comparisons of a graph's environment may take; None where nothing is compared.

    With ``auto`` a compile earns its share. One that is made only because there is time now to compare its graph earns
    nothing, but is a part of the comparison.
    """
    if trial.store is None or config.policy != "tune":
        return None
    allowance, is_again = Allowance(trial.store, account_of(trial.environment)), is_for_comparison()
    if config.verify_graph == "auto" and is_again:
        allowance.spend(elapsed_s)
    elif config.verify_graph == "auto":
        allowance.earn(config.verify_graph_share * elapsed_s)
    return allowance


def _cost(trial: Trial, own_s: float, elapsed_s: float) -> Cost:
    """Return what comparing a graph is expected to take.

    Args:
        trial: Its compile.
        own_s: Seconds of that without tuning.
        elapsed_s: All its seconds.
    """
    start_s = 0.0 if is_ready(trial.context.device) else START_S
    # Where the graph gives up problems already, the tuned graph is a further compile.
    runs = (MOST_RUNS if is_cut(trial.record) else 0) + trial.is_reduced
    return Cost(own_s, start_s, max(LEAST_RUN_S, _SHARE * elapsed_s), runs)


def _due(trial: Trial, own_s: float, cost: Cost) -> Due:
    """Return how much the allowance has to have until the graph is compiled again, to be compared; times vary by half."""
    need_s = 1.5 * (own_s + cost.total_s)
    return Due(need_s=need_s, account=account_of(trial.environment))


def _too_dear(cost: Cost, config: Config, allowance: Allowance) -> str:
    """Return why a comparison would take too long, empty if it may be made: always where it is asked for."""
    if config.verify_graph == "on":
        return ""
    return cost.why_left_out(allowance.left_s, config.verify_graph_share)


def _spending(config: Config, allowance: Allowance) -> Callable[[float], None]:
    """Return what takes the seconds of a comparison: where it is asked for, it is no matter of the allowance."""
    return allowance.spend if config.verify_graph == "auto" else lambda _: None


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
    """Return True if a graph is to be compared: it has choices of ours that have not been, where something is measured.

    Also where another process has chosen: it may have had no time to compare it.
    """
    choices = _choices(trial)
    return bool(choices) and config.policy == "tune" and not is_settled(trial.record, choices)


def _is_waiting(trial: Trial) -> bool:
    """Return True if other work has disturbed the last comparison of these choices, and it is too early for another."""
    record = trial.record
    tuned = record.candidates.get(TUNED) if record is not None else None
    if record is None or tuned is None or not is_provisional(tuned):
        return False
    return choices_in(record) == _choices(trial) and time.time() < due_at(tuned)


def _carry(trial: Trial, config: Config) -> None:
    """Record the graph's record for ``torch.compiler.save_cache_artifacts``, if it has one."""
    if trial.store is not None and config.cache != "off" and trial.record is not None:
        add_record(trial.store, trial.environment, GRAPH, trial.digest)


def _mark(trial: Trial, graph: VerifiedGraph, due: Due | None, *, at_once: bool) -> None:
    """Store what makes a graph due: provisional decisions, a disturbed or failed comparison, or that there was no time for one.

    Args:
        trial: Its compile.
        graph: What runs.
        due: What makes a later compile compare it; None if nothing does.
        at_once: Whether its own compile has left a problem undecided.
    """
    tuned = None if graph.is_settled or trial.record is None else trial.record.candidates.get(TUNED)
    again = None if graph.is_settled else Due(at=again_at([tuned] if tuned is not None else []))
    left = Due(at=0.0) if at_once else None
    failed = Due(at=time.time() + _AFTER_FAILURE_S) if graph.is_failed else None
    unstored.mark_due(first_of([due_of_decisions(trial.tickets), again, left, failed, due]))


def _guarded(
    make: Callable[[], GuardedGraph],
    compiled: VerifiedGraph,
    problem: Mapping[str, Any],
    spend: Callable[[float], None],
) -> VerifiedGraph:
    """Return the compiled graph, or one that gives up choices because it was slower than with library kernels.

    Args:
        make: Returns what it takes to compare the graph.
        compiled: The graph as it was compiled.
        problem: Its facts.
        spend: Called with the seconds that this took.
    """
    started = time.perf_counter()
    try:
        graph = make()
        return verified(graph, _choices(graph.trial))
    except CannotDescribeError as error:
        _leave_out(problem, str(error))
        return compiled
    except NotComparedError as error:
        _leave_out(problem, str(error))
        return replace(compiled, is_failed=True)
    except Exception as error:  # noqa: BLE001  the border: no compile fails because it was to be compared
        COUNTERS.add(graphs_left_out=1)
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        warn_once(logger, f"a tuned graph was not compared with library kernels: {said}")
        return replace(compiled, is_failed=True)
    finally:
        spent_s = time.perf_counter() - started
        spend(spent_s)
        COUNTERS.add(compare_s=spent_s)


def _leave_out(problem: Mapping[str, Any], reason: str) -> None:
    """Log and count that a graph was not compared."""
    COUNTERS.add(graphs_left_out=1)
    what = f"graph of {problem['nodes']} nodes"
    logger.info("%s was not compared with library kernels: %s", what, reason)


def _of(
    compiled: CompiledGraph,
    trial: Trial,
    source: _UncompiledGraph,
    problem: Mapping[str, Any],
    config: Config,
    cost: Cost,
    allowance: Allowance,
) -> GuardedGraph:
    """Return what it takes to compare a graph.

    Raises:
        CannotDescribeError: An input is nothing that can be made up, or nothing of the graph can be carried to where it would run.
    """
    assert source.original is not None
    is_asked = config.verify_graph == "on"
    worker = trial.context.bench()
    if isinstance(worker, FarmBench):
        raise CannotDescribeError(
            "nodes of a farm measure (option bench_farm), which have neither its code nor its weights"
        )
    bench = GraphBench(
        worker, Described(source.original, source.examples), load_settings(worker.settings.device)
    )

    def again(given_up: HeldProblems) -> CompiledGraph:
        return source.again(Trial(trial.digest, given_up, is_extra=True))

    def runs_after(spent_s: float) -> int:
        return MOST_RUNS if is_asked else cost.runs_in(allowance.left_s - spent_s, MOST_RUNS)

    def plain() -> CompiledGraph:
        options: Any = inductor_config  # typed partly
        with options.patch({**_UNTUNED, **without_plugin()}):
            return source.again(Trial(trial.digest, is_extra=True))

    return GuardedGraph(
        compiled,
        trial,
        again,
        plain if is_asked else None,
        bench,
        problem,
        config,
        max(cost.run_s, _ASKED_S) if is_asked else cost.run_s,
        runs_after,
    )
