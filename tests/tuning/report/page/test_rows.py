from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Record
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import dump
from inductor_plugin.problem.product import ROLES
from inductor_plugin.tuning.pins.pin import Pin, pin_of_record
from inductor_plugin.tuning.report.page.candidates import CANDIDATE, Detail, detail_of, in_page
from inductor_plugin.tuning.report.page.rows import (
    NOISY,
    PINNED,
    RECORD,
    STAYS,
    Tables,
    pin_row,
    record_row,
)
from inductor_plugin.tuning.report.page.work import peak_of
from tests.support.cache.measured_gpu import H100, gpu_records
from tests.support.cache.records import decision, measured, record

EVERYTHING = Detail()


def row_of(record_: Record, detail: Detail = EVERYTHING) -> tuple[dict[str, Any], Tables]:
    tables = Tables.empty()
    return dict(zip(RECORD, record_row(record_, 0, tables, {}, detail), strict=True)), tables


def candidate(row: dict[str, Any], place: int) -> dict[str, Any]:
    return dict(zip(CANDIDATE, row["candidates"][place], strict=True))


def test_a_row_names_what_runs_and_what_it_was_compared_with() -> None:
    chosen = replace(decision("fast"), library="slow", speedup=2.0)
    row, tables = row_of(record(measured("slow", 2.0), measured("fast", 1.0), decision=chosen))
    assert (row["winner"], row["library"], row["gain"], row["flags"]) == (0, 1, 2, 0)
    texts = tables.texts.values
    assert texts[row["why"]] == "fastest"
    assert texts[tables.forms.forms.values[candidate(row, 0)["form"]][0]] == "fast"


def test_where_the_library_kernel_stays_nothing_is_gained() -> None:
    chosen = replace(decision("lib"), library="lib", speedup=0.9)
    row, _ = row_of(record(measured("lib"), decision=chosen, pinned=True))
    assert (row["gain"], row["flags"]) == (1, STAYS | PINNED)


def test_a_noisy_comparison_is_marked() -> None:
    row, _ = row_of(record(measured("fast", spread_ms=9.0), decision=decision("fast")))
    assert row["flags"] == NOISY


def test_a_winner_at_fault_is_no_decision() -> None:
    row, tables = row_of(
        record(measured("bad", None, status="wrong"), measured("good"), decision=decision("bad"))
    )
    assert (row["winner"], row["gain"]) == (-1, None)
    assert tables.texts.values[row["why"]] == "nothing is decided"


def test_what_runs_alone_is_named_though_nothing_was_compared() -> None:
    """A call that one kernel can do has a decision, and no candidate."""
    row, tables = row_of(record(decision=replace(decision("mm"), library=None, candidates=0)))
    assert (row["winner"], row["candidates"]) == (-1, [])
    assert tables.texts.values[row["only"]] == "mm"
    assert row_of(record(measured("a"), decision=decision("a")))[0]["only"] == -1
    assert row_of(record())[0]["only"] == -1


def test_samples_are_thousandths_of_the_median() -> None:
    times = (0.9, 0.95, 1.0, 1.1, 1.5)
    row, _ = row_of(record(measured("a", 1.0, samples_ms=times)))
    known = candidate(row, 0)
    assert [known[n] for n in ("low", "q1", "q3", "high")] == [-100, -50, 100, 500]
    assert known["each"] == [-100, -50, 0, 100, 500]
    assert candidate(row_of(record(measured("a")), Detail(samples=False))[0], 0)["each"] == 0


def test_the_fastest_come_first_and_failures_last() -> None:
    rows = in_page(
        record(measured("bad", None, status="hung"), measured("slow", 3.0), measured("fast", 1.0)),
        EVERYTHING,
    )
    assert [each.candidate for each in rows] == ["fast", "slow", "bad"]


def test_of_many_candidates_those_compared_and_those_that_failed_stay() -> None:
    names = [measured(f"c{index:02}", 1.0 + index) for index in range(30)]
    failed = measured("failed", None, status="raised")
    chosen = replace(decision("c00"), library="c29")
    every = record(*names, failed, decision=chosen)
    kept = [each.candidate for each in in_page(every, Detail(every=False))]
    assert kept == [*(f"c{index:02}" for index in range(10)), "c29", "failed"]
    assert row_of(every, Detail(every=False))[0]["total"] == 31


def test_the_page_has_less_of_each_candidate_the_more_there_are() -> None:
    few = list(gpu_records(3))
    assert detail_of(few) == Detail(every=True, samples=True)
    assert detail_of(few * 250) == Detail(every=True, samples=False)
    assert detail_of(few * 2500) == Detail(every=False, samples=False)


def test_a_gpu_record_has_its_place_under_the_roof_and_its_call() -> None:
    recorded = next(gpu_records(1))
    tables, peak = Tables.empty(), peak_of(H100)
    assert peak is not None
    row = record_row(recorded, 0, tables, {recorded.environment: peak}, EVERYTHING)
    known = dict(zip(RECORD, row, strict=True))
    assert known["flops"] > 0
    assert known["bytes"] > 0
    assert 0 < known["bound"] < candidate(known, known["winner"])["median"]
    texts: list[str] = tables.texts.values
    assert texts[known["call"]] == "torch.mm(a, b)"
    first = texts[int(known["operands"])]
    assert first.startswith("a\tbfloat16\t")


@pytest.mark.parametrize("problem", [{}, {"op": "mm", "inputs": "x"}, {"inputs": [None]}])
def test_a_record_that_names_no_operands_has_no_call(problem: dict[str, Any]) -> None:
    row, tables = row_of(replace(record(measured("a")), problem=problem))
    call = tables.texts.values[int(row["call"])]
    assert call.startswith("#")


def test_characters_that_turn_writing_around_are_shown_by_their_codes() -> None:
    name = "harmless\u202egnp.exe\x1b[2J"
    _, tables = row_of(record(measured(name, reason=name)))
    shown = "\n".join(tables.texts.values)
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "\\u202egnp.exe\\x1b[2J" in shown


def test_a_pin_is_a_row_with_two_candidates() -> None:
    pin = Pin("e", "mm", "d" * 64, "mm(1x2)", "w", "template", 1.0, 24, "lib", 1.5, "faster")
    known = dict(zip(RECORD, pin_row(pin, 1, Tables.empty(), {}), strict=True))
    assert (known["winner"], known["library"], known["gain"]) == (0, 1, 1.5)
    assert [candidate(known, place)["median"] for place in (0, 1)] == [1, 1.5]
    alone = pin_row(replace(pin, winner="lib"), 1, Tables.empty(), {})
    assert dict(zip(RECORD, alone, strict=True))["gain"] == 1


def test_a_pin_that_names_its_problem_has_the_work_and_the_call_of_its_record() -> None:
    recorded = next(gpu_records(1))
    pin = pin_of_record(recorded)
    peak = peak_of(H100)
    assert pin is not None
    assert peak is not None
    peaks = {recorded.environment: peak}
    tables = Tables.empty()
    expected = dict(zip(RECORD, record_row(recorded, 0, tables, peaks, EVERYTHING), strict=True))
    named = replace(pin, fields=recorded.problem)
    known = dict(zip(RECORD, pin_row(named, 0, tables, peaks), strict=True))
    same = ("flops", "bytes", "bound", "dtype", "call", "operands")
    assert [known[name] for name in same] == [expected[name] for name in same]
    assert known["flops"] > 0
    assert known["bound"] > 0
    # That of a library kernel has no fields.
    bare = dict(zip(RECORD, pin_row(pin, 0, tables, peaks), strict=True))
    assert [bare[name] for name in same[:4]] == [0, 0, 0, -1]
    assert tables.texts.values[int(bare["call"])] == ""


@pytest.mark.parametrize(
    "fields",
    [{"schema": 2}, {"schema": 2, "op": "mm", "epilogue": "", "inputs": 3}, {"op": "mm"}],
)
def test_a_pin_with_fields_that_are_no_problem_has_no_work(fields: dict[str, Any]) -> None:
    pin = Pin("e", "mm", "d" * 64, "mm(1x2)", "w", "template", 1.0, fields=fields)
    known = dict(zip(RECORD, pin_row(pin, 1, Tables.empty(), {}), strict=True))
    assert (known["flops"], known["dtype"]) == (0, -1)


@pytest.mark.parametrize("extent", [2**63, 10**400])
def test_a_record_with_extents_that_no_tensor_has_is_a_row(extent: int) -> None:
    known = next(gpu_records(1))
    output = {**known.problem["output"], "size": [extent, extent]}
    for odd in (
        replace(known, describe=f"mm({extent}x2, 2x2)"),
        replace(known, problem={**known.problem, "output": output}),
    ):
        row, _ = row_of(odd)
        json.dumps(row, allow_nan=False)
    assert row_of(replace(known, describe=f"mm({extent}x2, 2x2)"))[0]["flops"] == 0


def test_a_pin_without_a_library_kernel_has_one_candidate_and_no_gain() -> None:
    pin = Pin("e", "mm", "d" * 64, "mm(1x2)", "w", "template", 1.0, 24)
    known = dict(zip(RECORD, pin_row(pin, 1, Tables.empty(), {}), strict=True))
    assert (known["winner"], known["library"], known["gain"]) == (0, -1, None)
    assert (known["total"], len(known["candidates"])) == (1, 1)


def test_a_graph_is_no_call() -> None:
    row, tables = row_of(record(measured("given up"), op="graph"))
    assert tables.texts.values[row["call"]] == ""


def test_the_call_of_a_fused_product_has_the_operands_of_the_product_alone() -> None:
    known = next(gpu_records(1))
    inputs = [*known.problem["inputs"], known.problem["output"]]
    fused = {**known.problem, "inputs": inputs, "epilogue": "add.relu-0123"}
    rows, columns = (n for n in known.problem["output"]["size"])
    describe = known.describe.replace(")", f", {rows}x{columns}) + add.relu", 1)
    row, tables = row_of(replace(known, problem=fused, describe=describe))
    texts: list[str] = tables.texts.values
    assert texts[int(row["call"])] == "torch.mm(a, b)  # then add.relu"
    assert [line.split("\t")[0] for line in texts[int(row["operands"])].splitlines()] == [
        "a",
        "b",
        "input 2",
    ]


def tensor(*size: int) -> Operand:
    return Operand(size, (*size[1:], 1) if size else (), "bfloat16", "cuda")


def multiplied(op: str, *more: Operand, reads: int, kept: bool = True) -> tuple[str, list[str]]:
    """Return the call of a record with an epilogue that multiplies, and the names of its operands."""
    by_role = {"a": tensor(4, 8), "b": tensor(8, 16), "c": tensor(16)}
    inputs = [by_role.get(role, tensor()) for role in ROLES[op] if (op, role) != ("scaled_mm", "c")]
    write = Access("full", "bfloat16", 64, (16, 1))
    read = tuple(Access("full", "bfloat16", 64, (16, 1), buffer=f"r{i}") for i in range(reads))
    steps = (Step("product"), Step("relu", (0,)), Step("store", (1,), 0))
    epilogue = Epilogue((4, 16), "bfloat16", steps, read, (write,))
    problem = Problem(op, (*inputs, *more), tensor(4, 16), epilogue=epilogue.signature)
    fused = replace(
        record(measured("a"), op=op),
        problem=problem.fields(),
        describe=problem.describe(),
        epilogue=dump(epilogue, [(4, 16)]) if kept else {},
    )
    row, tables = row_of(fused)
    texts: list[str] = tables.texts.values
    lines = texts[int(row["operands"])].splitlines()
    return texts[int(row["call"])], [line.split("\t")[0] for line in lines]


SCALED = "torch._scaled_mm(a, b, scale_a, scale_b, {}, None, torch.bfloat16, False)  # then relu"


def test_what_an_epilogue_reads_is_no_bias_of_a_scaled_product() -> None:
    names, gate = ["a", "b", "scale_a", "scale_b"], tensor(16)
    assert multiplied("scaled_mm", gate, reads=1) == (SCALED.format("None"), [*names, "input 4"])
    assert multiplied("scaled_mm", gate, reads=0) == (SCALED.format("bias"), [*names, "bias"])
    both = multiplied("scaled_mm", gate, gate, reads=1)
    assert both == (SCALED.format("bias"), [*names, "bias", "input 5"])
    assert multiplied("scaled_mm", reads=0, kept=False)[0] == SCALED.format("None")
    unknown, _ = multiplied("scaled_mm", gate, reads=1, kept=False)
    assert unknown == "# its record does not keep which operands its epilogue reads"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("op", ["mm", "bmm", "int_mm", "addmm", "baddbmm"])
def test_the_call_of_a_product_has_none_of_its_epilogues_operands(op: str, *, kept: bool) -> None:
    own = ["bias" if role == "c" else role for role in ROLES[op]]
    call, names = multiplied(op, tensor(4, 16), reads=1, kept=kept)
    assert call.endswith("  # then relu")
    assert names == [*own, f"input {len(own)}"]
