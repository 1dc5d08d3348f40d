from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import inductor_plugin
from inductor_plugin.cache import Store, open_store
from inductor_plugin.tuning.report.page import run
from inductor_plugin.tuning.report.page.run import DecidedProblem, RunPage, of_rank
from tests.support.cache.records import decision, measured, record
from tests.support.candidates.fast_templates import rivals_offered


def model_in(file: Path) -> dict[str, Any]:
    _, _, rest = file.read_text().partition('type="application/json">')
    model: dict[str, Any] = json.loads(rest.partition("</script>")[0])
    return model


def decided(store: Store, problem: int) -> DecidedProblem:
    known = store.put_record(record(measured("a"), problem=problem, decision=decision("a")))
    return DecidedProblem(store, known.environment, known.op, known.digest, hit=problem == 1)


def test_a_page_has_the_graphs_of_the_process_and_their_records_alone(
    cache_dir: Path, tmp_path: Path
) -> None:
    store = open_store(cache_dir)
    page = RunPage(tmp_path / "out.html")
    problems = [decided(store, problem) for problem in range(3)]
    page.add("forward", problems[:1], {"wall_s": 1.0})
    page.add("backward", [problems[1], problems[0]], {})
    page.write()
    model = model_in(tmp_path / "out.html")
    graphs = model["sources"][0]["graphs"]
    assert [model["texts"][graph["name"]] for graph in graphs] == ["1 forward", "2 backward"]
    assert [graph["records"] for graph in graphs] == [[0], [1, 0]]
    assert [graph["known"] for graph in graphs] == [0, 1]
    assert len(model["records"]) == 2


def test_a_process_with_two_caches_has_both_on_its_page(tmp_path: Path) -> None:
    """Each problem with the record of its own cache, also where both have it, and nothing is compared."""
    first, second = (open_store(tmp_path / name) for name in ("first", "second"))
    page = RunPage(tmp_path / "out.html")
    page.add("inference", [], {})
    page.add("forward", [decided(first, 1), decided(first, 2)], {})
    page.add("forward", [decided(second, 2)], {})
    page.add("backward", [decided(first, 3)], {})
    page.write()
    model = model_in(tmp_path / "out.html")
    own, other = model["sources"]
    names = [model["texts"][source["name"]] for source in (own, other)]
    assert names == [str(first.root), str(second.root)]
    graphs = [[model["texts"][g["name"]] for g in source["graphs"]] for source in (own, other)]
    assert graphs == [["1 inference", "2 forward", "4 backward"], ["3 forward"]]
    assert [[g["records"] for g in source["graphs"]] for source in (own, other)] == [
        [[], [0, 1], [2]],
        [[3]],
    ]
    assert [source["summary"]["problems"] for source in (own, other)] == [3, 1]
    assert model["pairs"] is None


def test_a_cache_whose_name_is_no_text_has_a_page(tmp_path: Path) -> None:
    """Its title was written as it is, and half of a character is no UTF-8: there was no page."""
    store = open_store(tmp_path / os.fsdecode(b"cach\xe9"))
    page = RunPage(tmp_path / "out.html")
    page.add("forward", [decided(store, 1)], {})
    page.write()
    assert r"cach\udce9</title>" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("name", "rank", "said"),
    [
        ("out.html", None, "out.html"),
        ("out.html", 0, "out.html"),
        ("out.html", 3, "out.rank3.html"),
        ("a.b.html", 12, "a.b.rank12.html"),
        ("out", 1, "out.rank1"),
    ],
)
def test_each_rank_has_a_page_of_its_own(name: str, rank: int | None, said: str) -> None:
    assert of_rank(Path("/x") / name, rank) == Path("/x") / said


def test_a_rank_that_is_known_later_leaves_the_page_of_all_to_the_others(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_PAGES", {})
    file, own = tmp_path / "out.html", tmp_path / "out.rank3.html"
    store = open_store(cache_dir)
    page = run.run_page(str(file))
    page.add("forward", [decided(store, 1)], {})
    file.write_text("of rank 0")
    for rank in (3, None):  # the process group is destroyed at the end
        assert run.run_page(str(file), rank=rank) is page
        page.add("forward", [decided(store, 2)], {})
        page.write()
    assert file.read_text() == "of rank 0"
    assert len(model_in(own)["sources"][0]["graphs"]) == 3


def test_a_page_is_not_written_for_every_graph_but_at_the_end(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, written = open_store(cache_dir), list[int]()
    clock = [100.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])

    def write(_file: Path, text: str) -> int:
        clock[0] += 1  # a second, so that the next may come 20 s later
        written.append(len(text))
        return len(text)

    monkeypatch.setattr(run, "write_page", write)
    page = RunPage(tmp_path / "out.html")
    for seconds, times in ((0, 1), (19, 1), (1, 2), (5, 2)):
        clock[0] += seconds
        page.add("forward", [decided(store, 1)], {})
        assert len(written) == times
    page.write()
    assert len(written) == 3


def test_a_page_without_news_is_not_written_again(cache_dir: Path, tmp_path: Path) -> None:
    page = RunPage(tmp_path / "out.html")
    page.add("forward", [decided(open_store(cache_dir), 1)], {})
    (tmp_path / "out.html").unlink()
    page.write()
    assert not (tmp_path / "out.html").exists()


def test_a_child_process_leaves_its_parents_page_alone(cache_dir: Path, tmp_path: Path) -> None:
    page = RunPage(tmp_path / "out.html")
    page.add("forward", [decided(open_store(cache_dir), 1)], {})
    before = (tmp_path / "out.html").read_bytes()
    child = os.fork()
    if child == 0:
        page.add("forward", [decided(open_store(cache_dir), 2)], {})
        page.write()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "out.html").read_bytes() == before


def test_a_page_that_cannot_be_written_is_one_warning(
    cache_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    page = RunPage(tmp_path / "none" / "out.html")
    with caplog.at_level(logging.WARNING):
        for problem in range(2):
            page.add("forward", [decided(open_store(cache_dir), problem)], {})
            page.write()
    (warning,) = caplog.records
    assert "the report cannot be written" in warning.message


@pytest.mark.parametrize("error", [OverflowError("too large"), KeyError("x"), RecursionError()])
def test_whatever_is_wrong_with_a_page_is_one_warning(
    error: Exception,
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def raising(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run, "page_model", raising)
    page = RunPage(tmp_path / "out.html")
    with caplog.at_level(logging.WARNING):
        page.add("forward", [decided(open_store(cache_dir), 1)], {})
        page.add("forward", [decided(open_store(cache_dir), 2)], {})
    (warning,) = caplog.records
    assert str(error) in warning.message
    assert not (tmp_path / "out.html").exists()


def test_a_record_with_extreme_times_is_in_the_page(cache_dir: Path, tmp_path: Path) -> None:
    store = open_store(cache_dir)
    odd = record(measured("a", 1e-300, samples_ms=(1e300, 1e308)), decision=decision("a"))
    known = store.put_record(odd)
    page = RunPage(tmp_path / "out.html")
    page.add(
        "forward", [DecidedProblem(store, known.environment, known.op, known.digest, hit=True)], {}
    )
    assert len(model_in(tmp_path / "out.html")["records"]) == 1


@pytest.mark.slow
def test_a_compile_with_the_option_report_writes_its_graphs(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    file, trace = tmp_path / "out.html", tmp_path / "trace.json"
    options: dict[str, Any] = {
        "cache_dir": str(cache_dir),
        "report": str(file),
        "trace_path": str(trace),
    }
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8))
    with rivals_offered():
        compiled: Any = torch.compile(model, backend="inductor_plugin", options=options)
        loss: Any = compiled(torch.randn(16, 24)).sum()
        loss.backward()
    run.run_page(str(file)).write()
    inductor_plugin.disable()
    content = model_in(file)
    graphs = content["sources"][0]["graphs"]
    names = [content["texts"][graph["name"]] for graph in graphs]
    assert [name.partition(" ")[2] for name in names] == ["forward", "backward"]
    assert all(graph["records"] and graph["spent"]["benchmarked"] > 0 for graph in graphs)
    assert {source["kind"] for source in content["sources"]} == {"cache"}
    assert content["timeline"]["totals"]["measure"]["count"] > 0
    kept = open_store(cache_dir, create=False).graphs.everything()
    assert {entry.kind for entry in kept} == {"forward", "backward"}
