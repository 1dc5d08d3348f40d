"""A job that has come to a node, in this process: what it compiles, and what it refuses."""

from __future__ import annotations

import errno
import math
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.farm import node as node_module
from inductor_plugin.worker.farm.folder import NodeFolder
from inductor_plugin.worker.farm.node import compile_parcel
from inductor_plugin.worker.farm.parcel import parcel_of
from inductor_plugin.worker.jobs import Compiled, CompileJob, CppCompileJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
from tests.support.repository import REPOSITORY

SETTINGS = WorkerSettings((str(REPOSITORY), *sys.path, "/only/at/the/sender"), "compile")
TEXT = 'extern "C" int kernel() { return 3; }'


@pytest.fixture(autouse=True)
def a_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    processes: dict[WorkerSettings, WorkerProcess] = {}
    folders = list[NodeFolder]()
    monkeypatch.setattr(node_module, "_PROCESSES", processes)
    monkeypatch.setattr(node_module, "_FOLDERS", folders)
    monkeypatch.setattr(node_module, "node_here", lambda: "n1")
    yield
    for process in processes.values():
        process.close()
    for folder in folders:
        assert [path.name for path in folder.path.iterdir()] == ["lock"]  # nothing of its jobs
        folder.remove()


def job(folder: Path, *words: str) -> CppCompileJob:
    command = ("g++", *words, "{source}", "-shared", "-fPIC", "-o", "{output}")
    return CppCompileJob((CppSource("key", TEXT, "kernel"),), command, str(folder), 60.0)


def test_a_compiler_gives_way_as_the_sender_says(tmp_path: Path) -> None:
    """Ray has given the node's processes a nice value of its own: 19 is the end."""
    text = f"nice > {tmp_path}/nice; cp {{source}} {{output}}"
    source = CppSource("key", TEXT, "kernel")
    parcel = parcel_of(CppCompileJob((source,), ("sh", "-c", text), str(tmp_path), 60.0))
    compile_parcel(parcel, replace(SETTINGS, nice=19), math.inf)
    assert (tmp_path / "nice").read_text() == "19\n"


def test_what_needs_a_file_of_the_sender_only_for_speed_is_compiled(tmp_path: Path) -> None:
    """As every kernel for a CPU: Inductor precompiles a header into a folder of its user."""
    header = tmp_path / "first.h"
    header.write_text("#error this text is not to be read")
    compiled_header = tmp_path / "first.h.gch"
    compiled_header.write_bytes(b"")
    parcel = parcel_of(job(tmp_path, "-include", str(header)))
    header.unlink()
    compiled_header.unlink()
    delivery = compile_parcel(parcel, SETTINGS, math.inf)
    assert delivery.refusal == ""
    assert [(each.status, each.reason) for each in delivery.compiled] == [("ok", "")]
    assert delivery.compiled[0].library in delivery.files


def test_what_is_not_here_is_refused_and_by_whom(tmp_path: Path) -> None:
    folder = tmp_path / "headers"
    folder.mkdir()
    parcel = parcel_of(job(tmp_path, f"-I{folder}"))
    folder.rmdir()
    delivery = compile_parcel(parcel, SETTINGS, math.inf)
    assert (delivery.refusal, delivery.node) == (f"{folder} does not exist there", "n1")
    assert not delivery.passing
    assert delivery.compiled == ()


def test_a_machine_on_which_no_worker_starts_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels would be skipped else, though another machine can compile them."""

    def start(_: WorkerProcess) -> None:
        raise WorkerError("compile worker does not start: ended with exit code 1")

    monkeypatch.setattr(WorkerProcess, "start", start)
    delivery = compile_parcel(parcel_of(job(tmp_path)), SETTINGS, math.inf)
    assert "does not start: ended with exit code 1" in delivery.refusal
    assert delivery.passing  # as where its memory is in use


def test_a_machine_without_room_for_a_jobs_folder_skips_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose compiler says so: its sender tries another."""
    monkeypatch.setattr(WorkerProcess, "start", lambda _: None)  # pyright: ignore
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(node_module.tempfile, "TemporaryDirectory", mock.Mock(side_effect=full))
    delivery = compile_parcel(parcel_of(job(tmp_path)), SETTINGS, math.inf)
    assert (delivery.refusal, delivery.node) == ("", "n1")
    (compiled,) = delivery.compiled
    assert (compiled.key, compiled.status) == ("key", "skipped")
    assert "No space left on device" in compiled.reason


def test_jobs_are_marked_and_have_what_is_left_of_their_limit_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[str] = []
    processes: list[WorkerProcess] = []
    left_s: list[float] = []

    def marked(key: str) -> nullcontext[None]:
        marks.append(key)
        return nullcontext()

    def compile_all(process: WorkerProcess, job: CompileJob, until: float) -> list[Compiled]:
        processes.append(process)
        left_s.append(until - time.monotonic())
        time.sleep(0.01)
        return [Compiled("key", "crashed")]

    monkeypatch.setattr(WorkerProcess, "start", lambda _: None)  # pyright: ignore
    monkeypatch.setattr(node_module, "marked", marked)
    monkeypatch.setattr(node_module, "compile_all", compile_all)
    parcel = replace(parcel_of(job(tmp_path)), key="sender 1")
    for limit_s in (math.inf, 30.0):
        delivery = compile_parcel(parcel, SETTINGS, limit_s)
        assert delivery.elapsed_s >= 0.01
        assert delivery.node == "n1"
    assert left_s[0] == math.inf
    assert 0.0 < left_s[1] <= 30.0
    assert marks == ["sender 1"] * 2
    assert processes[0] is processes[1]  # which has imported torch
