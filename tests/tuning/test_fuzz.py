"""Whatever lies in pin files, locks of problems, operand files and records: no traceback, no wait, no wrong decision."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError, OptionError
from inductor_plugin.kernels.call import ExternKernel, OpKernel, TensorSpec
from inductor_plugin.problem.number_check import NumberCheck, tolerance_of
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.tuning.counters import Counters
from inductor_plugin.tuning.holder import ProblemLocks
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.tuning.pins.document import dump
from inductor_plugin.tuning.pins.pin import Pin, pin_file
from inductor_plugin.tuning.pins.replay import read_pins
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.task import problem_digest
from inductor_plugin.worker.child import bench
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.jobs import BenchCandidate, Sampling, ScreenJob
from tests.support.cache.fuzz import (
    BODIES,
    VALUES,
    Attack,
    attacks,
    cases,
    change_field,
    paths_of,
    quick,
    rewrite,
)
from tests.support.cache.records import measured, record
from tests.support.candidates import wrong_numbers
from tests.support.fakes.tasks import entry, offer, problem, task

BYTES = ("bytes", "cut", "flip", "odd", "signed")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Generator[None]:
    """Small products on many threads wait for each other on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    bench.release()  # collects garbage: not after each case
    wrong_numbers.reset()


def pins_survive(index: int, value: Any, body: bytes | None, attack: Attack | None) -> None:
    fields = json.loads(dump(pin_file([Pin("e", "mm", "d", "mm(1)", "a")], {})))
    options = list(paths_of(fields))
    *outer, last = options[index % len(options)]
    at: Any = fields
    for name in outer:
        at = at[name]
    at[last] = value
    with tempfile.TemporaryDirectory() as folder, quick(f"{index} {value!r:.80} {body!r:.80}"):
        path = Path(folder) / "pins.json"
        path.write_bytes(json.dumps(fields).encode() if body is None else b'{"pins": ' + body)
        if attack is not None:
            attack[1](path)
        with suppress(OptionError):
            pins = read_pins(str(path))
            assert all(isinstance(pin.winner, str) for pin in pins.pins.values())


PINS = (
    strategies.integers(0, 20),
    VALUES,
    strategies.none() | strategies.sampled_from(BODIES),
    strategies.none() | attacks(BYTES),
)


@cases(60)
@given(*PINS)
def test_no_pin_file_does_harm(
    index: int, value: Any, body: bytes | None, attack: Attack | None
) -> None:
    pins_survive(index, value, body, attack)


@cases(1000)
@given(*PINS)
def test_no_pin_file_does_harm_at_length(
    index: int, value: Any, body: bytes | None, attack: Attack | None
) -> None:
    pins_survive(index, value, body, attack)


def lock_survives(attack: Attack) -> None:
    """A problem's lock is taken, or refused as another process's; nothing else is raised, whatever lies in its place."""
    with tempfile.TemporaryDirectory() as folder, quick(attack[0]):
        store = open_store(Path(folder) / "cache")
        path = store.layout.lock("measure-digest")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        attack[1](path)
        locks, measuring = ProblemLocks(store, 0.0), task([entry("a")])
        first = locks(measuring)
        locks.touch(measuring)
        second = first or locks(measuring)  # the silence of whoever seems to hold it is over
        if second is not None:
            second()
        with suppress(CacheError), store.lock_kernel("measure-digest", timeout_s=0):
            pass


@cases(60)
@given(attacks())
def test_no_lock_of_a_problem_does_harm(attack: Attack) -> None:
    lock_survives(attack)


@cases(600)
@given(attacks())
def test_no_lock_of_a_problem_does_harm_at_length(attack: Attack) -> None:
    lock_survives(attack)


def decided(folder: str, harm: Callable[[Path], None]) -> tuple[str | None, dict[str, float]]:
    """Return the winner by a record that was harmed, and the times it has; the fastest kernel of it is wrong."""
    product, check = problem(), NumberCheck(Tolerance(0.01, 0.01))
    offers = [offer("library", library=True), *map(offer, ("a", "b", "wrong"))]
    store = open_store(folder)
    config = Config.load({"cache_dir": folder}, environ={})
    selection = Selection(config, store, "e" * 16, dict[str, str], Counters(), None)
    rows = [
        measured(name, time_ms, provenance={"race": "final"}, status=status, error=0.0)
        for name, time_ms, status in (
            *(("library", 2.0, "ok"), ("a", 1.0, "ok"), ("b", 3.0, "ok")),
            ("wrong", 1e-3, "wrong"),
        )
    ]
    stored = record(*rows, environment="e" * 16, digest=problem_digest(product))
    store.put_record(stored)
    harm(store.layout.record("e" * 16, "mm", stored.digest))
    ticket = selection.plan(product, offers, {}, check, None)
    return selection.decide(ticket).winner, selection.medians(ticket)


def decision_survives(index: int, how: str, value: Any) -> None:
    """The winner is a library kernel, or a candidate that has a time and was right."""

    def harm(path: Path) -> None:
        change_field(path, index, how, value)

    what = f"{how} {index} {value!r:.80}"
    with tempfile.TemporaryDirectory() as folder, quick(what):
        winner, medians = decided(folder, harm)
    assert winner in (None, "library") or winner in medians, what
    assert medians.keys() <= {"library", "a", "b"}, what
    assert all(0 <= time_ms < float("inf") for time_ms in medians.values()), what


def test_a_record_that_is_sound_decides(tmp_path: Path) -> None:
    winner, medians = decided(str(tmp_path), lambda path: None)
    assert winner == "a"
    assert medians == {"library": 2.0, "a": 1.0, "b": 3.0}


FIELDS = strategies.integers(0, 200), strategies.sampled_from(["field", "drop"]), VALUES


@cases(60)
@given(*FIELDS)
def test_no_field_of_a_record_makes_a_stranger_win(index: int, how: str, value: Any) -> None:
    decision_survives(index, how, value)


@pytest.mark.slow
@cases(900)
@given(*FIELDS)
def test_no_field_of_a_record_makes_a_stranger_win_at_length(
    index: int, how: str, value: Any
) -> None:
    decision_survives(index, how, value)


M, K, N = 24, 64, 40
ONCE = Sampling(warmup=0, samples=1, min_sample_ms=0.0, max_total_s=1.0, cold_cache=False)


def screening(kernel: str, weight: TensorSpec) -> ScreenJob:
    """Return the job that measures an operator of `wrong_numbers` beside the library's, on a weight in a file."""
    a, out = (
        TensorSpec((M, K), (K, 1), "float32", "cpu", seed=1),
        TensorSpec((M, N), (N, 1), "float32", "cpu"),
    )
    product = problem(device="cpu")
    check = NumberCheck(tolerance_of(product, tf32=False))
    library = BenchCandidate("library", ExternKernel("mm"), (a, weight), out, 20.0)
    wrong = OpKernel(f"numbers::{kernel}", imports=(wrong_numbers.__name__,))
    candidate = replace(library, candidate_id=kernel, kernel=wrong)
    return ScreenJob(str(weight.file), library, candidate, ONCE, check)


def operand_survives(attack: Attack) -> None:
    """An operand is built or refused; a wrong kernel is not right on whatever it has become."""
    files = OperandFiles()
    try:
        weight = files.keep("w", torch.randn(K, N))
        assert weight.file is not None
        attack[1](Path(weight.file))
        with quick(attack[0]), suppress(OSError, ValueError, RuntimeError):
            build(weight)
        with suppress(OSError, ValueError, RuntimeError):
            outcome = bench.screen(screening("too_large", weight), lambda _event: None)
            assert outcome.status != "ok", attack[0]
    finally:
        files.remove()


def test_an_operand_file_that_is_sound_is_measured() -> None:
    files = OperandFiles()
    weight = files.keep("w", torch.randn(K, N))
    assert bench.screen(screening("exact", weight), lambda _event: None).status == "ok"
    bench.release()
    files.remove()


def filled(byte: int) -> Attack:
    """Return an attack that fills a file: with zeros, NaN, large numbers."""
    return f"filled with {byte}", lambda path: rewrite(path, lambda data: bytes([byte]) * len(data))


OPERANDS = attacks((*BYTES, "field")) | strategies.builds(filled, strategies.integers(0, 255))


@cases(60)
@given(OPERANDS)
def test_no_operand_file_does_harm(attack: Attack) -> None:
    operand_survives(attack)


@cases(1000)
@given(OPERANDS)
def test_no_operand_file_does_harm_at_length(attack: Attack) -> None:
    operand_survives(attack)
