"""Compiles that share what they tune through an S3 server, which also fails in every way."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

from inductor_plugin.cache import open_store
from inductor_plugin.cache.remote.files import open_files
from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.cache.remote.tier import RemoteTier
from inductor_plugin.cli import main
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh
from tests.support.lowering import Lab, library_first
from tests.support.remote.machines import machine, patient, running, server, url
from tests.support.remote.s3_server import KEYS, S3Server, s3_server

__all__ = ["fresh", "patient", "running", "server", "url"]  # fixtures

LIMIT_S = 1.5
BUSY = 3.0
"""How many times as long a compile may take beside other work."""


LATE_S = 10.0
"""By so much a thread may come late to the end of its wait, on a machine that has other work; a slow answer takes 30 s."""


@dataclass
class Wait:
    """One wait of a compile for the remote.

    Attributes:
        limit_s: Seconds that it may take.
        took_s: Seconds that it took.
    """

    limit_s: float
    took_s: float = 0.0


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Wait]:
    """Return the waits for the remote, also those of compiles that follow."""
    rows, wait = list[Wait](), RemoteTier.wait

    def waited(tier: RemoteTier, question: Lookup, limit_s: float) -> bool:
        rows.append(Wait(limit_s))
        started = time.monotonic()
        try:
            return wait(tier, question, limit_s)
        finally:
            rows[-1].took_s = time.monotonic() - started

    monkeypatch.setattr(RemoteTier, "wait", waited)
    return rows


def most_s(waits: list[Wait]) -> float:
    """Return how long the waits of one graph could have taken together, whatever else the machine does; 0 without any."""
    before = itertools.accumulate((each.took_s for each in waits), initial=0.0)
    sums = (took_s + each.limit_s for took_s, each in zip(before, waits, strict=False))
    return max(sums, default=0.0)


def product(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(20 + seed, 33), torch.randn(33, 24)


@pytest.mark.usefixtures("patient")
def test_a_second_machine_measures_nothing_and_a_third_only_what_is_new(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    a, b = product(1)

    def status(candidate: BenchCandidate) -> str:
        return "wrong" if candidate.candidate_id.startswith("faults.wrong") else "ok"

    with offered("good"), Lab(library_first, tmp_path).open():
        _, cold, _ = machine(tmp_path, "first", url, torch.mm, a, b)
        answer, warm, counters = machine(tmp_path, "second", url, torch.mm, a, b)
    assert (cold.record_misses, cold.benchmarked) == (1, 2)
    assert (warm.record_hits, warm.record_misses, warm.benchmarked, warm.compiled) == (1, 0, 0, 0)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert (counters["remote_asked"], counters["remote_hits"], counters["hits"]) == (1, 1, 1)
    assert "remote_sent" not in counters
    with offered("good", "wrong"), Lab(library_first, tmp_path, status).open():
        _, more, counters = machine(tmp_path, "third", url, torch.mm, a, b)
    assert more.failed == 1
    assert (counters["remote_hits"], counters["remote_sent"]) == (1, 1)
    assert len([name for name in server.objects() if f"{tmp_path.name}/" in name]) == 3
    assert not [name for name in server.requests() if name == "GET bucket"]  # nothing is listed


@pytest.mark.usefixtures("patient")
def test_what_is_recorded_is_asked_for_nowhere(server: S3Server, url: str, tmp_path: Path) -> None:
    a, b = product(2)
    with offered("good"):
        machine(tmp_path, "here", url, torch.mm, a, b)
        before = server.requests()
        machine(tmp_path, "here", url, torch.mm, a, b)
    assert server.requests() == before


@pytest.mark.usefixtures("patient")
def test_policy_cached_waits_for_the_remote_and_finds_what_it_has(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    a, b = product(3)
    with offered("good"):
        machine(tmp_path, "here", url, torch.mm, a, b)
        _, spent, _ = machine(tmp_path, "there", url, torch.mm, a, b, policy="cached")
    assert (spent.record_hits, spent.benchmarked) == (1, 0)


@pytest.mark.usefixtures("server")
def test_a_server_lists_folders_and_those_names_alone_that_begin_so(url: str) -> None:
    """So a large remote is listed in parts; who pulls from it, see tests/cache/remote/test_transfer.py."""
    files = open_files(url)
    names = [f"v1/e/records/mm/{digest}/0000.json" for digest in ("0a", "0b", "1a")]
    for name in (*names, "v1/e/files/0a/x", "v1/e/environment.json"):
        files.create(name, b"{}", 30.0)
    assert files.folders("v1/", 30.0) == ["e"]
    assert sorted(files.folders("v1/e/", 30.0)) == ["files", "records"]
    assert sorted(files.names("v1/e/records/mm/0", 30.0)) == names[:2]
    assert sorted(files.names("v1/e/records/mm/", 30.0)) == names
    assert files.names("v1/e/records/mm/2", 30.0) == files.folders("v1/none/", 30.0) == []


@dataclass(frozen=True)
class Fault:
    """A fault of a server, and how a machine shows that it has met it.

    Attributes:
        of: As of `S3Server.fault`.
        counts: The cache's counters of which one counts it; none where what it does is drawn.
        hits: Records that the machine gets; None where that is drawn.
    """

    of: dict[str, Any]
    counts: tuple[str, ...]
    hits: int | None = 0


# A machine that is busy may not get as far as the content of an answer.
_FAILS, _DAMAGED = ("remote_failures",), ("remote_corrupt", "remote_failures")
FAULTS = {
    "refused": Fault({"status": 500}, _FAILS),
    "half of them refused": Fault({"status": 503, "rate": 0.5}, (), None),
    "slow": Fault({"delay_s": 30.0}, _FAILS),
    "cut off": Fault({"cut": True, "methods": ["GET"]}, _FAILS),
    "cut short": Fault({"cut": "whole", "methods": ["GET"]}, _DAMAGED),
    "corrupted": Fault({"flip": True, "methods": ["GET"]}, _DAMAGED),
    "not written": Fault({"status": 500, "methods": ["PUT"]}, ("remote_unsent",), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_store_changes_no_result_loses_nothing_and_is_not_waited_for(
    fault: str,
    server: S3Server,
    url: str,
    tmp_path: Path,
    waits: list[Wait],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, b = product(4)
    c, d = product(5)
    with offered("good"):
        started = time.monotonic()
        machine(tmp_path, "first", url, torch.mm, a, b)
        calm_s = time.monotonic() - started
        server.fault(**FAULTS[fault].of)
        waits.clear()
        started = time.monotonic()
        limit = {"remote_timeout_s": LIMIT_S}
        answer, spent, _ = machine(tmp_path, "second", url, torch.mm, a, b, **limit)
        took_s = time.monotonic() - started
        assert waits
        assert most_s(waits) <= LIMIT_S
        assert all(each.took_s <= each.limit_s + LATE_S for each in waits)
        waits.clear()
        other, _, counters = machine(tmp_path, "second", url, torch.mm, c, d, **limit)
        assert waits
        assert most_s(waits) <= LIMIT_S
        assert all(each.took_s <= each.limit_s + LATE_S for each in waits)
        assert server.faulted() > 0
        server.fault()
    counts, hits = FAULTS[fault].counts, counters.get("remote_hits", 0)
    assert not counts or any(counters.get(name) for name in counts)
    assert hits == FAULTS[fault].hits or FAULTS[fault].hits is None
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert torch.allclose(other, c @ d, atol=1e-4)
    assert spent.problems == 1
    # The compile without faults, on a machine that has other work meanwhile; one wait in it, and one at its end.
    assert took_s < BUSY * calm_s + 2 * LIMIT_S
    assert not any(each.levelno >= logging.ERROR for each in caplog.records)
    store = open_store(tmp_path / "second")
    assert len(list(store.iter_records())) == 2
    assert store.verify() == []
    # What could not be written is written when the store works again.
    assert main(["push", url, "--cache-dir", str(tmp_path / "second")]) == 0
    assert main(["pull", url, "--cache-dir", str(tmp_path / "third")]) == 0
    with offered("good"):
        for x, y in ((a, b), (c, d)):
            _, warm, _ = machine(tmp_path, "third", "", torch.mm, x, y)
            assert (warm.record_hits, warm.benchmarked) == (1, 0)
    capsys.readouterr()


def test_a_server_that_is_killed_in_the_middle_keeps_no_compile(
    url: str,
    tmp_path: Path,
    waits: list[Wait],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = product(6)
    c, d = product(7)
    with s3_server() as mortal, offered("good"):
        for name, value in mortal.environment.items():
            monkeypatch.setenv(name, value)
        options: dict[str, Any] = {"remote_url": url, "remote_timeout_s": LIMIT_S}
        run = compiled(torch.mm, tmp_path / "here", **options)
        started = time.monotonic()
        run(a, b)
        calm_s = time.monotonic() - started
        mortal.kill()
        waits.clear()
        spent, started = Spent(), time.monotonic()
        assert torch.allclose(run(c, d), c @ d, atol=1e-4)
        took_s = time.monotonic() - started
        # Without any if what the first compile sends has met the dead server before: it is not asked again at once.
        assert most_s(waits) <= LIMIT_S
        assert all(each.took_s <= each.limit_s + LATE_S for each in waits)
        assert took_s < BUSY * calm_s + LIMIT_S
        started = time.monotonic()
        RUNTIME.close()
        assert time.monotonic() - started < LIMIT_S + LATE_S
    assert spent.stats.problems == 1
    store = open_store(tmp_path / "here")
    assert len(list(store.iter_records())) == 2
    assert store.counters()["remote_unsent"] >= 1
    assert "`inductor-plugin push` writes them" in caplog.text


@pytest.mark.usefixtures("patient")
@pytest.mark.slow
def test_cold_to_warm_with_candidates_that_are_compiled(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    x = torch.randn(16, 96)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        expected, cold, _ = machine(tmp_path, "first", url, model, x)
        answer, warm, counters = machine(tmp_path, "second", url, model, x)
    assert cold.compiled > 0
    assert cold.benchmarked > 0
    assert (warm.compiled, warm.benchmarked, warm.record_misses) == (0, 0, 0)
    assert warm.record_hits == cold.problems
    assert torch.equal(answer, expected)
    assert counters["remote_saved_ms"] > 1000 * cold.compile_s / 2


_HANGS = """
import socket, sys, time
def look_up(*_arguments, **_keywords):  # a name server that does not answer
    print("looks up", flush=True)
    time.sleep(300.0)
socket.getaddrinfo = look_up
from inductor_plugin.cache import open_store
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.tier import RemoteTier
from tests.support.cache.records import measured, record
import atexit
tier = RemoteTier(open_store(sys.argv[1]), RemoteOptions("s3://bucket/x", 2.0))
atexit.register(tier.close)
kept = tier._store.put_record(record(measured("a")))
tier.send(kept.environment, kept.op, kept.digest)
"""


@pytest.mark.slow
def test_a_name_server_that_hangs_does_not_keep_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://store.invalid:9"}.items():
        monkeypatch.setenv(name, value)
    program = _HANGS + "import time; time.sleep(float(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), "20"],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert "looks up" in done.stdout
    assert "1 record is not in s3://bucket/x yet" in done.stderr
