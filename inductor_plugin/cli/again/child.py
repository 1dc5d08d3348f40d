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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

import inductor_plugin
from inductor_plugin.device import BoundCall
from inductor_plugin.tuning.report.regret import interval

_ROUNDS = 10
"""Fewest turns of a comparison."""


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
        module = script.Call()
        run, tickets = _compiled(script, module, options)
        winner = chosen(script, tickets)
        if arguments.bench is None:
            return script.check(module, run)
        if winner is None:
            print("nothing to compare with the library kernel")
            return 2
        # Without a record, the library kernel runs.
        without = {"policy": "cached", "cache_dir": f"{empty}/library"}
        library, tickets = _compiled(script, module, without)
        for ticket in tickets:
            print(f"compared with: {ticket.verdict.winner if ticket.verdict else 'stock'}")
        rivals: dict[str, BoundCall] = {}
        for pins in arguments.rival:
            pinned = {**options, "policy": "pinned", "pin_file": pins}
            rival, tickets = _compiled(script, module, pinned)
            rivals.setdefault(chosen(script, tickets) or winner, rival)
        _time(arguments, winner, {**rivals, "": library, winner: run})
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


def _compiled(script: Any, module: Any, options: Mapping[str, str]) -> tuple[BoundCall, list[Any]]:
    """Compile the call; return it, and what was decided meanwhile."""
    tickets: list[Any] = []
    every = {**script.OPTIONS, **options, "remote_url": ""}
    with inductor_plugin.observe(tickets.extend):
        return script.compiled(module, backend="inductor_plugin", options=every), tickets


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


def _time(arguments: Namespace, winner: str, calls: Mapping[str, BoundCall]) -> None:
    """Time the winner, the library kernel (``""``) and rivals; print the speedup and write the times."""
    samples, count = in_turns(calls, arguments.bench)
    times: dict[str, Any] = {**compared(samples[winner], samples.pop("")), "calls": count}
    print(
        "winner {winner_ms:.4g} ms, library kernel {library_ms:.4g} ms a call: {speedup:.3f}x, with "
        "95 % between {low:.3f}x and {high:.3f}x ({rounds} rounds)".format(**times)
    )
    if arguments.json:
        times |= {"samples_ms": samples} if arguments.rival else {}
        arguments.json.write_text(json.dumps(times), encoding="utf-8")


def in_turns(
    calls: Mapping[str, BoundCall],
    seconds: float,
    timed: Callable[[BoundCall, int], float] | None = None,
) -> tuple[dict[str, list[float]], int]:
    """Time calls in turns, so that all meet the same disturbances; return each one's samples, and calls a sample.

    Args:
        calls: By name.
        seconds: How long, ten turns at least.
        timed: Returns the milliseconds of a call, as the mean of so many.
    """
    timed = timed or _timed
    # A millisecond is long for the clock and short for the scheduler; the least of some calls, since
    # one may meet a disturbance.
    once = max(min(timed(call, 1) for _ in range(10)) for call in calls.values())
    count = max(1, int(1.0 / max(once, 1e-3)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, turns, end = list(calls), 0, time.perf_counter() + seconds
    while turns < _ROUNDS or (time.perf_counter() < end and turns < 1000):
        for name in names if turns % 2 else reversed(names):
            times[name].append(timed(calls[name], count))
        turns += 1
    return times, count


def _timed(call: BoundCall, count: int) -> float:
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.timeit(count).mean * 1e3


def compared(winner: Sequence[float], library: Sequence[float]) -> dict[str, float]:
    """Return how much faster the winner is than the library kernel, by their samples in turns."""
    speedup, low, high = interval([b / a for a, b in zip(winner, library, strict=True)])
    return {
        "winner_ms": interval(winner)[0],
        "library_ms": interval(library)[0],
        "speedup": speedup,
        "low": low,
        "high": high,
        "rounds": len(winner),
    }
