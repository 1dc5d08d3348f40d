"""The figures of docs/scale.md, and of docs/ranks.md on requests, are those of the committed rows."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pytest

import benchmarks.fleet.__main__ as program
from benchmarks.fleet.grid import GRID, VARIANTS, WORKERS_PER_GPU, fleets
from benchmarks.fleet.ranks import RANKS, Job, simulate_ranks
from benchmarks.fleet.simulation import simulate
from benchmarks.fleet.times import RESULTS, committed
from tests.support.repository import REPOSITORY

Row = dict[str, Any]
SCALE, RANKS_OF_A_JOB = "docs/scale.md", "docs/ranks.md"


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return json.loads((RESULTS / "fleet.json").read_text(encoding="utf-8"))["runs"]


def text_of(page: str) -> str:
    """Return a page without line breaks."""
    return " ".join((REPOSITORY / page).read_text(encoding="utf-8").split())


def row_of(rows: list[Row], **fields: Any) -> Row:
    (row,) = (row for row in rows if fields.items() <= row.items())
    return row


def grid(rows: list[Row], workers: int, candidates: int) -> Row:
    return row_of(rows, what="grid", workers=workers, candidates=candidates)


def many(rows: list[Row]) -> Iterator[str]:
    """Yield what is said of workers with a hundred kernels and more."""
    each = [grid(rows, workers, 100 * workers)["ratio"] for workers in (1, 10, 100, 1000)]
    yield "{:.2f} of it with one worker, {:.2f} with ten, {:.2f} with 100 and {:.2f} with 1,000 workers".format(
        *each
    )
    each = [grid(rows, workers, 100_000)["ratio"] for workers in (1, 10, 100)]
    yield "{:.2f} with one worker, {:.2f} with ten and {:.2f} with 100 workers, for 100,000 kernels".format(
        *each
    )


def few(rows: list[Row]) -> Iterator[str]:
    """Yield what is said of workers with ten kernels and fewer."""
    some = [
        row for row in rows if row["what"] == "grid" and row["candidates"] <= 10 * row["workers"]
    ]
    assert all(row["least_s"] > 1.1 * row["bound_s"] for row in some)
    yield f"The bound is {math.ceil(max(row['bound_s'] for row in some))} s or less then"
    fewest_s = max(row["chain_s"] for row in some if row["candidates"] == 100)
    (more_s,) = {round(row["chain_s"]) for row in some if row["candidates"] > 100}
    yield f"the longest chain is {fewest_s} s long for 100 kernels and {more_s} s for more"
    ten, hundred, thousand = (grid(rows, n, 10 * n) for n in (10, 100, 1000))
    yield f"Ten workers have 100 kernels in {ten['ratio']:.2f} of the bound"
    yield f"100 workers have 1,000 in {hundred['ratio']:.2f}: {hundred['over']:.2f} of the floor"
    yield f"have 10,000 in {thousand['ratio']:.2f} of the bound and {thousand['over']:.2f} of the floor"
    hundred, thousand = (grid(rows, n, n) for n in (100, 1000))
    yield f"in {hundred['ratio']:.1f} of the bound and {hundred['over']:.2f} of the chain"
    yield f"1,000 have 1,000 in {thousand['ratio']:.1f} and {thousand['over']:.2f}"
    most = grid(rows, 10_000, 100_000)
    yield f"10,000 have 100,000 in {most['ratio']:.2f} of the bound and {most['over']:.2f} of the floor"


def variants(rows: list[Row]) -> Iterator[str]:
    """Yield what is said of fewer GPUs, units, one pool and failures."""
    less = row_of(rows, what="half as many GPUs", workers=100, candidates=10_000)
    most = row_of(rows, what="half as many GPUs", workers=1000, candidates=100_000)
    for row in (less, most):
        compiling, measuring = row["worker_s_per_model"], row["gpu_s_per_model"]
        share = measuring / row["gpus"] / (compiling / row["workers"])
        yield f"measuring takes {share:.1f} of the time that compiling takes"
    yield f"100 workers have 10,000 kernels in {less['ratio']:.2f}, 1,000 workers have 100,000 in {most['ratio']:.2f}"
    more = row_of(rows, what="half as many GPUs", workers=100, candidates=100_000)
    yield f"With a thousand kernels for each worker it is {more['ratio']:.2f}."
    one_by_one = grid(rows, 100, 10_000)["worker_s_per_model"]
    together = row_of(rows, what="all models at once", workers=100, candidates=10_000)
    together = together["worker_s_per_model"]
    yield f"take {one_by_one:.0f} seconds of workers for each graph, with all graphs at once {together:.0f}"
    alone, shared = (
        row_of(rows, what=what, workers=1000, candidates=10_000) for what in ("grid", "one pool")
    )
    yield f"on 1,000 workers take {shared['ratio']:.2f} of the bound instead of {alone['ratio']:.2f}"
    failing = [
        row_of(rows, what="failures", workers=n, candidates=10_000) for n in (100, 1000, 10_000)
    ]
    yield "take {:.2f} of the bound on 100 workers, {:.2f} on 1,000 and {:.2f} on 10,000".format(
        *(row["ratio"] for row in failing)
    )
    yield "of the floor {:.2f}, {:.2f} and {:.2f}".format(*(row["over"] for row in failing))
    more = [row_of(rows, what="failures", workers=n, candidates=100_000) for n in (100, 1000)]
    yield "100,000 kernels take {:.2f} of the bound on 100 workers and {:.2f} on 1,000".format(
        *(row["ratio"] for row in more)
    )
    touches = alone["cache_requests"]["touch a lock"] / alone["makespan_s"]
    yield (
        f"{touches:,.0f}"[:-2]
        + "00 of the "
        + f"{alone['cache_requests_per_s']:,.0f}"[:-2]
        + "00 requests a second"
    )


def ranks(rows: list[Row]) -> Iterator[str]:
    """Yield what is said of ranks."""
    jobs = [row_of(rows, what="ranks", ranks=number) for number in (8, 64, 256, 1000)]
    yield "eight have 96 problems in {:.2f} of the bound, 64 in {:.2f}, 256 in {:.2f} and 1,000 in {:.2f}".format(
        *(job["over"] for job in jobs)
    )
    start_s = committed().worker_s
    eight_s, sixty_s, longest_s, same_s = (job["bound_s"] - start_s for job in jobs)
    assert eight_s / sixty_s == pytest.approx(64 / 8, rel=0.05)
    assert longest_s == same_s
    yield f"it is the share ({eight_s:.0f} and {sixty_s:.1f} s), of more the longest problem ({longest_s:.1f} s)"
    most = round(jobs[-1]["most_c10d_requests_in_a_s"], -4)
    yield f"In the busiest second 1,000 ranks make {most:,} requests"


def requests(rows: list[Row]) -> list[str]:
    """Return what is said of the requests of a rank."""
    jobs = [row_of(rows, what="ranks", ranks=number, problems=96) for number in (8, 64, 256, 1000)]
    each = [round(sum(job["c10d_requests"].values()) / job["ranks"], -1) for job in jobs]
    return [
        "{:,.0f} of each of eight ranks, {:.0f} of 64, {:.0f} of 256 and {:.0f} of 1,000".format(
            *each
        )
    ]


def asked(command: str, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Return the sizes of the rows that a command of the benchmark makes, where a file has none of them yet."""
    results = mock.Mock()
    results.has.return_value = True  # so that it simulates nothing
    monkeypatch.setattr(program, "_Results", mock.Mock(return_value=results))
    monkeypatch.setattr("sys.argv", shlex.split(command))
    program.main()
    return [call.kwargs for call in results.has.call_args_list]


def test_the_rows_are_those_of_the_commands_and_the_text_names_the_runs_that_are_missing(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / SCALE).read_text(encoding="utf-8")
    commands = re.findall(r"^python -m (benchmarks\.fleet .*--out .*)$", page, re.MULTILINE)
    sizes = [sized for command in commands for sized in asked(command, monkeypatch)]
    assert all(any(sized.items() <= row.items() for row in rows) for sized in sizes)
    assert all(any(sized.items() <= row.items() for sized in sizes) for row in rows)
    every = asked("benchmarks.fleet", monkeypatch)
    missing = [sized for sized in every if sized not in sizes]
    assert {(sized["candidates"], sized["workers"]) for sized in missing} == {(100_000, 10_000)}
    assert [sized["what"] for sized in missing] == [*VARIANTS]
    assert (
        f"Without options the benchmark makes {len(missing)} runs of 100,000 kernels that are missing there: the variants with 10,000 workers."
        in text_of(SCALE)
    )


@pytest.mark.parametrize(
    ("page", "sentences"),
    [
        (SCALE, many),
        (SCALE, few),
        (SCALE, variants),
        (SCALE, ranks),
        (RANKS_OF_A_JOB, requests),
    ],
)
def test_the_text_has_the_figures_of_the_rows(
    page: str, sentences: Callable[[list[Row]], Iterable[str]], rows: list[Row]
) -> None:
    said = text_of(page)
    assert [words for words in sentences(rows) if words not in said] == []


@pytest.mark.parametrize(("workers", "candidates"), [(1, 100), (10, 100), (10, 1000), (100, 1000)])
def test_todays_code_simulates_the_committed_rows(
    rows: list[Row], workers: int, candidates: int
) -> None:
    """Small ones, in a second each. To simulate all takes an hour, so the file may be of earlier code (`code_digest`)."""
    ((name, fleet),) = fleets((workers,), (candidates,), WORKERS_PER_GPU, (GRID,))
    fields = program.row(name, fleet, simulate(fleet, committed()))
    assert fields == grid(rows, workers, candidates)


def test_todays_ranks_make_the_committed_requests(rows: list[Row]) -> None:
    job = Job(8, 96)
    fields = program.rank_row(job, simulate_ranks(job, committed()))
    assert fields == row_of(rows, what=RANKS, ranks=8)
