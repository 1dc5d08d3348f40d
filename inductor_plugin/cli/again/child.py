"""What a script of `repro` does with this package: it meets the record's decision, and `bench` times it.

The script is a module whose text is in `repro/body.py`: the call, its operands, its check.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import inductor_plugin
from inductor_plugin.device import BoundCall, Timer
from inductor_plugin.tuning.race import final_sampling
from inductor_plugin.tuning.report.regret import bound, interval, sureness
from inductor_plugin.worker.devices.lookup import known
from inductor_plugin.worker.echo import Echoed
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import repeats_for, timer_for

_ROUNDS = 12
"""Fewest turns of a comparison; where other work disturbs turns, as many as `_PATIENCE_S` allows."""
_FEWEST = 4
"""Calm turns that a comparison needs: every second finds the fastest, the others say by how much. Of so few there is no interval."""
_MOST = 1000
_TRIES = 3
"""Times that a sample is taken until it is calm; with more candidates a turn would seldom be."""
_PATIENCE_S = 60.0
"""Seconds in which turns are taken again that were disturbed."""


class DisturbedError(Exception):
    """Other work on the machine has disturbed almost all samples."""


def main(script: Any) -> int:
    """Run the call of a script as it is recorded, and check or time it. Return the exit status.

    Args:
        script: Its module.
    """
    arguments = _parsed(script)
    register(arguments.register)
    folder = tempfile.TemporaryDirectory(
        prefix="inductor-plugin-repro-", ignore_cleanup_errors=True
    )
    with folder as empty:
        recorded = empty if arguments.policy == "tune" else script.CACHE_DIR
        options = {"policy": arguments.policy, "cache_dir": arguments.cache_dir or recorded}
        options |= {"cache_read": ""} if arguments.policy == "tune" else {}
        module = script.Call()
        modules = _with_echo(script, module) if arguments.bench is not None else [module]
        run, tickets = _compiled(script, modules, options)
        winner = chosen(script, tickets)
        if arguments.bench is None:
            return script.check(module, run)
        if winner is None:
            print("nothing to compare with the library kernel")
            return 2
        device = next(t.problem.output.device for t in tickets if t.digest == script.DIGEST)
        # Without a record, the library kernel runs.
        without = {"policy": "cached", "cache_dir": f"{empty}/library", "cache_read": ""}
        library, tickets = _compiled(script, modules, without)
        for ticket in tickets:
            print(f"compared with: {ticket.verdict.winner if ticket.verdict else 'stock'}")
        rivals: dict[str, BoundCall] = {}
        for pins in arguments.rival:
            pinned = {**options, "policy": "pinned", "pin_file": pins}
            rival, tickets = _compiled(script, modules, pinned)
            rivals.setdefault(chosen(script, tickets) or winner, rival)
        try:
            _time(arguments, winner, {**rivals, "": library, winner: run}, device)
        except DisturbedError as error:
            print(error)
            return 2
        return 0


def register(specs: Sequence[str]) -> None:
    """Register templates by ``module:class``; a module may lie in the current folder, as that of `tune`."""
    here = str(Path.cwd())
    if specs and here not in sys.path:
        sys.path.insert(0, here)
    for module, _, name in (spec.partition(":") for spec in specs):
        inductor_plugin.register(getattr(importlib.import_module(module), name)())


def _parsed(script: Any) -> Namespace:
    parser = ArgumentParser(description=script.__doc__.splitlines()[0])
    add, folder = parser.add_argument, script.CACHE_DIR.replace("%", "%%")
    add("--cache-dir", help=f"the plugin's cache; {folder} by default")
    tune = (
        "measured again, in an empty cache that is removed afterwards, unless --cache-dir names one"
    )
    policy = f"cached: as recorded; tune: {tune}"
    add("--policy", help=policy, choices=("cached", "tune"), default="cached")
    library = "time the call against the one with the library kernel, in turns"
    add("--bench", type=float, metavar="SECONDS", help=library)
    add("--json", metavar="FILE", type=Path, help="write the times there, as JSON")
    rival = "a file of decisions (`inductor-plugin pin`): time the kernel that it names, too"
    add("--rival", metavar="FILE", action="append", default=[], help=rival)
    template = "a template that is no part of the plugin"
    add("--register", action="append", default=[], metavar="MODULE:CLASS", help=template)
    add(
        "--stock",
        action="store_true",
        help="compile with Inductor alone; goes without other options",
    )
    arguments = parser.parse_args()
    if arguments.stock:
        parser.error("--stock goes alone: nothing else is said to Inductor")
    return arguments


def _with_echo(script: Any, module: Any) -> list[Any]:
    """Return the call's module, and on a CPU one with other operands: an echo, as in the plugin's finals (`Echoed`)."""
    on_host = all(operand.device.type == "cpu" for operand in module.inputs)
    return [module, script.Call()] if on_host else [module]


def _compiled(
    script: Any, modules: Sequence[Any], options: Mapping[str, str]
) -> tuple[BoundCall, list[Any]]:
    """Compile the call, and its echo if there is a module for it; return the call, and what was decided meanwhile."""
    tickets: list[Any] = []
    every = {**script.OPTIONS, **options, "remote_url": ""}
    compiled = partial(script.compiled, backend="inductor_plugin", options=every)
    with inductor_plugin.observe(tickets.extend):
        run = compiled(modules[0])
    echo = [compiled(module) for module in modules[1:]]
    return Echoed(run, *echo) if echo else run, tickets


def chosen(script: Any, tickets: Sequence[Any]) -> str | None:
    """Say which kernel runs, and return its name; None where the record was not met."""
    for ticket in tickets:
        if ticket.digest == script.DIGEST and ticket.verdict is not None:
            winner = ticket.verdict.winner
            same = (
                "as recorded" if winner == script.WINNER else f"the record says {script.WINNER!r}"
            )
            how = "two kernels, not fused" if "unfused" in winner else "one kernel, fused"
            how = "two kernels, fused in part" if "+rest-" in winner else how
            how = f"; {how}" if script.EPILOGUE else ""
            print(f"chosen: {winner} ({same}; {ticket.verdict.reason}{how})")
            return winner
    met = ", ".join(f"{t.problem.describe()} {t.digest[:12]}" for t in tickets) or "none"
    print(f"chosen: the call was not this record; what was decided: {met}")
    return None


def _time(arguments: Namespace, winner: str, calls: Mapping[str, BoundCall], device: str) -> None:
    """Time the winner, the library kernel (``""``) and rivals; print the speedup and write the times.

    They are sampled as the finals of a race are: what decides and what judges the decision measure the same.

    Raises:
        DisturbedError: Other work has disturbed almost all samples.
    """
    sampling = final_sampling(known(device))
    samples, count = in_turns(calls, arguments.bench, timer_for(device), sampling)
    times: dict[str, Any] = {**compared(samples[winner], samples.pop("")), "calls": count}
    times["winner"] = winner
    said = "winner {winner_ms:.4g} ms, library kernel {library_ms:.4g} ms a call: {speedup:.3f}x"
    print(f"{said}, {{sure}} ({{rounds}} rounds)".format(**times, sure=sureness(times)))
    if arguments.json:
        times |= {"samples_ms": samples} if arguments.rival else {}
        arguments.json.write_text(json.dumps(times), encoding="utf-8")


def in_turns(
    calls: Mapping[str, BoundCall], seconds: float, timer: Timer, sampling: Sampling
) -> tuple[dict[str, list[float]], int]:
    """Time calls in turns, so that all meet the same disturbances; return each one's samples, and calls a sample.

    A turn in which other work has prolonged a sample leaves none.

    Args:
        calls: By name.
        seconds: How long; twelve calm turns at least, as far as a minute more suffices for them.
        timer: That of their device.
        sampling: How samples are taken.

    Raises:
        DisturbedError: Fewer than four turns were calm.
    """
    timer.prepare()
    count = max(repeats_for(timer, call, sampling) for call in calls.values())
    timer.warm(next(iter(calls.values())))
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, turns, calm, started = list(calls), 0, 0, time.perf_counter()
    while calm < _MOST:
        elapsed_s = time.perf_counter() - started
        wanted_s = seconds if calm >= _ROUNDS else seconds + _PATIENCE_S
        if elapsed_s >= wanted_s and turns >= _ROUNDS:
            break
        order = names if turns % 2 else names[::-1]
        turn = {name: _calm_ms(timer, calls[name], count, sampling) for name in order}
        turns += 1
        samples = {name: value_ms for name, value_ms in turn.items() if value_ms is not None}
        if len(samples) == len(calls):
            calm += 1
            for name, value_ms in samples.items():
                times[name].append(value_ms)
    if calm < _FEWEST:
        raise DisturbedError(f"other work on the machine disturbed all but {calm} of {turns} turns")
    return times, count


def _calm_ms(timer: Timer, call: BoundCall, count: int, sampling: Sampling) -> float | None:
    """Return a sample in milliseconds; None if other work disturbs it each time."""
    for _ in range(_TRIES):
        value_ms = timer.sample(call, count, cold=sampling.cold_cache)
        if not (timer.disturbed and sampling.retake_s):
            return value_ms
    return None


def compared(winner: Sequence[float], library: Sequence[float]) -> dict[str, float | None]:
    """Return how much faster the winner is than the library kernel, by their samples in turns."""
    speedup, low, high = interval([b / a for a, b in zip(winner, library, strict=True)])
    return {
        "winner_ms": interval(winner)[0],
        "library_ms": interval(library)[0],
        "speedup": speedup,
        "low": low,
        "high": bound(high),
        "rounds": len(winner),
    }
