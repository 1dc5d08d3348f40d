"""Threads of a remote's client."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import threading
import time
from typing import Any, cast

import pytest

from inductor_plugin.cache.remote.files import open_files
from inductor_plugin.cache.remote.loop import DaemonExecutor, client_loop

_PROGRAM = """
import asyncio, threading, time
from inductor_plugin.cache.remote.loop import client_loop
begun = threading.Event()
def look_up():  # as getaddrinfo does where the name server does not answer
    begun.set()
    time.sleep(60.0)
async def connect():
    await asyncio.get_running_loop().run_in_executor(None, look_up)
asyncio.run_coroutine_threadsafe(connect(), client_loop())
begun.wait()
print("hangs", flush=True)
"""


def test_a_lookup_that_hangs_does_not_keep_the_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"hangs\n"
        started = time.monotonic()
        assert process.wait(50) == 0
    assert time.monotonic() - started < 40


def test_calls_return_and_raise_as_in_any_executor() -> None:
    def fail() -> None:
        raise OSError("no such host")

    executor = DaemonExecutor(1)
    assert executor.submit(pow, 2, 3).result(10.0) == 8
    with pytest.raises(OSError, match="no such host"):
        executor.submit(fail).result(10.0)

    async def called() -> int:
        return await asyncio.get_running_loop().run_in_executor(None, pow, 3, 2)

    assert asyncio.run_coroutine_threadsafe(called(), client_loop()).result(10.0) == 9


def test_a_client_has_a_loop_of_its_own() -> None:
    asyn: Any = importlib.import_module("fsspec.asyn")
    files, more = (cast("Any", open_files("http://localhost/shared")) for _ in range(2))
    assert more._system.loop is files._system.loop  # few threads, however many remotes
    assert files._system.loop is not asyn.get_loop()
    assert isinstance(files._system.loop._default_executor, DaemonExecutor)


def test_no_thread_of_a_client_keeps_the_process() -> None:
    async def threads() -> list[threading.Thread]:
        called = asyncio.get_running_loop().run_in_executor(None, threading.current_thread)
        return [threading.current_thread(), await called]

    of_client = asyncio.run_coroutine_threadsafe(threads(), client_loop()).result(10.0)
    assert [thread.daemon for thread in of_client] == [True, True]
    assert [thread.name for thread in of_client] == [
        "inductor-plugin-remote-loop",
        "inductor-plugin-remote-call",
    ]
