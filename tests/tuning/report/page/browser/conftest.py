"""A browser, and the pages that it opens. Each test ends without an error in the console and without a request to a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from inductor_plugin.tuning.report.page.gather import read_json
from inductor_plugin.tuning.report.page.source import CompiledGraphRow
from tests.support.browser import Page, browser_path, missing, opened_browser
from tests.support.report_pages import (
    WrittenPage,
    cache_at,
    changed,
    invented,
    named_pins_of,
    pins_of,
    results,
    tuned_by_the_demo,
    tuned_by_training,
    written,
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    path = browser_path()
    if path is None:
        missing("needs Chromium (Debian: apt-get install chromium)")
    with opened_browser(path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def silent(page: Page) -> Iterator[None]:
    page.errors.clear()
    page.requests.clear()
    page.size(1280, 900)
    page.media()
    yield
    assert page.errors == []
    assert [address for address in page.requests if not address.startswith("file:")] == []


def tuned(
    factory: pytest.TempPathFactory, name: str, tune: Callable[[Path], object]
) -> WrittenPage:
    """Return the page of a cache with the trace of its tuning, which takes a minute: all workers of a run share the cache.

    Args:
        factory: Makes the folders.
        name: Title of the page.
        tune: Fills a cache, and writes the trace beside it.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / f"tuned-{name.replace(' ', '-')}"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # the worker before has failed
            folder.mkdir(mode=0o700)
            tune(folder / "cache")
            (folder / "done").touch()
    trace = read_json(folder / "cache-trace.json")
    return written(factory.mktemp("page"), name, cache_at(folder / "cache"), trace=trace)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of the demo's cache, with the trace of its first process."""
    return tuned(tmp_path_factory, "the demo", tuned_by_the_demo)


@pytest.fixture(scope="session")
def process(demo: WrittenPage, tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of a process: the demo's cache, with a graph of two of its problems."""
    places = tuple(record.place for record in demo.source.records[:2])
    graph = CompiledGraphRow("1 forward", places, 1, {"wall_s": 0.5}, 5.0)
    folder = tmp_path_factory.mktemp("process")
    return written(folder, "a process", replace(demo.source, graphs=[graph]))


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of the cache that a training step and an inference of GPT-2 leave."""
    return tuned(tmp_path_factory, "GPT-2 of one layer", tuned_by_training)


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of 200 records with 20 candidates each, which is there at once."""
    return written(tmp_path_factory.mktemp("few"), "few", invented(200))


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of 10,000 records with 20 candidates each."""
    return written(tmp_path_factory.mktemp("many"), "many", invented(10_000))


@pytest.fixture(scope="session")
def beside(demo: WrittenPage, tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of the demo's cache beside one that differs in two records, and in its environment's driver."""
    other = changed(demo.source)
    fields = {digest: {**each, "driver": "new"} for digest, each in other.environments.items()}
    moved = {digest: digest[::-1] for digest in fields}
    records = [replace(each, environment=moved[each.environment]) for each in other.records]
    other = replace(
        other,
        records=records,
        environments={moved[digest]: each for digest, each in fields.items()},
    )
    return written(tmp_path_factory.mktemp("beside"), "two caches", demo.source, other)


@pytest.fixture(scope="session")
def pins(demo: WrittenPage, tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of the demo's decisions as pins."""
    return written(tmp_path_factory.mktemp("pins"), "pins", pins_of(demo.source))


@pytest.fixture(scope="session")
def gpu_pins(few: WrittenPage, tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of 200 decisions as pins that name their problems, as those of templates do."""
    named = named_pins_of(few.source)
    return written(tmp_path_factory.mktemp("gpu_pins"), "pins of an H100", named)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> WrittenPage:
    """Return the page of two results of benchmarks."""
    return written(tmp_path_factory.mktemp("bench"), "results", *results())
