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
from torch._inductor.utils import get_donated_idxs
from torch._inductor.virtualized import V

from inductor_plugin.cache import digest_of
from inductor_plugin.cache.graph import HeldProblems
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.inductor.allowance import Allowance, Cost, account_of
from inductor_plugin.inductor.artifacts.entries import add_record
from inductor_plugin.inductor.facts.scope import active_config, without_plugin
from inductor_plugin.inductor.graph import stored, unstored
from inductor_plugin.inductor.graph.due import Due, settle, taken_dropped
from inductor_plugin.inductor.graph.ranks import given_back_on_failure
from inductor_plugin.inductor.graph.trial import Trial, compiling
from inductor_plugin.inductor.guard.bench import (
    CallsTooLongError,
    CompiledGraph,
    GraphBench,
    NotComparedError,
    load_settings,
)
from inductor_plugin.inductor.guard.comparison import MOST_RUNS
from inductor_plugin.inductor.guard.description import CannotDescribeError, Described
from inductor_plugin.inductor.guard.fx_graph import copied, problem_of, uncounted, why_not_run
from inductor_plugin.inductor.guard.output_code import hidden, show
from inductor_plugin.inductor.guard.schedule import (
    allowance_of,
    choices_of,
    cost_of,
    due_of_graph,
    due_once_saved,
    is_due,
    is_waiting,
    mark,
    most_s,
    turns_s,
)
from inductor_plugin.inductor.guard.verification import GuardedGraph, VerifiedGraph, verified
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.pins.replay import read_pins
from inductor_plugin.worker.bench_farm.bench import FarmBench

logger = logging.getLogger(__name__)

_ASKED = "a graph was not compared with verify_graph=on"
_UNTUNED = {"max_autotune": False, "max_autotune_gemm": False, "max_autotune_pointwise": False}


@dataclass(frozen=True)
class _UncompiledGraph:
    """A graph before it is compiled, and how it is.

    Attributes:
        original: A copy of the graph, which compiling does not change; None if it must not be run.
        examples: Its example inputs.
        compile: Compiles a graph: Inductor's function with all other arguments.
        donated: As of `GraphBench`.
    """

    original: fx.GraphModule | None
    examples: Sequence[Any]
    compile: Callable[[fx.GraphModule], Any]
    donated: tuple[int, ...] = ()

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
    config, dropped = active_config(), taken_dropped()

    def once() -> Any:
        return stock(gm, example_inputs, *arguments, **keywords)

    if config is None or V.aot_compilation:
        return once()
    if not _concerns(config):
        compiled, elapsed_s, own_s = _timed(once)
        unstored.charge(settle(config, dropped, elapsed_s), own_s)
        return compiled

    def once_more(graph: fx.GraphModule) -> Any:
        own = {name: _apart(value) for name, value in keywords.items()}
        return stock(graph, example_inputs, *arguments, **own)

    problem, (original, reason) = problem_of(gm, example_inputs), _original(gm)
    source = _UncompiledGraph(original, example_inputs, once_more, _donated(keywords))
    trial = Trial(digest_of(problem))
    with compiling(trial):
        compiled, elapsed_s, own_s = _timed(once)
    at_once = unstored.is_due_at_once()
    allowance = allowance_of(trial, config, elapsed_s, dropped)
    if isinstance(compiled, CompiledFxGraph):
        tuned = _TunedGraph(
            CompiledGraph(compiled, gm), trial, source, problem, config, own_s, elapsed_s, reason
        )
        graph, due = _compared(tuned, allowance)
        graph = _as_agreed(tuned, graph)
        if trial.place is not None:
            stored.add_graph(trial.place, trial.name, graph.given_up)
        mark(trial, graph, due, at_once=at_once, failures=dropped.failures)
        unstored.charge(account_of(trial.environment) if trial.store is not None else "", own_s)
        compiled = graph.code
    _carry(trial, config)
    return compiled


@dataclass(frozen=True)
class _TunedGraph:
    """A graph that was compiled and tuned, as far as it is known whether it is compared.

    Attributes:
        compiled: The compiled graph.
        trial: Its compile.
        source: How it is compiled again.
        problem: Its facts.
        config: The options.
        own_s: Seconds of its compile without tuning.
        elapsed_s: All its seconds.
        reason: Why it must not or cannot be compiled and run once more, empty if it may be.
    """

    compiled: CompiledGraph
    trial: Trial
    source: _UncompiledGraph
    problem: Mapping[str, Any]
    config: Config
    own_s: float
    elapsed_s: float
    reason: str


def _compared(tuned: _TunedGraph, allowance: Allowance | None) -> tuple[VerifiedGraph, Due | None]:
    """Return a graph as it is to run, compared where it is time for that, and what makes a later compile compare it."""
    trial, config = tuned.trial, tuned.config
    is_late = is_waiting(trial)
    graph = VerifiedGraph(tuned.compiled.code, trial.in_effect, is_settled=not is_late)
    if allowance is None or is_late or not is_due(trial, config):
        return graph, None
    cost = cost_of(trial, tuned.own_s, tuned.elapsed_s)
    if tuned.reason:
        _leave_out(tuned.problem, tuned.reason, config)
        return graph, None
    if why := _too_dear(cost, config, allowance):
        _leave_out(tuned.problem, why, config)
        return graph, due_once_saved(trial, tuned.own_s, cost)
    make = functools.partial(_of, tuned, cost, allowance)
    graph = _guarded(make, graph, tuned.problem, config, _spending(config, allowance))
    return graph, due_of_graph(trial, tuned.own_s, cost, graph, config)


def _as_agreed(tuned: _TunedGraph, graph: VerifiedGraph) -> VerifiedGraph:
    """Return a graph as it runs: in a job, giving up what its ranks have decided.

    There no code of a comparison runs, as some of its problems were decided by this rank alone. What the ranks give up is
    compiled once more as any graph: it may ask for fusions that the whole graph has not, which the job decides then. Where
    it cannot be compiled so, the graph runs as it was compiled first: a rank without the graph would end the job.
    """
    trial, first = tuned.trial, tuned.compiled.code
    agreed = trial.agreed(graph.given_up)
    if trial.share is None:
        show(graph.code, instead_of=first)
        return graph
    own = replace(graph, code=first, given_up=trial.in_effect)
    if agreed == own.given_up:
        return own
    said = "there is no copy of it"
    try:
        if tuned.source.original is not None:
            again = Trial(trial.digest, agreed)
            code = tuned.source.again(again).code
            trial.tickets += again.tickets  # what these wait for makes the graph due, too
            return replace(graph, code=code, given_up=agreed)
    except Exception as error:  # noqa: BLE001  the border: no compile fails because another rank has compared the graph
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
    warn_once(
        logger,
        "this rank runs a graph with other kernels than the ranks of its job have decided for: it cannot be compiled with "
        f"those ({said}); verify_ranks() names the difference",
    )
    return own


def _donated(keywords: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the indices of the inputs in which a graph may write its results: saved tensors that only this backward graph reads.

    Args:
        keywords: Those of Inductor's function. For a forward graph, the tracing context has those of its backward graph.
    """
    return tuple(get_donated_idxs() or ()) if keywords.get("is_backward") else ()


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


def _timed(compile_once: Callable[[], Any]) -> tuple[Any, float, float]:
    """Compile a graph; return it, the seconds that took, and those of them without tuning."""
    waited_s, started = _waited_s(), time.perf_counter()
    compiled = compile_once()
    elapsed_s = time.perf_counter() - started
    return compiled, elapsed_s, max(0.0, elapsed_s - (_waited_s() - waited_s))


def _waited_s() -> float:
    """Return the seconds that compiles of this process have waited for tuning."""
    return COUNTERS.snapshot().wall_s


def _too_dear(cost: Cost, config: Config, allowance: Allowance) -> str:
    """Return why a comparison would take too long, empty if it may be made: always where it is asked for."""
    if config.verify_graph == "on":
        return ""
    return cost.why_left_out(allowance.left_s, config.verify_graph_share)


def _spending(config: Config, allowance: Allowance) -> Callable[[float], None]:
    """Return what takes the seconds of a comparison: where it is asked for, it is no matter of the allowance."""
    return allowance.spend if config.verify_graph == "auto" else lambda _: None


def _concerns(config: Config) -> bool:
    """Return True if graphs are compared, or if the pin file says what some of them give up."""
    if config.policy == "pinned":
        return read_pins(config.pin_file).has(GRAPH)
    return config.verify_graph != "off"


def _carry(trial: Trial, config: Config) -> None:
    """Record the graph's record for ``torch.compiler.save_cache_artifacts``, if it has one."""
    if trial.store is not None and config.cache != "off" and trial.record is not None:
        add_record(trial.store, trial.environment, GRAPH, trial.digest)


def _guarded(
    make: Callable[[], GuardedGraph],
    compiled: VerifiedGraph,
    problem: Mapping[str, Any],
    config: Config,
    spend: Callable[[float], None],
) -> VerifiedGraph:
    """Return the compiled graph, or one that gives up choices because it was slower than with library kernels.

    Args:
        make: Returns what it takes to compare the graph.
        compiled: The graph as it was compiled.
        problem: Its facts.
        config: The options.
        spend: Called with the seconds that this took.
    """
    started = time.perf_counter()
    try:
        graph = make()
        return verified(graph, choices_of(graph.trial))
    except CannotDescribeError as error:
        _leave_out(problem, str(error), config)
        return compiled
    except CallsTooLongError as error:
        _leave_out(problem, str(error), config)
        return replace(compiled, need_s=error.need_s)
    except NotComparedError as error:
        _leave_out(problem, str(error), config)
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


def _leave_out(problem: Mapping[str, Any], reason: str, config: Config) -> None:
    """Log and count that a graph was not compared; where the user has asked for it, warn of the first."""
    COUNTERS.add(graphs_left_out=1)
    text = f"graph of {problem['nodes']} nodes was not compared with library kernels: {reason}"
    if config.verify_graph == "on":
        warn_once(logger, f"{text} (of others the log says so at level INFO)", topic=_ASKED)
    logger.info("%s", text)


def _of(tuned: _TunedGraph, cost: Cost, allowance: Allowance) -> GuardedGraph:
    """Return what it takes to compare a graph.

    Raises:
        CannotDescribeError: An input is nothing that can be made up, or nothing of the graph can be carried to where it would run.
    """
    trial, source, config = tuned.trial, tuned.source, tuned.config
    assert source.original is not None
    is_asked = config.verify_graph == "on"
    worker = trial.context.bench()
    if isinstance(worker, FarmBench):
        raise CannotDescribeError(
            "nodes of a farm measure (option bench_farm), which have neither its code nor its weights"
        )
    described = Described(source.original, source.examples)
    settings = load_settings(worker.settings.device)
    bench = GraphBench(worker, described, settings, source.donated)

    def again(given_up: HeldProblems) -> CompiledGraph:
        return source.again(Trial(trial.digest, given_up, is_extra=True))

    def most_after(spent_s: float) -> float:
        return most_s(cost, config, allowance.left_s - spent_s)

    def runs_after(spent_s: float, run_s: float) -> int:
        each = replace(cost, run_s=max(cost.run_s, run_s))
        return MOST_RUNS if is_asked else each.runs_in(allowance.left_s - spent_s, MOST_RUNS)

    def plain() -> CompiledGraph:
        options: Any = inductor_config  # typed partly
        with options.patch({**_UNTUNED, **without_plugin()}):
            return source.again(Trial(trial.digest, is_extra=True))

    return GuardedGraph(
        tuned.compiled,
        trial,
        again,
        plain if is_asked else None,
        bench,
        tuned.problem,
        config,
        turns_s(cost, config),
        most_after,
        runs_after,
    )
