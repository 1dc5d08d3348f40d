"""The verbs that list what is in the cache: ``stats`` and ``ls``. Only ``ls --environments`` needs torch."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Store, open_second, report
from inductor_plugin.cache.document import inner, load
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.lookup.newest import newest
from inductor_plugin.cache.records import op_folders
from inductor_plugin.cache.trust.listing import voucher
from inductor_plugin.cli import remote
from inductor_plugin.cli.output import table
from inductor_plugin.cli.output.prometheus import metrics
from inductor_plugin.cli.verb import (
    Verb,
    count,
    in_environment,
    interval,
    open_cache,
    open_to_write,
    say,
)
from inductor_plugin.config import Config, default_cache_read
from inductor_plugin.errors import OptionError, printable
from inductor_plugin.problem.description import described

_LISTED = 50
_WATCH_S = 2.0
_LOOK_S = 2.0
"""Seconds in which ``stats`` reads documents: 50,000 records. ``verify`` reads all."""
_CLEAR_SCREEN = "\x1b[H\x1b[J"
"""Moves a terminal's cursor to its first line, and clears what is below."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _stats_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("-z", "--zero", action="store_true", help="begin to count hits anew")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--prometheus", action="store_true", help="as metrics in the text format of Prometheus"
    )
    how.add_argument(
        "--watch",
        metavar="TIME",
        nargs="?",
        const=_WATCH_S,
        type=interval,
        help=f"again and again until Ctrl-C, every {_WATCH_S:.0f} s by default",
    )


def _stats(arguments: Namespace) -> int:
    if arguments.prometheus and arguments.json:
        raise OptionError("--prometheus is no JSON; leave out --json or --prometheus")
    if arguments.zero and (arguments.prometheus or arguments.watch is not None):
        raise OptionError("--zero shows no figures; call stats again for those")
    while True:
        status = _stats_once(arguments)
        if arguments.watch is None:
            return status
        sys.stdout.flush()
        time.sleep(arguments.watch)
        # On a terminal the figures stay where they are; elsewhere they are lines of a log.
        print(_CLEAR_SCREEN if sys.stdout.isatty() and not arguments.json else "", end="")


def _stats_once(arguments: Namespace) -> int:
    if arguments.zero:
        store = open_to_write(arguments)
        store.zero_counters()
        say(arguments, {"cache_dir": str(store.root), "zeroed": True}, "counters are zero")
        return 0
    store = open_cache(arguments, must_exist=False)
    usage = store.usage(look=True, look_s=_LOOK_S)
    counters = store.counters()
    hits, misses = counters.get("hits", 0), counters.get("misses", 0)
    fields = {
        "cache_dir": str(store.root),
        **usage.fields(),
        "packs": len(store.packs()),
        "limit_bytes": _limit_bytes(),
        **counters,
        "hits": hits,
        "misses": misses,
        "hit_rate": hits / (hits + misses) if hits + misses else None,
        # Damaged entries removed so far, and those on disk now.
        "corrupt": counters.get("corrupt", 0) + (usage.damaged or 0),
        **_second_counts(),
    }
    if arguments.prometheus:
        print(metrics(fields), end="")
    elif arguments.watch is not None and arguments.json:
        print(json.dumps(fields))  # a line each time
    else:
        say(arguments, fields, _stats_text(fields, counters.get("corrupt", 0)))
    return 0


def _second_counts() -> dict[str, Any]:
    """Return what is in the second cache; empty if the variables name none, or it cannot be read."""
    second = open_second(default_cache_read())
    if second is None:
        return {}
    usage = second.usage()
    return {
        "cache_read": str(second.root),
        "read_records": usage.records,
        "read_kernels": usage.kernels,
    }


def _limit_bytes() -> int | None:
    """Return the size limit as this environment sets it; None if a variable of the plugin is invalid."""
    try:
        return Config.load().cache_limit_bytes
    except OptionError:
        return None  # `doctor` names it


def _stats_text(fields: Mapping[str, Any], removed: int) -> str:
    calls, size = fields["hits"] + fields["misses"], report.size_text(fields["bytes"])
    limit = fields["limit_bytes"]
    if limit:
        size += f" of {report.size_text(limit)} ({fields['bytes'] / limit:.1%})"
    lines = {
        "Cache": fields["cache_dir"],
        "Size": size if limit else f"{size}, no limit",
        "Records": f"{fields['records']} of {fields['environments']} environments, "
        f"{fields['pinned']} pinned{_of_those(fields)}",
        "Kernels": f"{fields['kernels']}, {report.size_text(fields['kernel_bytes'])}, "
        f"{fields['packs']} packs",
        "Quarantine": f"{fields['quarantined']} candidates",
        "Hits": _share(fields["hits"], calls),
        "Misses": _share(fields["misses"], calls),
        "Damaged": f"{fields['damaged']} documents now{_of_those(fields)}, {removed} entries removed so far; `verify` "
        "reads kernels too",
        "Leftovers": f"{fields['leftovers']} of killed processes",
        **remote.lines(fields),
    }
    return "\n".join(f"{name and name + ':':<12}{text}" for name, text in lines.items())


def _of_those(fields: Mapping[str, Any]) -> str:
    """Return how many documents a count is of, where they are too many to read."""
    return "" if fields["looked"] == 1 else f" among the {fields['looked']:.1%} that were read"


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.1%})" if total else "0"


def _ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--op", help="only records of this operator")
    parser.add_argument("--environment", metavar="KEY", help="only this environment, by its start")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--kernels", action="store_true", help="list kernels and their vouchers")
    what.add_argument("--quarantine", action="store_true", help="list candidates not tried again")
    what.add_argument(
        "--environments",
        action="store_true",
        help="list environments, and which is this machine's (loads torch)",
    )
    parser.add_argument(
        "--filter",
        metavar="TEXT",
        action="append",
        default=[],
        help="only lines with this text in a column, such as bf16 or triton; may be given several times",
    )
    parser.add_argument(
        "--sort",
        choices=tuple(_SORTS),
        default="updated",
        help="newest, slowest, biggest gain or largest first, or by text; newest first by default",
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--wide", action="store_true", help="all columns, also on a terminal")
    parser.add_argument(
        "--limit",
        type=count,
        metavar="N",
        help=f"show the first N, 0 for all ({_LISTED} by default, all with --json)",
    )


_SORTS: Mapping[str, tuple[str, ...]] = {
    "updated": ("updated", "created"),
    "ms": ("median_ms",),
    "speedup": ("speedup",),
    "size": ("bytes", "records"),
    "op": ("op", "target", "status"),
    "problem": ("problem", "candidate", "template", "device"),
}
"""The fields to sort by; of a kind of rows the first that it has."""


@dataclass(frozen=True)
class _Listed:
    """What is listed.

    Attributes:
        rows: A row for each entry.
        text: Makes text of them.
        unread: Entries that the limit leaves out anyway.
    """

    rows: list[dict[str, Any]]
    text: Callable[[list[dict[str, Any]]], str]
    unread: int = 0


def _ls(arguments: Namespace) -> int:
    listed = _listed(open_cache(arguments, must_exist=False), arguments)
    texts = [word.casefold() for word in arguments.filter]
    rows = _sorted([row for row in listed.rows if _matches(row, texts)], arguments)
    shown = _limited(arguments, rows)
    left = listed.unread + len(rows) - len(shown)
    more = f"\n{left} more; --limit 0 shows all" if left else ""
    say(arguments, shown, f"{listed.text(shown)}{more}" if shown else "nothing there")
    return 0


def _listed(store: Store, arguments: Namespace) -> _Listed:
    if arguments.kernels:
        kernels = [(e, voucher(store.root, e, store.trust)) for e in store.iter_kernels()]
        return _Listed([table.kernel_row(*kernel) for kernel in kernels], table.kernels_text)
    if arguments.environments:
        return _Listed(_environment_rows(store, arguments), _environments_text)
    if arguments.quarantine:
        entries = store.iter_quarantine()
        chosen = (entry for entry in entries if in_environment(arguments, entry.environment))
        return _Listed([asdict(entry) for entry in chosen], _quarantine_text)
    width = 0 if arguments.wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns
    if arguments.sort == "updated" and not arguments.filter and not arguments.reverse:
        places, left = _newest(store, arguments)
    else:
        places, left = list(_record_paths(store, arguments)), 0
    rows = [row for path in places if (row := _row(path))]
    return _Listed(rows, lambda shown: table.records_text(shown, width), unread=left)


def _newest(store: Store, arguments: Namespace) -> tuple[list[Path], int]:
    """Return the records written last, as many as are shown, and how many others there are: 50 of 10,000 in 0.1 s, all in 1.2 s."""
    folders: list[str] = []
    for folder in op_folders(store.layout.records):
        _, environment, op = folder.rsplit(os.sep, 2)
        if arguments.op in (None, op) and in_environment(arguments, environment):
            folders.append(folder)
    return newest(folders, _limit_of(arguments))


def _row(path: Path) -> dict[str, Any] | None:
    try:
        fields = load(read(path))
        return table.record_row(fields, described(fields["problem"], str(fields["describe"])))
    except _UNREADABLE as error:
        reason = printable(f"{path} is damaged ({error})")
        print(f"inductor-plugin ls: {reason}; see `verify`", file=sys.stderr)
        return None


def _matches(row: Mapping[str, Any], texts: Sequence[str]) -> bool:
    flags = [name for name, value in row.items() if value is True]  # ``noisy``, ``pinned``
    values = [str(value).casefold() for value in (*row.values(), *flags)]
    return all(any(text in value for value in values) for text in texts)


def _sorted(rows: list[dict[str, Any]], arguments: Namespace) -> list[dict[str, Any]]:
    def rank(row: Mapping[str, Any]) -> tuple[bool, float, str]:
        value = next((row[name] for name in _SORTS[arguments.sort] if name in row), None)
        size = report.number(value)
        return size is None, -(size or 0.0), "" if size is not None else str(value)

    return sorted(rows, key=rank, reverse=arguments.reverse)


def _limited(arguments: Namespace, rows: list[Any]) -> list[Any]:
    limit = _limit_of(arguments)
    return rows[:limit] if limit else rows


def _limit_of(arguments: Namespace) -> int:
    """Return how many rows are shown, 0 for all."""
    if arguments.limit is None:
        return 0 if arguments.json else _LISTED
    return int(arguments.limit)


def _record_paths(store: Store, arguments: Namespace) -> Iterator[Path]:
    for path in store.record_paths():
        same_op = arguments.op is None or path.parent.name == arguments.op
        if same_op and in_environment(arguments, path.parent.parent.name):
            yield path


def _quarantine_text(rows: list[dict[str, Any]]) -> str:
    heads = ("ENVIRONMENT", "LAST", "TIMES", "STATUS", "CANDIDATE", "REASON")
    return report.columns(
        heads,
        (
            (
                str(row["environment"])[:8],
                report.time_text(row["updated"]),
                str(row["count"]),
                str(row["status"]),
                str(row["candidate"]),
                str(row["reason"]),
            )
            for row in rows
        ),
    )


def _environment_rows(store: Store, arguments: Namespace) -> list[dict[str, Any]]:
    counts = Counter(path.parent.parent.name for path in store.record_paths())
    paths = store.layout.records.glob("*/environment.json")
    digests = sorted({*counts, *(path.parent.name for path in paths)})
    chosen = [digest for digest in digests if in_environment(arguments, digest)]
    here = _this_machine() if chosen else []
    rows: list[dict[str, Any]] = []
    for digest in chosen:
        fields = store.environment(digest) or {}
        device, software = (inner(fields, name) for name in ("device", "software"))
        rows.append(
            {
                "key": digest,
                "device": str(device.get("name", "unknown")),
                "threads": device.get("threads"),
                "torch": str(software.get("torch", "unknown")),
                "cuda": software.get("cuda"),
                "records": counts[digest],
                "this_machine": any(_same_machine(fields, other) for other in here),
            }
        )
    return rows


def _environments_text(rows: list[dict[str, Any]]) -> str:
    heads = ("KEY", "RECORDS", "TORCH", "CUDA", "THREADS", "", "DEVICE")
    return report.columns(
        heads,
        (
            (
                row["key"][:12],
                str(row["records"]),
                row["torch"],
                str(row["cuda"] or "-"),
                str(row["threads"] or "-"),
                "this machine" if row["this_machine"] else "",
                row["device"],
            )
            for row in rows
        ),
    )


def _this_machine() -> list[Mapping[str, Any]]:
    """Return the environments of this process's devices; none where torch cannot be loaded."""
    environments: list[Mapping[str, Any]] = []
    with suppress(ImportError, OSError, RuntimeError):
        import torch  # noqa: PLC0415  takes 2.5 s, and only this list needs it

        from inductor_plugin.cli import devices  # noqa: PLC0415
        from inductor_plugin.tuning.environment import environment  # noqa: PLC0415

        environments += [environment("cpu"), *devices.environments()]
        if torch.cuda.is_available():
            environments.append(environment("cuda:0"))
    return environments


def _same_machine(fields: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return whether an environment is this machine's with these libraries; threads may differ.

    A record's environment may have more, such as the C++ compiler, which is found when it is needed.
    """
    devices = [{**inner(facts, "device"), "threads": None} for facts in (fields, here)]
    software = inner(fields, "software")
    same = all(software.get(name) == text for name, text in inner(here, "software").items())
    return devices[0] == devices[1] and same


VERBS = (
    Verb("stats", "how much is in the cache, and how often it helped", _stats_arguments, _stats),
    Verb("ls", "list records, kernels, environments or the quarantine", _ls_arguments, _ls),
)
