"""Messages over a socket pair, in the format of multiprocessing's connections, with deadlines."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from inductor_plugin.errors import WorkerDiedError
from inductor_plugin.worker.pipe import Pipe


@pytest.fixture
def ends() -> Iterator[tuple[Pipe, Connection[Any, Any]]]:
    ours, theirs = socket.socketpair()
    pipe, connection = Pipe(ours, "worker"), Connection(theirs.detach())
    yield pipe, connection
    pipe.close()
    connection.close()


def soon() -> float:
    return time.monotonic() + 10.0


@pytest.mark.parametrize("size", [0, 100, 20_000, 3_000_000])
def test_messages_of_any_size_pass_both_ways(
    ends: tuple[Pipe, Connection[Any, Any]], size: int
) -> None:
    pipe, connection = ends
    received: list[Any] = []

    def other_side() -> None:
        received.append(connection.recv())
        connection.send(received[0])

    thread = threading.Thread(target=other_side)
    thread.start()
    pipe.send(("text", b"x" * size), soon())
    assert pipe.receive(math.inf) == ("text", b"x" * size)
    thread.join(10.0)
    assert received == [("text", b"x" * size)]


def test_a_message_nobody_reads_ends_at_its_deadline(
    ends: tuple[Pipe, Connection[Any, Any]],
) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        ends[0].send(b"x" * 5_000_000, started + 0.1)
    assert time.monotonic() - started < 5.0


def test_half_a_message_ends_at_its_deadline(ends: tuple[Pipe, Connection[Any, Any]]) -> None:
    pipe, connection = ends
    with socket.socket(fileno=connection.fileno()) as raw:
        raw.sendall(b"\0\0\0\x09half")
        raw.detach()
    with pytest.raises(TimeoutError):
        pipe.receive(time.monotonic() + 0.1)


def test_what_has_arrived_is_read_though_the_deadline_has_passed(
    ends: tuple[Pipe, Connection[Any, Any]],
) -> None:
    pipe, connection = ends
    connection.send("early")
    assert pipe.receive(time.monotonic() - 1.0) == "early"


def test_a_closed_end_is_the_end(ends: tuple[Pipe, Connection[Any, Any]]) -> None:
    ends[1].close()
    with pytest.raises(EOFError):
        ends[0].receive(soon())


@pytest.mark.parametrize("data", [b"\0\0\0\x04junk", b"\xff\xff\xff\xf0junk"])
def test_garbage_is_a_dead_worker(ends: tuple[Pipe, Connection[Any, Any]], data: bytes) -> None:
    pipe, connection = ends
    with socket.socket(fileno=connection.fileno()) as raw:
        raw.sendall(data)
        raw.detach()
    with pytest.raises(WorkerDiedError, match=r"^worker sent"):
        pipe.receive(soon())
