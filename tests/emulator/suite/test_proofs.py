"""The table of static proofs: what is asked again, and what sentryward's answers become."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import proofs
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.proofs import NO_ANSWER, Proof
from tests.emulator.suite.row import Verdict
from tests.emulator.tensor import tensor_map
from tests.emulator.tensor.tensor_map import TensorMap
from tests.emulator.threads.lanes import Shape


def entry_of(name: str) -> Entry:
    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        raise AssertionError((runtime, schedule))

    return Entry("triton", name, "B200", run, template="triton_decode")


def proof_of(entry: Entry, number: int = 0, result: str = "unsupported", source: str = "") -> Proof:
    return Proof(entry.name, number, "k", source or entry.source, result, ("barrier", "tensor-map"))


def test_a_table_is_read_as_it_was_written_with_the_number_of_each_result(tmp_path: Path) -> None:
    first, second = entry_of("first"), entry_of("second")
    table = {
        "first": [proof_of(first), proof_of(first, 1, "race_free")],
        "second": [proof_of(second)],
    }
    path = tmp_path / "proofs.json"
    assert proofs.read(path) == {}
    proofs.write(table, path)
    assert proofs.read(path) == table
    assert '"results": {"race_free": 1, "unsupported": 2}' in path.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["proofs.json"]


def test_a_case_is_asked_again_if_its_source_is_another_or_there_was_no_answer() -> None:
    done, old, mute, new = (entry_of(name) for name in ("done", "old", "mute", "new"))
    table = {
        "done": [proof_of(done)],
        "old": [proof_of(old, source="of before")],
        "mute": [proof_of(mute), proof_of(mute, 1, NO_ANSWER)],
    }
    assert proofs.left((done, old, mute, new), table) == [old, mute, new]


def test_a_table_without_a_case_a_launch_or_of_another_source_is_outdated() -> None:
    cases = [entry_of("first"), entry_of("second")]
    table = {each.name: [proof_of(each), proof_of(each, 1)] for each in cases}
    assert proofs.outdated(table, cases) == []
    assert proofs.outdated({**table, "first": [proof_of(cases[0], source="x")]}, cases) == [
        "first: no answer of its source"
    ]
    assert proofs.outdated({"first": [proof_of(cases[0], 1)], "gone": []}, cases) == [
        "second: no answer of its source",
        "gone: no case",
        "first: a launch is missing, or there twice",
    ]


def test_the_committed_table_has_every_case_for_blackwell_with_its_source() -> None:
    cases = proofs.blackwell()
    assert {case.family for case in cases} == set(proofs.FAMILIES)
    assert {case.name for case in cases} == {
        name for name, case in entries().items() if case.gpu == "B200"
    }
    table = proofs.read()
    if not table:
        pytest.skip(f"there is no {proofs.TABLE.name} yet: python -m tests.emulator.suite.proofs")
    assert proofs.outdated(table, cases) == []


def test_equal_launches_are_proven_once() -> None:
    def launch(name: str, blocks: int) -> Launch:
        shape = Shape((blocks, 1, 1), (32, 1, 1))
        return Launch(name, shape, 0, 0.0, 0, 0, 0, (), frozenset(), "text")

    launches = [launch("a", 1), launch("b", 1), launch("a", 1), launch("a", 2)]
    listed = [(each.name, each.shape.grid[0]) for each in proofs.different(launches)]
    assert listed == [("a", 1), ("b", 1), ("a", 2)]


def answered(program: str, limit_s: float = 60.0) -> tuple[str, tuple[str, ...]]:
    report = proofs.answer([sys.executable, "-c", program], limit_s)
    return report["result"], proofs.reasons(report)


def test_answers_are_results_with_the_codes_of_diagnostics() -> None:
    report = (
        '{"result": "unsupported", "diagnostics": [{"code": "b"}, {"code": "a"}, {"code": "b"}]}'
    )
    assert answered(f"print({report!r})") == ("unsupported", ("a", "b"))


def test_silence_and_waiting_are_no_answer_with_a_reason() -> None:
    assert answered("raise SystemExit('out of memory')") == (NO_ANSWER, ("out of memory",))
    assert answered("import time; time.sleep(60)", 0.5) == (NO_ANSWER, ("not within 0.5 s",))


def lacking(*parts: tuple[str, int, int]) -> dict[str, Any]:
    wanted = [{"parameter": name, "offset": place, "bytes": size} for name, place, size in parts]
    return {
        "result": "unsupported",
        "diagnostics": [{"code": "value", "details": {"required_parameters": wanted}}],
    }


def test_values_that_an_answer_lacks_are_given_until_it_lacks_none(tmp_path: Path) -> None:
    """It asks for values of two parameters one after the other, and for one that there is not."""
    parameters = {"sizes": bytes(range(16)), "count": (70000).to_bytes(4, "little")}
    shape = Shape((2, 1, 1), (32, 1, 1))
    launch = Launch("k", shape, 512, 0.0, 0, 0, 0, (), frozenset(), "text", parameters=parameters)
    reports = [
        lacking(("sizes", 4, 2)),
        lacking(("sizes", 4, 2), *[("count", 0, 4)] * 2, ("other", 0, 4), ("sizes", 12, 8)),
        {"result": "race_free", "checks": {"synchronization": "passed", "memory": "passed"}},
    ]
    given: list[dict[str, Any]] = []

    def ask(command: Sequence[str]) -> dict[str, Any]:
        given.append(json.loads(Path(command[command.index("--input") + 1]).read_text()))
        return reports[len(given) - 1]

    entry = entry_of("first")
    proof = proofs.proof_of(entry, 3, launch, tmp_path, ask)
    assert proof == Proof(
        "first", 3, entry.kernel, entry.source, "race_free", (), "passed", "passed", 2, 0
    )
    first = {"parameter": "sizes", "offset": 4, "type": "u16", "value": 0x504}
    second = {"parameter": "count", "offset": 0, "type": "u32", "value": 70000}
    assert [each["arguments"] for each in given] == [[], [first], [first, second]]
    assert given[0]["launch"] == {
        "grid_dim": [2, 1, 1],
        "block_dim": [32, 1, 1],
        "cluster_dim": [1, 1, 1],
        "dynamic_shared_bytes": 512,
    }
    assert (tmp_path / "kernel.ptx").read_text() == "text"


def test_what_is_lacking_for_ever_is_unsupported(tmp_path: Path) -> None:
    launch = Launch("k", Shape((1, 1, 1), (32, 1, 1)), 0, 0.0, 0, 0, 0, (), frozenset(), "text")
    proof = proofs.proof_of(entry_of("first"), 0, launch, tmp_path, lambda _: lacking(("n", 0, 4)))
    assert (proof.result, proof.reasons, proof.scalars) == ("unsupported", ("value",), 0)


def test_a_launch_is_not_asked_about_for_ever(tmp_path: Path) -> None:
    parameters, asked = {"sizes": bytes(256)}, list[int]()
    shape = Shape((1, 1, 1), (32, 1, 1))
    launch = Launch("k", shape, 0, 0.0, 0, 0, 0, (), frozenset(), "text", parameters=parameters)

    def ask(_: Sequence[str]) -> dict[str, Any]:
        asked.append(0)
        return lacking(("sizes", len(asked), 1))

    proof = proofs.proof_of(entry_of("first"), 0, launch, tmp_path, ask)
    assert proof.result == "unsupported"
    assert 5 < len(asked) == proof.scalars < 20


def test_tensor_maps_among_parameters_are_given_by_tensor() -> None:
    def encoded(address: int, swizzle: int = 3, *, nan: bool = False) -> bytes:
        shape = (136, 104), (2, 272), (64, 32)
        return tensor_map.encoded(TensorMap(address, *shape, "bfloat16", swizzle, nan))

    end = 4096 + 103 * 272 + 136 * 2
    unknown = encoded(4096, swizzle=4), encoded(4096, nan=True)
    known = encoded(end - 16), encoded(4096), encoded(end + 103 * 272 + 256, 0), encoded(4096)
    data = b"".join((bytes(64), *known[:2], *unknown, *known[2:]))
    listed = proofs.descriptors({"count": bytes(4), "maps": data})
    keys = ("offset", "object", "base_byte_offset", "swizzle")
    assert [tuple(each[key] for key in keys) for each in listed] == [
        (64, "object0", end - 16 - 4096, "128B"),
        (192, "object0", 0, "128B"),
        (576, "object1", 0, "none"),
        (704, "object0", 0, "128B"),
    ]
    assert listed[0] == listed[0] | {
        "parameter": "maps",
        "element_type": "bf16",
        "interleave": "none",
        "rank": 2,
        "global_shape": [136, 104],
        "global_strides_bytes": [272],
        "box_shape": [64, 32],
        "element_strides": [1, 1],
    }
