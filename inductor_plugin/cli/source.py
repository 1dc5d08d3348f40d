"""What a command compares or merges: caches and pin files by their paths, and this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store, digest_of, open_store, report
from inductor_plugin.cache.record import FAULTS
from inductor_plugin.cli.verb import check_source, is_cache
from inductor_plugin.errors import CacheError, expanded
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.pins.document import read_file
from inductor_plugin.tuning.pins.merge import Disagreement
from inductor_plugin.tuning.pins.pin import (
    Pin,
    PinFile,
    Tried,
    by_template,
    pin_file,
    pin_of_record,
    tried,
)
from inductor_plugin.worker.devices.templates import add_templates


def is_source(path: Path) -> bool:
    """Return True if a path is a cache or a file."""
    return path.is_file() or (path.is_dir() and is_cache(path))


def names_pins(path: Path) -> bool:
    """Return True if a path is a pin file's, which may not be there yet, not a cache's."""
    return path.is_file() or (not path.exists() and path.suffix == ".json")


def read_source(path: Path) -> PinFile:
    """Return the decisions of a cache or of a pin file.

    Raises:
        CacheError: There is neither at this path, or the file is not a pin file.
    """
    if path.is_file():
        return read_pin_file(path)
    check_source(path)
    return decisions(open_store(path, read_only=True))


def read_pin_file(path: Path) -> PinFile:
    """Return the content of a pin file.

    Raises:
        CacheError: There is no such file, or it is not a pin file.
    """
    path = expanded(path, "the pin file", CacheError)
    try:
        return read_file(path)
    except FileNotFoundError:
        raise CacheError(
            f"there is no file {path}; write one with inductor_plugin.record(FILE) or `inductor-plugin pin FILE`"
        ) from None
    except ValueError as error:
        raise CacheError(f"{path} is not a pin file: {error}; write one again") from error


def decisions(store: Store) -> PinFile:
    """Return the decisions of a cache, and what it has seen fail."""
    pins: list[Pin] = []
    failed = condemned(store)
    for record in store.iter_records():
        failed |= faults_of(record)
        pin = pin_of_record(record)
        if pin is not None:
            pins.append(pin)
    return pin_file(pins, environments_of(store, pins, failed), failed=failed)


def identities_for(pins: Iterable[Pin]) -> tuple[tuple[str, str, str], ...]:
    """Return `Registry.identity` with the templates of pins, by which a later version of one is recognized.

    Records do not say with which version they were tuned; it is taken for the one that is registered.
    """
    if {pin.template for pin in pins} - {"", *default_registry().names()}:
        add_templates()  # those that an entry point names, which no compile has registered here
    return default_registry().identity()


def identified(merged: PinFile, caches: Iterable[PinFile]) -> PinFile:
    """Return merged pins with the identities of templates here, where they are of a cache and no pin file knows better."""
    pins = [pin for cache in caches for pin in cache.pins.values()]
    known = by_template(identities_for(pins))
    places = {(pin.place, pin.winner) for pin in pins}

    def completed(pin: Pin) -> Pin:
        if pin.identities or (pin.place, pin.winner) not in places:
            return pin
        return replace(pin, identities=known.get(pin.template, ()))

    decided = {place: completed(pin) for place, pin in merged.pins.items()}
    spare = {place: tuple(map(completed, pins)) for place, pins in merged.spare.items()}
    return replace(merged, pins=decided, spare=spare)


def condemned(store: Store) -> dict[Tried, str]:
    """Return what is not tried again in a compile, whatever a record says, and how it failed."""
    return {
        (entry.environment, entry.candidate): entry.status
        for entry in store.iter_quarantine()
        if entry.condemned
    }


def faults_of(record: Record) -> dict[Tried, str]:
    """Return which candidates failed by a record, and how."""
    return {
        tried(record.environment, name, record.digest): row.status
        for name, row in record.candidates.items()
        if row.status in FAULTS
    }


def environments_of(
    store: Store, pins: Iterable[Pin], failed: Iterable[Tried]
) -> dict[str, Mapping[str, Any] | None]:
    """Return the fields of the environments of decisions and failures, None where a cache does not know them."""
    digests = {*(pin.environment for pin in pins), *(environment for environment, _ in failed)}
    return {digest: store.environment(digest) for digest in digests}


def row_of(disagreement: Disagreement) -> dict[str, Any]:
    """Return what sources say of a problem as plain values."""
    first, kept = disagreement.decided[0], disagreement.pin
    return {
        "problem": first.describe,
        "op": first.op,
        "digest": first.digest,
        "environment": first.environment,
        "kept": None if kept is None else kept.winner,
        "failed": [
            {"winner": winner, "source": source, "status": status}
            for winner, by_source in disagreement.failed.items()
            for source, status in by_source.items()
        ],
        "sources": {
            name: None if pin is None else _said(pin) for name, pin in disagreement.pins.items()
        },
        "spare": [
            {"source": name, **_said(pin)}
            for name, pins in disagreement.spare.items()
            for pin in pins
        ],
    }


def _said(pin: Pin) -> dict[str, Any]:
    names = ("winner", "winner_ms", "samples", "library", "library_ms", "reason")
    return {name: getattr(pin, name) for name in names}


def rows_text(rows: list[dict[str, Any]]) -> str:
    """Return what sources say of problems as a table, a line for each source and for each decision that one does not use."""
    heads = ("PROBLEM", "SOURCE", "MS", "LIBRARY MS", "SAMPLES", "WINNER")
    lines: list[tuple[str, ...]] = []
    for row in report.shown(rows):
        said: list[tuple[str, Any]] = [*row["sources"].items()]
        said += [(f"{pin['source']}, not used", pin) for pin in row["spare"]]
        faults: list[Mapping[str, str]] = row["failed"]
        for index, (name, pin) in enumerate(said):
            problem = row["problem"] if not index else ""
            times = ("-", "-", "-", "not decided there")
            if pin is not None:
                times = (
                    report.number_text(pin["winner_ms"]),
                    report.number_text(pin["library_ms"]),
                    str(pin["samples"] or "-"),
                    "; ".join([pin["winner"], *_faults_text(pin["winner"], faults)]),
                )
            lines.append((problem, name, *times))
    return report.columns(heads, lines)


def _faults_text(winner: str, faults: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """Yield which sources have seen a winner fail."""
    for fault in faults:
        if fault["winner"] == winner:
            yield f"{fault['status']} in {fault['source']}"


def environments_here() -> dict[str, Mapping[str, Any]]:
    """Return the fields of the environments in which a compile of this machine looks for decisions, by digest."""
    import torch  # noqa: PLC0415  takes 2.5 s, and few verbs need it

    from inductor_plugin.cli.devices import environments  # noqa: PLC0415
    from inductor_plugin.inductor.facts.toolchain import compiler_version  # noqa: PLC0415
    from inductor_plugin.tuning.environment import environment  # noqa: PLC0415

    own = environment("cpu")
    own["software"] = {**own["software"], "cpp": compiler_version()}
    devices = [own, *environments()]
    if torch.cuda.is_available():
        devices += [environment(f"cuda:{index}") for index in range(torch.cuda.device_count())]
    return {digest_of(fields): fields for fields in devices}
