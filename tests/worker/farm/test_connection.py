"""One connection for all that uses a cluster, with Ray in the place of which a test answers."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.worker.farm import connection as connection_module
from inductor_plugin.worker.farm.connection import Connection, marked, reason_of
from tests.support.fakes.ray import FakeRay
from tests.support.fakes.waiting import until


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.mark.parametrize(
    ("farm", "address"),
    [
        ("ray:auto", "auto"),
        ("ray:10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://head:10001", "ray://head:10001"),
        ("ray:local", "local"),
    ],
)
def test_an_option_is_an_address_of_ray(ray: FakeRay, farm: str, address: str) -> None:
    connection = Connection(farm, "bench_farm")
    assert ray.calls == [address]
    assert [node["NodeID"] for node in connection.nodes()] == ["a"]
    connection.close()
    assert not connection.alive
    with pytest.raises(WorkerError, match="has ended"):
        connection.check()


@pytest.mark.parametrize(
    ("farm", "seconds"), [("ray:auto", "2592000"), ("ray://head:10001", None), ("ray:local", None)]
)
def test_ray_does_not_end_a_process_that_has_joined_a_cluster_whose_head_is_lost(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, farm: str, seconds: str | None
) -> None:
    """A client is not ended, and what Ray starts on this machine is to end."""
    name, seen = "RAY_gcs_rpc_server_reconnect_timeout_s", list[str | None]()
    init = ray.init

    def seeing(address: str, **more: object) -> None:
        seen.append(os.environ.get(name))
        init(address, **more)

    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray, "init", seeing)
    Connection(farm, "compile_farm").close()
    assert seen == [seconds]
    assert name not in os.environ  # other processes of the user's have Ray's default
    monkeypatch.setenv(name, "7")
    Connection(farm, "compile_farm").close()
    assert seen == [seconds, "7"]


def test_cpus_that_run_nothing_are_those_that_ray_could_give(ray: FakeRay) -> None:
    connection = Connection("ray:auto", "compile_farm")
    assert connection.free_cpus() == 2
    ray.available = {"memory": 1e9}  # Ray names no resource that is used up
    assert connection.free_cpus() == 0
    connection.close()


def test_what_compiles_and_what_measures_at_once_are_connected_once(ray: FakeRay) -> None:
    connections: list[Connection] = []

    def connect(option: str) -> None:
        connections.append(Connection("ray:auto", option))

    options = ("compile_farm", "bench_farm")
    threads = [threading.Thread(target=connect, args=(option,)) for option in options]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(connections), ray.calls) == (2, ["auto"])


def test_the_connection_of_the_users_program_stays(ray: FakeRay) -> None:
    ray.init("the user's")
    connection = Connection("ray:auto", "bench_farm")
    connection.close()
    assert connection.alive
    assert ray.calls == ["the user's"]


def test_another_cluster_than_the_one_that_is_connected_is_an_error(ray: FakeRay) -> None:
    """Two options of one compile are compared when they are read, those of two compiles here."""
    first = Connection("ray://a:10001", "compile_farm")
    with pytest.raises(
        WorkerError, match=r"bench_farm is 'ray://b:10001', and .* to 'ray://a:10001'"
    ):
        Connection("ray://b:10001", "bench_farm")
    first.close()
    assert not ray.is_initialized()
    Connection("ray://b:10001", "bench_farm").close()
    assert ray.calls == ["ray://a:10001", "ray://b:10001"]


def test_the_last_of_those_that_use_a_connection_ends_it(ray: FakeRay) -> None:
    first, second = (Connection("ray:auto", option) for option in ("compile_farm", "bench_farm"))
    first.close()
    first.close()
    assert second.alive
    second.close()
    assert not ray.is_initialized()


def test_what_the_users_program_connects_to_later_is_its_own(ray: FakeRay) -> None:
    first = Connection("ray://a:10001", "compile_farm")
    ray.shutdown()
    ray.init("the user's")
    Connection("ray://b:10001", "bench_farm").close()
    first.close()
    assert ray.is_initialized()


def test_what_belongs_to_a_connection_that_has_ended_is_lost(ray: FakeRay) -> None:
    first = Connection("ray:auto", "compile_farm")
    ray.shutdown()
    second = Connection("ray:auto", "bench_farm")
    assert (first.alive, second.alive) == (False, True)
    first.close()
    assert second.alive
    second.close()


def test_a_head_that_was_lost_can_be_connected_again(ray: FakeRay) -> None:
    first = Connection("ray://a:10001", "compile_farm")
    ray.lose()
    assert not first.alive
    second = Connection("ray://a:10001", "compile_farm")
    first.close()
    assert second.alive
    second.close()
    assert ray.calls == ["ray://a:10001"] * 2


def test_a_cluster_that_cannot_be_reached_is_named(ray: FakeRay) -> None:
    ray.error = ConnectionError("no route")
    with pytest.raises(WorkerError, match=r"farm ray:auto cannot be reached: .*no route"):
        Connection("ray:auto", "bench_farm")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("no address", "no address"),
        ("Refused by the server:\n\n  no memory\n  at line 3", "Refused by the server: no memory"),
        (
            "Refused:\nTraceback (most recent call last):\n  f()\nKeyError: 3\n",
            "Refused: KeyError: 3",
        ),
        ("\nit ended\nTraceback", "it ended"),
        ("the job failed\nTraceback", "the job failed"),
    ],
)
def test_a_reason_is_the_first_line_or_what_follows_a_heading(said: str, reason: str) -> None:
    assert reason_of(OSError(said)) == f"OSError: {reason}"


def test_a_head_that_says_nothing_is_given_up_and_a_connection_that_comes_later_ends_itself(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_S", 0.05)
    monkeypatch.setattr(connection_module, "_END_S", 0.05)
    answer, init = threading.Event(), ray.init

    def late(address: str, **more: object) -> None:
        answer.wait(60.0)
        init(address, **more)

    with monkeypatch.context() as patched:
        patched.setattr(ray, "init", late)
        with pytest.raises(
            WorkerError, match=r"farm ray:auto cannot be reached: no answer in 0\.05 s"
        ):
            Connection("ray:auto", "compile_farm")
        with pytest.raises(WorkerError, match="has not ended yet"):
            Connection("ray:auto", "bench_farm")
        answer.set()
        until(lambda: ray.calls == ["auto"] and not ray.is_initialized())
    monkeypatch.setattr(connection_module, "ANSWER_S", 60.0)
    monkeypatch.setattr(connection_module, "_END_S", 60.0)
    connection = Connection("ray:auto", "compile_farm")
    assert connection.alive
    connection.close()


def test_the_end_does_not_wait_while_another_thread_waits_for_the_head(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, answer, asked = Connection("ray:auto", "compile_farm"), threading.Event(), list[int]()
    context = ray.get_runtime_context

    def late() -> Any:
        asked.append(1)
        answer.wait(60.0)
        return context()

    monkeypatch.setattr(ray, "get_runtime_context", late)
    monkeypatch.setattr(connection_module, "_END_S", 0.05)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(Connection, "ray:auto", "bench_farm")
        until(lambda: bool(asked))
        try:
            pool.submit(first.close).result(10.0)
        finally:
            answer.set()
        monkeypatch.setattr(connection_module, "_END_S", 60.0)
        second.result(30.0).close()
    until(lambda: not ray.is_initialized())  # both use it no more


@pytest.mark.parametrize(("farm", "stays"), [("ray:local", True), ("ray:auto", False)])
def test_the_thread_that_has_started_a_cluster_lasts_as_long(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, farm: str, stays: bool
) -> None:
    """Ray lets Linux end a process with the thread that has started it."""
    threads, init = list[threading.Thread](), ray.init

    def begin(address: str, **more: object) -> None:
        threads.append(threading.current_thread())
        init(address, **more)

    monkeypatch.setattr(ray, "init", begin)
    monkeypatch.setattr(connection_module, "_STAY_S", 0.01)
    connection = Connection(farm, "compile_farm")
    threads[0].join(0.2 if stays else 30.0)
    assert threads[0].is_alive() == stays
    connection.close()
    threads[0].join(30.0)
    assert not threads[0].is_alive()


def test_ray_does_not_say_that_the_users_handler_of_sigterm_stays(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init, log = ray.init, logging.getLogger("ray._private.worker")

    def begin(address: str, **more: object) -> None:
        log.warning("SIGTERM handler is not set because current thread is not the main thread.")
        log.warning("the head has another version")
        init(address, **more)

    monkeypatch.setattr(ray, "init", begin)
    Connection("ray:auto", "compile_farm").close()
    assert [record.message for record in caplog.records] == ["the head has another version"]
    assert log.filters == []


def test_without_ray_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match="option bench_farm is 'ray:auto', and Ray is not"):
        Connection("ray:auto", "bench_farm")


def test_an_error_of_ray_reaches_who_calls(ray: FakeRay) -> None:
    connection = Connection("ray:auto", "bench_farm")

    def late() -> None:
        raise TimeoutError("Ray's own limit")

    with pytest.raises(TimeoutError, match="Ray's own limit"):
        connection.within(10.0, late)
    assert connection.alive
    assert connection.within(10.0, lambda: 3) == 3


def test_a_cluster_that_says_nothing_is_given_up(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_END_S", 0.05)
    connection, answer = Connection("ray:auto", "bench_farm"), threading.Event()
    with pytest.raises(WorkerError, match="has not answered for 0 s"):
        connection.within(0.05, lambda: answer.wait(10.0))
    assert not connection.alive
    with pytest.raises(WorkerError, match="does not answer any more"):
        connection.nodes()
    shut = ray.shutdown
    monkeypatch.setattr(ray, "shutdown", lambda: (answer.wait(10.0), shut()))
    connection.close()
    with pytest.raises(WorkerError, match="has not ended yet"):  # Ray has one at a time
        Connection("ray:auto", "bench_farm")
    answer.set()
    until(lambda: not ray.is_initialized())


def test_the_end_waits_neither_for_a_call_nor_for_a_head_that_says_nothing(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends would take a minute, for each connection."""
    monkeypatch.setattr(connection_module, "_END_S", 0.05)
    connections = [Connection("ray:auto", option) for option in ("compile_farm", "bench_farm")]
    answer, errors, shut = threading.Event(), list[str](), ray.shutdown

    def call() -> None:
        with pytest.raises(WorkerError) as raised:
            connections[0].within(600.0, lambda: answer.wait(60.0))
        errors.append(str(raised.value))

    waits = threading.Thread(target=call)
    waits.start()
    connections[0].hurry()
    waits.join(30.0)
    assert errors == ["the cluster has not answered for 0 s"]
    monkeypatch.setattr(ray, "get_runtime_context", lambda: answer.wait(60.0))
    monkeypatch.setattr(ray, "shutdown", lambda: (answer.wait(60.0), shut()))
    started = time.monotonic()
    for connection in reversed(connections):
        connection.close()
    assert time.monotonic() - started < 30.0
    answer.set()
    until(lambda: not ray.is_initialized())


def test_a_head_that_does_not_let_go_keeps_the_end_for_some_seconds(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has answered until now."""
    monkeypatch.setattr(connection_module, "_END_S", 0.05)
    connection = Connection("ray:auto", "compile_farm")
    answer, shut, started = threading.Event(), ray.shutdown, time.monotonic()
    monkeypatch.setattr(ray, "shutdown", lambda: (answer.wait(60.0), shut()))
    connection.close()
    assert time.monotonic() - started < 30.0
    assert ray.is_initialized()
    monkeypatch.setattr(connection_module, "_END_S", 60.0)
    answer.set()
    Connection("ray:auto", "bench_farm").close()  # which waits for that end
    assert len(ray.calls) == 2


def test_nothing_is_asked_of_a_connection_that_has_ended(ray: FakeRay) -> None:
    connection, asked = Connection("ray:auto", "bench_farm"), list[int]()
    ray.shutdown()  # by the user's program
    with pytest.raises(WorkerError, match="has ended"):
        connection.within(10.0, lambda: asked.append(1))
    assert asked == []


def test_a_job_is_marked_for_its_sender_as_long_as_it_runs(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: dict[str, bytes] = {}
    keys: Any = SimpleNamespace(
        _internal_kv_put=table.__setitem__,
        _internal_kv_del=table.pop,
        _internal_kv_list=lambda start: [k.encode() for k in table if k.startswith(start)],  # pyright: ignore
    )
    monkeypatch.setattr(connection_module, "_keys", lambda: keys)
    monkeypatch.setattr(connection_module, "node_here", lambda: "n1")
    connection = Connection("ray:auto", "compile_farm")
    with marked("s 1"), marked("t 2"):
        assert connection.marks("s") == {"s 1": {"n1"}}
        assert connection.marks("u") == {}
    assert table == {}
    with pytest.raises(ZeroDivisionError), marked("s 1"):
        raise ZeroDivisionError
    assert table == {}
    with marked(""):  # nobody looks
        assert table == {}
    del keys._internal_kv_put
    with marked("s 1"):  # the head does not answer: it is compiled all the same
        assert connection.marks("s") == {}
    connection.close()
