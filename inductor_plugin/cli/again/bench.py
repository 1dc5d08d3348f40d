"""The verb that times recorded calls again, each in a process of its own. It starts without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.cli.source import environments_here
from inductor_plugin.cli.verb import Verb, check_op, find_record, open_cache, say, seconds
from inductor_plugin.config import process_environment
from inductor_plugin.errors import CacheError, printable
from inductor_plugin.repro.script import script
from inductor_plugin.tuning.pins.document import dump
from inductor_plugin.tuning.pins.pin import pin_file, pin_of
from inductor_plugin.tuning.report.page.groups import groups_of
from inductor_plugin.tuning.report.regret import losses, regret, rivals, row, summary, sureness
from inductor_plugin.tuning.report.regret import text as regret_text

_START_S = 900.0
"""Longest time for starting a process and compiling a graph twice."""


def _bench_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "key",
        metavar="KEY",
        nargs="?",
        help="start of a record's key, or environment/key; `ls` shows them",
    )
    parser.add_argument(
        "--regret",
        action="store_true",
        help="time the winners of all records of this machine, or of KEY, against their other candidates",
    )
    parser.add_argument("--op", help="with --regret: only records of this operator")
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=5.0,
        metavar="TIME",
        help="how long to measure a record, at least twelve rounds; 5s by default",
    )
    parser.add_argument(
        "--register",
        metavar="MODULE:CLASS",
        action="append",
        default=[],
        help="template of another package",
    )


def _bench(arguments: Namespace) -> int:
    """Run the script of a record, which times the winner and the library kernel in turns."""
    if arguments.op and not (arguments.regret and arguments.key is None):
        raise CacheError("--op chooses among all records, so it goes with --regret, without a key")
    store = open_cache(arguments)
    if arguments.regret:
        return _bench_regret(arguments, store)
    if arguments.key is None:
        raise CacheError("name a record by its key, or write --regret for all of this machine")
    _, record = find_record(store, arguments.key, "are of one call; see `ls`")
    fields = _timed(arguments, store, record)
    fields |= {"key": record.digest, "recorded": record.decision and record.decision.speedup}
    slower = fields["high"] is not None and fields["high"] < 1.0
    text = (
        f"{printable(record.describe)}\n"
        f"winner {fields['winner_ms']:.4g} ms, library kernel {fields['library_ms']:.4g} ms a call, with what "
        f"the compiled graph does around it\n"
        f"{fields['speedup']:.3f}x, {sureness(fields)} "
        f"({fields['rounds']} rounds of {fields['calls']} calls in turns)"
    )
    if slower:
        text += "\nslower than the library kernel; `inductor-plugin retune` measures it again"
    say(arguments, fields, text)
    return 1 if slower else 0


def _bench_regret(arguments: Namespace, store: Store) -> int:
    """Time the winners of records against the other candidates; print the regret of each."""
    if arguments.key is not None:
        records = [find_record(store, arguments.key, "are of one call; see `ls`")[1]]
    else:
        check_op(store, arguments.op)
        here = environments_here()
        records = [r for r in store.iter_records() if r.environment in here and r.op != GRAPH]
        records = [r for r in records if arguments.op in (None, r.op)]
    several = [(record, names) for record in records if (names := rivals(record))]
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    for number, (record, names) in enumerate(several, 1):
        describe = printable(record.describe)
        print(
            f"[{number}/{len(several)}] {describe}: {len(names) + 1} candidates",
            file=sys.stderr,
            flush=True,
        )
        try:
            fields = _timed(arguments, store, record, names)
        except CacheError as error:
            left_out.append((describe, str(error)))
            continue
        assert record.decision is not None, "without a decision there are no rivals"
        samples = fields["samples_ms"]
        missing = [name for name in names if name not in samples]
        rows.append(row(record, regret(record.decision.winner, samples), missing))
    alone = len(records) - len(several)
    groups = groups_of((), (), None, store.graphs.everything())
    models = losses(rows, {group.name: group.places for group in groups})
    fields = {
        "records": rows,
        "not_timed": [{"describe": what, "reason": why} for what, why in left_out],
        "one_candidate": alone,
        "summary": summary(rows),
        "models": models,
    }
    say(arguments, fields, regret_text(rows, left_out, alone, models))
    if left_out and not rows:
        return 2  # it could not be done
    return 1 if left_out or any(not (r["near"] or r["unclear"]) for r in rows) else 0


def _timed(
    arguments: Namespace, store: Store, record: Record, rival_names: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the script of a record and return the times it writes.

    Args:
        arguments: Those of ``bench``.
        store: The cache of the record.
        record: The record.
        rival_names: Candidates that are timed besides the winner and the library kernel.

    Raises:
        CacheError: The call cannot be made again, it failed, or another kernel than the recorded winner runs.
    """
    environment = store.environment(record.environment) or {}
    rendered = script(record, environment, str(store.root.resolve()))
    if rendered.refused:
        raise CacheError(f"{record.describe} cannot be run alone: {rendered.refused}")
    with tempfile.TemporaryDirectory(prefix="inductor-plugin-bench-") as folder:
        path, times = Path(folder) / "bench.py", Path(folder) / "times.json"
        path.write_text(rendered.text, encoding="utf-8")
        command = [
            sys.executable,
            str(path),
            "--bench",
            str(arguments.seconds),
            "--json",
            str(times),
        ]
        command += [word for spec in arguments.register for word in ("--register", spec)]
        for number, name in enumerate(rival_names):
            pins = pin_file([pin_of(record, name, None, "")], {record.environment: environment})
            pinned = Path(folder) / f"rival{number}.json"
            pinned.write_text(dump(pins), encoding="utf-8")
            command += ["--rival", str(pinned)]
        result = _times(command, times, arguments.seconds + _START_S)
    ran, decision = result.pop("winner"), record.decision
    if decision is not None and ran != decision.winner:
        why = "it is not offered (--register?), not allowed by the options, or in quarantine"
        raise CacheError(f"{decision.winner} does not run here, but {ran}: {why}")
    return result


def _times(command: Sequence[str], times: Path, timeout_s: float) -> dict[str, Any]:
    """Run a script and return the times it writes.

    Raises:
        CacheError: It failed; the message has its last line.
    """
    try:
        done = subprocess.run(
            command,
            env=process_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CacheError(f"the call did not end within {timeout_s:.0f} s") from error
    if done.returncode or not times.exists():
        said = (done.stdout.strip() if done.returncode == 2 else "") or done.stderr.strip()
        raise CacheError(f"the call could not be timed: {said[-300:] or done.returncode}")
    return json.loads(times.read_bytes())


VERBS = (
    Verb(
        "bench",
        "time a record's winner against the library kernel, or winners against all candidates",
        _bench_arguments,
        _bench,
    ),
)
