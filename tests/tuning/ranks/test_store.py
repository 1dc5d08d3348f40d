"""torch's stores behind the operations of the protocol, and a server that does not answer."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

# torch does not export its stores' names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import weakref
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from inductor_plugin.tuning.ranks.store import C10dStore, StoreLostError


def server(port: Any) -> None:
    """Be the server of a store in a process of its own."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    port.send(store.port)
    time.sleep(600)


def stores(kind: str, folder: Path) -> Any:
    if kind == "file":
        return dist.FileStore(str(folder / "store"), 2)
    if kind == "hash":
        return dist.HashStore()
    tcp = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    return dist.PrefixStore("default_pg", tcp)


@pytest.mark.parametrize("kind", ["tcp", "file", "hash"])
def test_operations_are_the_same_on_all_stores(kind: str, tmp_path: Path) -> None:
    shared = stores(kind, tmp_path)
    left, other = (C10dStore(shared, "prefix/", 10.0) for _ in range(2))
    assert left.get("a") is None
    assert left.put_once("a", "first") == "first"
    assert other.put_once("a", "second") == "first"
    assert other.get("a") == "first"
    assert other.exchange("a", "another", "third") == "first"
    assert other.exchange("a", "first", "third") == "third"
    assert left.get("a") == "third"
    left.put("b", "x" * 100_000)
    assert len(other.get("b") or "") == 100_000
    assert [left.count("n", 2), other.count("n", 1), left.count("n")] == [2, 3, 3]
    assert C10dStore(shared, "other/", 10.0).get("a") is None


def test_only_one_of_many_threads_sets_a_key_first() -> None:
    shared = stores("tcp", Path())
    result: list[str] = []

    def claim(number: int) -> None:
        result.append(C10dStore(shared, "", 10.0).put_once("claim", str(number)))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 8
    assert len(set(result)) == 1


def test_the_server_of_a_job_ends_with_its_process_group() -> None:
    job: Any = stores("tcp", Path())
    unused, used = (C10dStore(job, "", 10.0) for _ in range(2))
    used.put("a", "1")
    group = weakref.ref(job)
    del job
    assert group() is None
    with pytest.raises(StoreLostError):
        used.get("a")
    with pytest.raises(StoreLostError, match="the process group was destroyed"):
        unused.get("a")


def test_a_store_that_is_closed_answers_nothing_and_ends_its_thread() -> None:
    job: Any = stores("tcp", Path())
    used = C10dStore(job, "", 10.0)
    used.put("a", "1")
    untyped: Any = used
    used.close("the process group was destroyed")
    untyped._thread.join(10.0)
    assert not untyped._thread.is_alive()
    with pytest.raises(StoreLostError, match="was destroyed"):
        used.get("a")


class Gate:
    """A store of one process that answers nothing before it is opened."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.entered, self.opened = threading.Event(), threading.Event()

    def compare_set(self, key: str, _before: str, value: str) -> bytes:
        self.entered.set()
        assert self.opened.wait(60.0)
        return self.values.setdefault(key, value).encode()


def test_what_is_given_up_before_it_is_under_way_is_not_carried_out_later() -> None:
    gate = Gate()
    store: Any = C10dStore(gate, "", 0.5)

    def ask() -> None:
        with suppress(StoreLostError):
            store.put_once("a", "1")

    first = threading.Thread(target=ask)
    first.start()
    assert gate.entered.wait(60.0)
    with pytest.raises(StoreLostError, match=r"has not answered for 0\.5 s"):
        store.put_once("b", "2")
    gate.opened.set()  # the server goes on
    first.join(60.0)
    store.close("the process group was destroyed")
    store._thread.join(60.0)
    assert gate.values == {"a": "1"}


def test_nobody_waits_for_a_thread_that_a_close_has_just_ended() -> None:
    gate = Gate()
    gate.opened.set()
    store: Any = C10dStore(gate, "", 40.0)
    calls, closes = store._calls, threading.Thread(target=store.close, args=("it is closed",))

    class Calls:
        """Has the store closed by another thread just before a call is put there."""

        get = calls.get

        def put(self, call: object) -> None:
            if call is not None:
                closes.start()
                closes.join(0.5)
            calls.put(call)

    store._calls = Calls()
    started = time.monotonic()
    with suppress(StoreLostError):
        store.put_once("a", "1")
    closes.join(60.0)
    assert time.monotonic() - started < 30.0


def test_without_a_thread_that_asks_the_store_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    store = C10dStore(Gate(), "", 10.0)
    with pytest.raises(StoreLostError, match="no thread can ask it: can't start new thread"):
        store.get("a")


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_server_that_does_not_answer_is_given_up(how: signal.Signals) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=server, args=(there,), daemon=True)
    process.start()
    try:
        assert here.poll(120.0)
        port = here.recv()
        client = dist.TCPStore(
            "127.0.0.1", port, None, False, timedelta(seconds=30), wait_for_workers=False
        )
        store = C10dStore(client, "", 1.0)
        store.put("a", "1")
        assert process.pid is not None
        os.kill(process.pid, how)
        started = time.monotonic()
        with suppress(StoreLostError):
            while time.monotonic() - started < 20.0:  # what was on its way may still be answered
                store.get("a")
        with pytest.raises(StoreLostError):  # at once
            store.get("a")
        assert time.monotonic() - started < 20.0
    finally:
        process.kill()
        process.join()
