"""Pages of the report: of what the demo and a training step leave in caches, and of others; and what a browser does with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, digest_of, open_store
from inductor_plugin.tuning.pins.pin import pin_file, pin_of_record
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.gather import cache_source, file_source, read_json
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CacheSource, Holding, PinSource, Source
from tests.support.browser import Page
from tests.support.cache.measured_gpu import H100, gpu_records
from tests.support.repository import REPOSITORY

SHOWN = "[...document.querySelectorAll('#grid-problems tbody tr:not(.gap)')]"
"""The rows of the table of problems that are in the document."""
SIZES = {"desktop": (1280, 900, False), "phone": (390, 844, True)}
"""Width, height and whether it is a phone."""
RESULTS = ("models_cpu.json", "attention_cpu.json")
"""Results of benchmarks, in `benchmarks/results`."""
_RECORD_BYTES = 9000


@dataclass(frozen=True)
class WrittenPage:
    """A page as a file.

    Attributes:
        file: Where it is.
        model: What is in it, as of `page_model`.
        sources: What it is about.
    """

    file: Path
    model: Mapping[str, Any]
    sources: Sequence[Source]

    @property
    def source(self) -> CacheSource:
        """The first source, a cache."""
        first = self.sources[0]
        assert isinstance(first, CacheSource)
        return first


def written(folder: Path, title: str, *sources: Source, trace: Any = None) -> WrittenPage:
    """Write the page of one source, or of two side by side, into a folder."""
    model = page_model(sources, trace)
    file = folder / "page.html"
    file.write_text(document(model, title), encoding="utf-8")
    return WrittenPage(file, model, sources)


def tuned_by_the_demo(cache: Path, **variables: str) -> Any:
    """Run `inductor-plugin demo` with a new cache; return the trace of its first process, the only one that tunes."""
    trace = cache.with_name(f"{cache.name}-trace.json")
    variables |= {"INDUCTOR_PLUGIN_TRACE_PATH": str(trace)}
    _run(["-m", "inductor_plugin", "demo", "--cache-dir", str(cache)], variables)
    return read_json(trace)


def tuned_by_training(cache: Path, model: str = "gpt2") -> Any:
    """Compile a training step and an inference of GPT-2 with a new cache; return the trace.

    The template that the tests of pins offer is left out: it is chosen, whatever was measured, and a page is to show what a
    tuning decides.

    Args:
        cache: The cache.
        model: The model, as `tests.support.processes.pinned` names it; the larger one takes half as long again.
    """
    trace = cache.with_name(f"{cache.name}-trace.json")
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(cache.with_name(f"{cache.name}-inductor"))}
    pins = cache.with_name(f"{cache.name}-pins.json")
    program = ("tests.support.processes.pinned", "record", model, str(pins), str(cache))
    variables = {**folders, "INDUCTOR_PLUGIN_TRACE_PATH": str(trace)}
    _run(["-m", *program, "--without-template"], variables)
    return read_json(trace)


def _run(arguments: list[str], variables: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def cache_at(folder: Path) -> CacheSource:
    """Return the content of a cache that has records."""
    source = cache_source(open_store(folder, read_only=True))
    assert source.records
    return source


def invented(count: int, name: str = "many") -> CacheSource:
    """Return records of an H100 with 20 candidates each. None of them was measured."""
    held = [Holding("records of mm", count, count * _RECORD_BYTES)]
    return CacheSource(name, list(gpu_records(count)), {digest_of(H100): H100}, held)


def changed(source: CacheSource) -> CacheSource:
    """Return a cache with one record less, and one in which another kernel runs."""
    moved = {
        id(record): other for record in source.records if (other := _decided_otherwise(record))
    }
    (first, *_) = moved
    dropped = next(record for record in source.records if id(record) != first)
    kept = [record for record in source.records if record is not dropped]
    records = [moved[first] if id(record) == first else record for record in kept]
    return replace(source, name=f"{source.name}-changed", records=records)


def _decided_otherwise(record: Record) -> Record | None:
    """Return a record in which a kernel of another name runs; None if it has none."""
    decision = record.valid_decision
    if decision is None or decision.winner not in record.candidates:
        return None
    name = record.candidates[decision.winner].name
    rows = record.candidates.values()
    rival = next((row for row in rows if row.median_ms and row.name != name), None)
    if rival is None:
        return None
    return replace(record, decision=replace(decision, winner=rival.candidate))


def pins_of(source: CacheSource) -> PinSource:
    """Return the decisions of a cache as a pin file."""
    pins = [pin for record in source.records if (pin := pin_of_record(record)) is not None]
    return PinSource("pins.json", pin_file(pins, source.environments))


def named_pins_of(source: CacheSource) -> PinSource:
    """Return the decisions of a cache as a pin file in which each pin has the fields of its problem."""
    problems = {record.place: record.problem for record in source.records}
    pins = [
        replace(pin, fields=problems[place]) for place, pin in pins_of(source).content.pins.items()
    ]
    return PinSource("pins.json", pin_file(pins, source.environments))


def results() -> list[Source]:
    """Return two results of benchmarks."""
    return [file_source(REPOSITORY / "benchmarks" / "results" / name) for name in RESULTS]


def opened(page: Page, file: Path, fragment: str = "") -> None:
    """Open a page, and wait until it is drawn."""
    page.open(file, fragment)
    page.wait("document.documentElement.dataset.ready === 'true'")
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page: Page, column: str) -> list[str]:
    """Return the texts of a column of the problems that are in the document."""
    return page.run(f"{SHOWN}.map(row => row.querySelector('.c-{column}').textContent)")
