"""When a remote is asked again after it has failed."""

from __future__ import annotations

from inductor_plugin.cache.remote.health import LOCAL_ONLY_S, Health, answered, failed


def test_a_remote_is_left_alone_for_longer_after_each_failure_and_then_for_minutes() -> None:
    health, pauses = Health(), list[float]()
    for _ in range(4):
        health = failed(health, 100.0, "500")
        pauses.append(health.retry_at - 100.0)
    assert pauses == [0.5, 2.0, LOCAL_ONLY_S, LOCAL_ONLY_S]
    assert health.is_local_only
    assert not failed(failed(Health(), 0.0, ""), 0.0, "").is_local_only


def test_it_is_asked_again_when_the_pause_is_over_and_an_answer_forgets_the_failures() -> None:
    health = failed(Health(), 100.0, "500")
    assert not health.may_ask(100.4)
    assert health.may_ask(100.5)
    assert answered().may_ask(0.0)
    assert health.reason == "500"
