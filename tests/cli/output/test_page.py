from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cli import main
from inductor_plugin.tuning.report.page.source import BenchSource, title
from tests.support.cli.command import answer_of, run
from tests.support.repository import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"


def model_in(file: Path) -> dict[str, Any]:
    """Return the content of a page."""
    _, _, rest = file.read_text().partition('type="application/json">')
    model: dict[str, Any] = json.loads(rest.partition("</script>")[0])
    return model


def test_a_page_has_the_records_of_the_cache(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.html"
    said = answer_of(store, capsys, "report", file)
    model = model_in(file)
    assert said == {"file": str(file), "bytes": file.stat().st_size, "records": 3}
    assert len(model["records"]) == 3
    assert model["sources"][0]["counters"]["hits"] == 4
    held = {model["texts"][name]: count for name, count, _ in model["sources"][0]["holdings"]}
    assert held == {"records of mm": 3, "kernels of gemm": 1, "candidates in quarantine": 1}
    assert len(model["environments"]) == 2
    assert f"<title>{store.root}</title>" in file.read_text()


def test_a_page_of_a_cache_that_is_not_there_yet_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / "none"))
    assert main(["report", str(tmp_path / "out.html")]) == 0
    assert model_in(tmp_path / "out.html")["records"] == []
    assert not (tmp_path / "none").exists()


def test_two_sources_are_shown_side_by_side(store: Store, tmp_path: Path) -> None:
    pins, file = tmp_path / "pins.json", tmp_path / "out.html"
    run(store, "pin", pins)
    assert main(["report", str(file), str(store.root), str(pins)]) == 0
    model = model_in(file)
    assert sorted(sorted(pair) for pair in model["pairs"]) == [[0, 5], [1, 4], [2, 3]]
    key = model["columns"]["record"].index("key")
    for pair in model["pairs"]:
        assert len({model["records"][row][key] for row in pair}) == 1
    bench = str(RESULTS / "models_cpu.json")
    assert main(["report", str(file), bench, bench, "--force"]) == 0
    assert {ratio for _, left, _, ratio in model_in(file)["compared"] if left} == {1}


def test_a_trace_is_drawn(store: Store, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    span = {"ph": "X", "ts": 0, "dur": 5000, "name": "a", "cat": "compile", "pid": 1, "tid": 1}
    trace.write_text(json.dumps({"traceEvents": [span]}))
    run(store, "report", tmp_path / "out.html", "--trace", trace)
    assert model_in(tmp_path / "out.html")["timeline"]["span_ms"] == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.json"], "there is no file none.json; name a cache"),
        (["text"], "text is no JSON"),
        (["list.json"], "is neither a pin file nor a benchmark's JSON"),
        (["pins.json"], "is not a pin file"),
        (["folder"], "folder is no cache"),
        (["a", "b", "c"], "two side by side; there are 3"),
        (["--trace", "empty.json"], "empty.json: it has no traceEvents"),
        (["--trace", "none.json"], "there is no file none.json"),
    ],
)
def test_what_is_no_source_is_refused_and_nothing_is_written(
    arguments: list[str],
    words: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(store.root))
    Path("text").write_text("no JSON")
    Path("list.json").write_text("[1]")
    Path("pins.json").write_text('{"pins": 3}')
    Path("empty.json").write_text("{}")
    Path("folder").mkdir()
    assert main(["report", "out.html", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path("out.html").exists()


def test_a_file_is_replaced_only_when_asked_for(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.html"
    file.write_text("mine")
    run(store, "report", file, status=2)
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    run(store, "report", file, "--force")
    assert model_in(file)["version"] == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.html"]


def test_a_damaged_record_is_left_out(store: Store, tmp_path: Path) -> None:
    path = next(open_store(store.root).record_paths())
    path.write_bytes(b"damaged")
    run(store, "report", tmp_path / "out.html")
    assert len(model_in(tmp_path / "out.html")["records"]) == 2
    assert path.read_bytes() == b"damaged"


def test_the_title_of_two_has_what_tells_them_apart() -> None:
    left, right = (BenchSource(name, {}) for name in ("/a/b/left/x.json", "/a/b/right/x.json"))
    assert title([left]) == "/a/b/left/x.json"
    assert title([left, right]) == "left/x.json beside right/x.json"
    assert title([left, left]) == "x.json beside x.json"


def test_the_cache_is_one_of_the_sources_where_there_are_some(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(store, "report", tmp_path / "out.html", store.root, status=2)
    assert "--cache-dir has no meaning beside a SOURCE" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()
