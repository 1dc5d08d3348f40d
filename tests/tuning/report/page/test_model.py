from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from inductor_plugin.cache import digest_of
from inductor_plugin.tuning.pins.pin import Pin, PinFile, pin_file, pin_of_record
from inductor_plugin.tuning.report.page.bench import MOST_ROWS
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.rows import RECORD
from inductor_plugin.tuning.report.page.source import (
    BenchSource,
    CacheSource,
    CompiledGraphRow,
    Holding,
    PinSource,
    ProblemGroup,
)
from inductor_plugin.tuning.report.page.summary import (
    Summary,
    summary_of_pins,
    summary_of_records,
)
from inductor_plugin.worker.jobs import Status
from tests.support.cache.measured_gpu import H100, gpu_records
from tests.support.cache.records import ENVIRONMENT, decision, measured, record

HERE = digest_of(ENVIRONMENT)


def chosen(winner: str, library: str, speedup: float | None = None) -> dict[str, Any]:
    return {"decision": replace(decision(winner), library=library, speedup=speedup)}


def test_the_figures_say_what_was_gained_and_what_it_took() -> None:
    records = [
        record(measured("fast", 1.0), measured("lib", 4.0), **chosen("fast", "lib", 3.6)),
        record(
            measured("lib", 2.0), measured("bad", None, status="hung"), **chosen("lib", "lib", 1.0)
        ),
        record(measured("fast", 2.0), measured("lib", 2.0), **chosen("fast", "lib", 2.5)),
        record(measured("only", 5.0)),
        record(measured("given up"), op="graph"),
    ]
    known = summary_of_records(records)
    rates: dict[str, Any] = {
        "gain": pytest.approx(3.0),  # of what was measured in turns, not of medians
        "compile_s": pytest.approx(7 * 1.5),
        "samples_s": pytest.approx((2 * 16.0 + 6 * 0.5) / 1e3),
    }
    assert known == Summary(
        problems=4, decided=3, faster=2, stays=1, library_ms=8.0, chosen_ms=5.0, candidates=7, measured=6,
        others=(("hung", 1),), noisy=0, **rates,
    )  # fmt: skip


def test_every_candidate_is_counted_under_its_status() -> None:
    statuses = [status for status in get_args(Status) for _ in range(1 + (status == "pruned"))]
    rows = [measured(f"{n}", None, status=status) for n, status in enumerate(statuses)]
    known = summary_of_records([record(*rows)])
    assert known.measured + sum(number for _, number in known.others) == known.candidates
    assert {status for status, _ in known.others} == set(get_args(Status)) - {"ok"}
    assert known.others[0] == ("pruned", 2)


def test_statuses_that_nobody_knows_are_counted_together() -> None:
    rows = [measured(f"{n}", None, status=f"s{n}\u202e") for n in range(100)]
    known = summary_of_records([record(*rows)])
    assert known.others[-1] == ("of other statuses", 90)
    assert "\u202e" not in "".join(status for status, _ in known.others)


def test_what_several_records_say_is_written_once() -> None:
    source = CacheSource("c", [record(measured("same"), problem=n) for n in range(50)], {HERE: {}})
    model = page_model([source])
    assert len(model["forms"]) == len(model["outcomes"]) == len(model["environments"]) == 1
    assert model["texts"].count("same") == 1


def test_problems_of_two_caches_are_paired_by_environment_then_by_problem() -> None:
    same, moved, alone = (record(measured("a"), problem=n) for n in range(3))
    left = CacheSource("l", [same, moved, alone], {})
    right = CacheSource("r", [replace(moved, environment="other"), same], {})
    assert page_model([left, right])["pairs"] == [[0, 4], [1, 3], [2, -1]]
    assert page_model([right, left])["pairs"] == [[1, 2], [0, 3], [-1, 4]]
    assert page_model([left])["pairs"] is None
    assert page_model([left, right], compares=False)["pairs"] is None
    assert page_model([left, BenchSource("b", {"ms": 1.0})])["pairs"] is None


def test_a_cache_is_compared_with_a_pin_file() -> None:
    known = record(measured("fast", 1.0), **chosen("fast", "fast"))
    pin = pin_of_record(known)
    assert pin is not None
    pins = PinSource("pins.json", pin_file([pin], {HERE: ENVIRONMENT}))
    model = page_model([CacheSource("c", [known], {HERE: ENVIRONMENT}), pins])
    assert model["pairs"] == [[0, 1]]
    assert [source["kind"] for source in model["sources"]] == ["cache", "pins"]
    assert model["sources"][1]["summary"]["stays"] == 1


def test_two_benchmarks_are_compared_number_by_number() -> None:
    model = page_model([BenchSource("a", {"ms": 1.0}), BenchSource("b", {"ms": 2.0})])
    assert model["compared"] == [["ms", 1, 2, 2]]
    assert model["records"] == []


def test_graphs_name_their_problems_by_rows() -> None:
    known = record(measured("a"))
    graph = CompiledGraphRow(
        "1 forward", (known.place, "gone/mm/1"), 1, {"wall_s": 0.12345, "failed": 0}, 5.0
    )
    source = CacheSource("c", [known], {}, [Holding("records of mm", 1, 10)], graphs=[graph])
    model = page_model([source])
    shown = model["sources"][0]["graphs"][0]
    assert (shown["records"], shown["spent"]) == ([0], {"wall_s": 0.123})
    assert model["sources"][0]["holdings"][0][1:] == [1, 10]


def test_groups_name_their_problems_by_rows_and_count_those_without() -> None:
    known, whole = record(measured("a")), record(measured("tuned"), op="graph")
    places = (known.place, "gone/mm/1")
    graph = ProblemGroup("graph", "d" * 64, "graph of 2 nodes", places, whole.place, 5.5)
    process = ProblemGroup("process", "last", "x.py\u202e", places[1:])
    source = CacheSource("c", [known, whole], {}, groups=[graph, process])
    model = page_model([source])
    of_graph, of_process = model["sources"][0]["groups"]
    assert model["texts"][of_graph.pop("name")] == "graph of 2 nodes"
    assert of_graph == {"kind": "graph", "key": "d" * 16, "records": [0], "record": 1, "total": 2, "at": 5}  # fmt: skip
    assert (of_process["records"], of_process["record"], of_process["total"]) == ([], -1, 1)
    assert "\u202e" not in model["texts"][of_process["name"]]


def test_the_peaks_of_a_known_device_are_with_its_environment() -> None:
    source = CacheSource("c", list(gpu_records(2)), {digest_of(H100): H100})
    (environment,) = page_model([source])["environments"]
    assert environment["device"] == "NVIDIA H100 80GB HBM3"
    assert environment["peak"]["rates"]["bfloat16"] == pytest.approx(989.4e12)
    assert ["software.triton", "3.8.0"] in environment["fields"]


@pytest.mark.slow
def test_ten_thousand_records_of_twenty_candidates_have_less_than_ten_megabytes() -> None:
    source = CacheSource("c", list(gpu_records(10_000)), {digest_of(H100): H100})
    model = page_model([source])
    assert len(model["records"]) == 10_000
    assert min(len(row[RECORD.index("candidates")]) for row in model["records"]) >= 10
    assert len(document(model, "c").encode()) < 10e6


@pytest.mark.parametrize("times", [(1e-300, 1e308), (1e308, 1e308), (1.7e308, 1e-308)])
def test_figures_of_extreme_times_are_finite(times: tuple[float, float]) -> None:
    fast, slow = times
    rows = [
        record(
            measured("w", fast, samples_ms=(fast, slow)),
            measured("l", slow, compile_s=slow),
            problem=problem,
            decision=replace(decision("w"), library="l", speedup=1e308),
        )
        for problem in range(3)
    ]
    pins = [
        Pin("e", "mm", str(n), "mm", "w", winner_ms=fast, library="l", library_ms=slow)
        for n in range(3)
    ]
    pinned = PinSource("pins", PinFile({pin.place: pin for pin in pins}))
    json.dumps(page_model([CacheSource("cache", rows, {}), pinned]), allow_nan=False)


def test_what_a_comparison_leaves_out_is_counted() -> None:
    content = {f"figure {n}": n for n in range(MOST_ROWS + 3)}
    model = page_model([BenchSource("a", content), BenchSource("b", content)])
    assert (len(model["compared"]), model["compared_left_out"]) == (MOST_ROWS, 3)


def test_gains_are_of_pins_and_records_whose_times_are_known() -> None:
    timed = Pin("e", "mm", "1", "mm", "w", winner_ms=1.0, library="l", library_ms=2.0)
    pins = [
        timed,
        replace(timed, digest="2", winner_ms=None),
        replace(timed, digest="3", library_ms=None),
        replace(timed, digest="4", winner="l", winner_ms=3.0),
        replace(timed, digest="5", op="graph"),
    ]
    known = summary_of_pins(pins)
    assert (known.problems, known.faster, known.stays) == (4, 3, 1)
    assert (known.gain, known.library_ms, known.chosen_ms) == (pytest.approx(2.0), 5.0, 4.0)
    for times in ((0.0, 1.0), (1.0, 0.0)):
        rows = [measured(name, ms) for name, ms in zip(("fast", "lib"), times, strict=True)]
        assert summary_of_records([record(*rows, **chosen("fast", "lib"))]).gain is None
