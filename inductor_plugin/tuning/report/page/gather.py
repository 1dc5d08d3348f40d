"""Reads what a report is about: a cache directory, a pin file, the JSON of a benchmark, a trace; and the figures of devices."""

from __future__ import annotations

import json
import logging
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from inductor_plugin.cache import Record, Store
from inductor_plugin.cache.document import is_object
from inductor_plugin.cache.graph import graph_files
from inductor_plugin.config import default_cache_dir
from inductor_plugin.device import BUILT_IN, DEVICES
from inductor_plugin.errors import CacheError, DeviceError, OptionError, warn_once
from inductor_plugin.tuning.pins.document import read_file
from inductor_plugin.tuning.report.page.groups import groups_of
from inductor_plugin.tuning.report.page.source import (
    BenchSource,
    CacheSource,
    CompiledGraphRow,
    Holding,
    PinSource,
)
from inductor_plugin.tuning.report.page.work import Peak, peak_of, peak_of_target

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 2**20
"""Size of a file that is read whole; traces have some hundred bytes a span."""


def cache_source(
    store: Store, records: Sequence[Record] | None = None, graphs: Sequence[CompiledGraphRow] = ()
) -> CacheSource:
    """Return the content of a cache.

    Args:
        store: The cache.
        records: The records, and nothing else of the cache; all of it by default.
        graphs: The graphs of the process that the report is of.
    """
    # The rest of a large cache takes seconds to read, and is not what a process is asked about.
    is_whole = records is None
    held = holdings(store) if is_whole else []
    records = list(store.iter_records()) if records is None else list(records)
    digests = dict.fromkeys(record.environment for record in records)
    return CacheSource(
        name=str(store.root),
        records=records,
        environments={digest: store.environment(digest) or {} for digest in digests},
        holdings=held,
        counters=store.counters(),
        quarantined=[
            (entry.candidate, entry.status, entry.reason) for entry in store.iter_quarantine()
        ],
        graphs=graphs,
        groups=groups_of(records, store.packs(), store.misses(), store.graphs.everything())
        if is_whole
        else (),
        option=_option(store.root.absolute()),
    )


def _option(root: Path) -> str:
    with suppress(OptionError):  # there may be no default one
        if root == default_cache_dir().absolute():
            return ""
    return f"--cache-dir {shlex.quote(str(root))}"


def holdings(store: Store) -> list[Holding]:
    """Return what a cache holds: records by operator, kernels by template, graphs, packs, quarantine; the largest first."""
    counts, sizes = Counter[str](), Counter[str]()
    for path in store.record_paths():
        _count(counts, sizes, f"records of {path.parent.name}", _size(path))
    for kernel in store.iter_kernels():
        _count(counts, sizes, f"kernels of {kernel.key.template}", kernel.bytes)
    for path in graph_files(store.layout.graphs):
        _count(counts, sizes, "compiled graphs", _size(path))
    counts["packs"] = len(store.packs())
    counts["candidates in quarantine"] = sum(1 for _ in store.iter_quarantine())
    named = [Holding(name, counts[name], sizes[name]) for name in counts if counts[name]]
    return sorted(named, key=lambda held: (-held.bytes, held.name))


def _count(counts: Counter[str], sizes: Counter[str], name: str, size: int) -> None:
    counts[name] += 1
    sizes[name] += size


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def peak_here(environment: Mapping[str, Any]) -> Peak | None:
    """Return the peaks of an environment's device: a known GPU, or one of a type that a package describes on this machine.

    What the package says is taken for devices of the name that its figures have.
    """
    device = environment.get("device")
    is_table = isinstance(device, Mapping)
    facts: Mapping[str, Any] = cast("Mapping[str, Any]", device) if is_table else {}
    kind = facts.get("type")
    name = "hip" if kind == "cuda" else kind
    known = peak_of(environment)
    if known is not None or not isinstance(name, str) or name in BUILT_IN:
        return known
    try:
        target = DEVICES.target(name, f"{kind}:0")
    except DeviceError as error:
        warn_once(logger, f"{error}; the report has no roofline of it")
        return None
    is_same = target is not None and target.device_name == facts.get("name")
    return peak_of_target(target) if target is not None and is_same else None


def file_source(path: Path) -> PinSource | BenchSource:
    """Return the content of a pin file or of a benchmark's JSON.

    Raises:
        CacheError: It is neither.
    """
    content = read_json(path)
    if not is_object(content):
        raise CacheError(f"{path} is neither a pin file nor a benchmark's JSON: it is no object")
    if not {"pins", "environments"} & content.keys():
        return BenchSource(str(path), content)
    try:
        return PinSource(str(path), read_file(path))
    except ValueError as error:
        raise CacheError(f"{path} is not a pin file: {error}; write one again") from error


def read_json(path: Path) -> Any:
    """Return the JSON in a plain file.

    Raises:
        CacheError: It cannot be read, is too large, or is no JSON.
    """
    try:
        if not path.is_file():
            raise CacheError(
                f"there is no file {path}; name a cache, a pin file or a benchmark's JSON"
            )
        if path.stat().st_size > MOST_BYTES:
            raise CacheError(f"{path} has more than {MOST_BYTES} bytes; name a smaller file")
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CacheError(
            f"{path} is no JSON: {error}; name a cache, a pin file or a benchmark's JSON"
        ) from None
