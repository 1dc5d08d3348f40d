from __future__ import annotations

import dataclasses
import json

import pytest

from inductor_plugin.cache import digest_of
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.definition import PROBLEM_SCHEMA, problem_in, size_class

A = Operand((100, 64), (64, 1), "float32", "cpu")
B = Operand((64, 32), (32, 1), "float32", "cpu")
C = Operand((100, 32), (32, 1), "float32", "cpu")
STATIC = Problem("mm", (A, B), C)


def dynamic(rows: int) -> Problem:
    low, high = size_class(rows)
    a = dataclasses.replace(A, size=(rows, 64))
    c = dataclasses.replace(C, size=(rows, 32))
    return Problem("mm", (a, B), c, dynamic=(SizeClass(0, 0, low, high, rows),))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, (1, 1)), (16, (16, 16)), (17, (17, 32)), (32, (17, 32)), (33, (33, 64)), (64, (33, 64))],
)
def test_a_size_class_reaches_from_one_power_of_two_to_the_next(
    size: int, expected: tuple[int, int]
):
    assert size_class(size) == expected


def test_each_size_is_in_its_own_class_and_in_no_other():
    for size in range(1, 300):
        low, high = size_class(size)
        assert low <= size <= high
        assert size_class(low) == size_class(high) == (low, high)


def test_fields_are_plain_json_with_a_schema_number():
    plain = json.loads(json.dumps(STATIC.fields()))
    assert plain["schema"] == PROBLEM_SCHEMA
    assert plain["inputs"][0]["size"] == [100, 64]


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(STATIC, op="bmm"),
        dataclasses.replace(STATIC, inputs=(B, A)),
        dataclasses.replace(STATIC, inputs=(dataclasses.replace(A, stride=(1, 100)), B)),
        dataclasses.replace(STATIC, inputs=(dataclasses.replace(A, dtype="bfloat16"), B)),
        dataclasses.replace(STATIC, inputs=(dataclasses.replace(A, offset=4), B)),
        dataclasses.replace(STATIC, inputs=(A, dataclasses.replace(B, constant=True))),
        dataclasses.replace(STATIC, inputs=(A, dataclasses.replace(B, layout="mkldnn"))),
        dataclasses.replace(STATIC, inputs=(dataclasses.replace(A, divisors=(1, 1, 16)), B)),
        dataclasses.replace(STATIC, output=dataclasses.replace(C, dtype="bfloat16")),
        dataclasses.replace(STATIC, arguments=(("alpha", "2"),)),
        dataclasses.replace(STATIC, epilogue="relu"),
        dynamic(100),
    ],
)
def test_every_fact_tells_problems_apart(other: Problem):
    assert other.fields() != STATIC.fields()


def test_what_is_known_throughout_costs_the_key_nothing():
    # A record of a static problem made before divisors were stated is found after.
    names = {"size", "stride", "dtype", "device", "offset", "layout", "constant"}
    plain = STATIC.fields()
    assert [set(operand) for operand in (*plain["inputs"], plain["output"])] == [names] * 3


PACKED = Operand((), (), "float32", "cpu", layout="mkldnn", constant=True)
ON_GPU = [dataclasses.replace(each, device="cuda", dtype="bfloat16") for each in (A, B, C)]
BIAS = dataclasses.replace(ON_GPU[2], stride=(0, 1))
UNALIGNED = dataclasses.replace(ON_GPU[0], offset=64, divisors=(16, 1, 1))


@pytest.mark.parametrize(
    ("problem", "digest"),
    [
        (STATIC, "27b620d877cbba5702bb62e7a85d82488237f42be85ac5feb162908f5096c5a9"),
        (
            Problem(
                "packed_linear",
                (A, PACKED, dataclasses.replace(B, constant=True)),
                C,
                (("B", "None"), ("batch_size", "100")),
            ),
            "b9906f08001481aa43c8b69cc40919314170561591f269bda593cee4398baffe",
        ),
        (
            Problem(
                "addmm",
                (BIAS, UNALIGNED, ON_GPU[1]),
                ON_GPU[2],
                (("alpha", "1"), ("beta", "1")),
                "add.relu-0123456789ab",
            ),
            "b3e8c6e217354187c50ff01053c8b7f5e75d5c4dff964244df4b7347e3b56ee4",
        ),
    ],
    ids=["product", "packed", "fused"],
)
def test_the_key_is_that_of_records_of_version_0_1(problem: Problem, digest: str):
    """The digests are those that commit 53e12c1 computes: with others, all records of these problems are unknown."""
    assert digest_of(problem.fields()) == digest


def test_a_divisor_is_the_number_itself_where_it_is_known():
    known = dataclasses.replace(A, offset=24)
    assert (known.stride_divisor(0), known.stride_divisor(-1), known.offset_divisor) == (64, 1, 24)
    unknown = dataclasses.replace(known, divisors=(2, 1, 4))
    assert (unknown.stride_divisor(-2), unknown.stride_divisor(1)) == (2, 1)
    assert unknown.offset_divisor == 4


def test_sizes_of_one_class_are_one_problem():
    assert dynamic(70).fields() == dynamic(128).fields()
    assert dynamic(128).fields() != dynamic(129).fields()


def test_a_known_stride_is_kept_in_a_dynamic_problem():
    problem = dynamic(70)
    wider = dataclasses.replace(problem.inputs[0], stride=(4097, 1))
    assert dataclasses.replace(problem, inputs=(wider, B)).fields() != problem.fields()
    assert problem.fields()["inputs"][0]["stride"] == [64, 1]


def test_how_many_operands_an_epilogue_reads_is_no_part_of_the_identity():
    fused = dataclasses.replace(STATIC, epilogue="relu-1")
    known = dataclasses.replace(fused, epilogue_reads=0)
    assert (known, hash(known), known.fields()) == (fused, hash(fused), fused.fields())
    assert "epilogue_reads" not in known.fields()


def test_a_stride_that_depends_on_the_sizes_is_known_by_its_rank():
    def batched(rows: int) -> Problem:
        problem = dynamic(rows)
        a = dataclasses.replace(A, size=(3, rows, 64), stride=(64 * rows, 64, 1), symbolic=(0,))
        return dataclasses.replace(
            problem, inputs=(a, B), dynamic=(SizeClass(0, 1, 65, 128, rows),)
        )

    assert batched(70).fields() == batched(128).fields()
    assert batched(70).fields()["inputs"][0]["stride"] == ["rank1", 64, 1]
    assert "symbolic" not in batched(70).fields()["inputs"][0]


def test_the_description_is_that_of_the_autotune_table():
    assert STATIC.describe() == "mm(100x64, 64x32)"
    scalar = Operand((), (), "float32", "cpu")
    assert Problem("add", (scalar,), scalar).describe() == "add(scalar)"


def test_a_problem_is_read_from_its_fields_unless_they_are_another_s():
    scaled = dataclasses.replace(STATIC, arguments=(("alpha", "0.5"),), epilogue="relu-1")
    fields = json.loads(json.dumps(scaled.fields()))
    assert problem_in(fields) == scaled
    assert problem_in({**fields, "schema": -1}) is None
    assert problem_in({}) is None
    assert problem_in({name: fields[name] for name in fields if name != "output"}) is None
    assert problem_in(json.loads(json.dumps(dynamic(100).fields()))) is None
