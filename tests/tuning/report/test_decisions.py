"""The decisions of a graph as values."""

from __future__ import annotations

import re
from typing import Any

from inductor_plugin.tuning.counters import Stats
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.report.decisions import FORM, decisions, stored_decisions
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.cache.records import measured
from tests.support.fakes.tasks import offer, problem
from tests.support.repository import REPOSITORY


def test_what_was_decided_measured_and_spent_is_named() -> None:
    selection: Any = None
    offers = (offer("library", library=True), offer("a"), offer("b"))
    known = {"library": measured("library"), "a": measured("a", 0.5)}
    decided = TuningTicket(selection, problem(), "d", offers, known, {"t": "too small"}, hit=True)
    decided.verdict = Verdict("a", "library", "2x faster", 2.0, provisional=True)
    open_ = TuningTicket(selection, problem(), "o", offers, {}, {})
    firm = TuningTicket(selection, problem(), "f", offers, known, {})
    firm.verdict = Verdict("a", "library", "2x faster", 2.0)
    said = decisions([decided, open_, firm], Stats(compiled=2))
    assert said["spent"] == {"compiled": 2}
    first, second, third = said["problems"]
    assert (first["winner"], first["library"], first["speedup"]) == ("a", "library", 2.0)
    assert (first["known"], first["provisional"], first["reason"]) == (True, True, "2x faster")
    assert first["not_measured"] == ["b"]
    assert [each["candidate"] for each in first["candidates"]] == ["library", "a"]
    assert first["candidates"][1]["samples"] == 2
    assert first["rejected"] == {"t": "too small"}
    assert (second["winner"], second["provisional"], second["reason"]) == (
        None,
        False,
        "not decided",
    )
    assert second["not_measured"] == ["library", "a", "b"]
    assert (third["known"], third["provisional"]) == (False, False)


def section() -> str:
    """Return what docs/explain.md says on tlparse."""
    text = (REPOSITORY / "docs" / "explain.md").read_text(encoding="utf-8")
    return text.partition("\n## In tlparse\n")[2].partition("\n## ")[0]


def words(text: str) -> set[str]:
    """Return the words of a text that are marked as code."""
    return set(re.findall(r"\w+", " ".join(re.findall("`([^`]+)`", text))))


def test_the_page_on_tlparse_names_every_field() -> None:
    selection: Any = None
    offers = (offer("library", library=True),)
    rows = {"library": measured("library")}
    ticket = TuningTicket(selection, problem(), "d", offers, rows, {})
    said = decisions([ticket], Stats(compiled=1))
    (row,) = said["problems"]
    table = "".join(line for line in section().splitlines() if line.startswith("|"))
    assert {*said, *row, *row["candidates"][0]} - words(table) == set()


def test_of_a_graph_out_of_inductors_cache_only_these_fields_are_known() -> None:
    """The sentence below the table names them, and no others."""
    said = stored_decisions([("mm/d", "a", "library"), ("graph/g", "held", None)])
    assert said == {
        "format": FORM,
        "from_inductor_cache": True,
        "spent": {},
        "problems": [
            {"op": "mm", "key": "d", "known": True, "winner": "a", "library": "library"},
            {"op": "graph", "key": "g", "known": True, "winner": "held", "library": None},
        ],
    }
    sentence = section().partition("`problems[]` has only ")[2].partition(";")[0]
    assert words(sentence) == said["problems"][0].keys()
