"""A question to a remote has one answer, and who listens hears it once."""

from __future__ import annotations

from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.cache.remote.name import Place


def test_the_first_answer_stays_and_is_told_once() -> None:
    question, heard = Lookup(Place("e", "mm", "d")), list[bool]()
    question.when_done(lambda: heard.append(question.hit))
    assert heard == []
    question.finish(hit=True)
    question.finish(hit=False)  # as when the remote is closed
    assert (question.hit, heard) == (True, [True])


def test_who_listens_after_the_answer_hears_it_at_once() -> None:
    question, heard = Lookup(Place("e", "mm", "d")), list[bool]()
    question.finish(hit=False)
    question.when_done(lambda: heard.append(question.hit))
    assert heard == [False]
