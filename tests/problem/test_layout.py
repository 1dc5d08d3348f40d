"""Which operands are read where they lie, which are copied, and which no kernel takes. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.contract import (
    Accept,
    Contract,
    Copy,
    Extern,
    OperandVerdict,
    Recipe,
    roles,
    run_time,
)
from inductor_plugin.problem.layout import (
    fits,
    granularity,
    judge,
    judge_problem,
    laid,
    why_not_copied,
)
from inductor_plugin.problem.product import ROLES
from inductor_plugin.problem.target import target
from inductor_plugin.template import Contracted, Template
from inductor_plugin.templates import BUILTIN

ANY = Contract("A")
ROW = Contract("A", ("row",))
COLUMN = Contract("B", ("column",))
TMA = Contract("A", alignment=16, extent="measured", shared_batch=False, exact=True)
WIDE = Contract("A", alignment=16)
FREE = Contract("A", alignment=16, extent="free")
LOOSE = Contract("A", extent="free", shared_rows=True, exact=True)
BIAS = Contract("the bias", ("row",), preferred=16, broadcast=True)
DENSE = Contract("the scales", ("dense",))
OUT = Contract("the output", ("row",), copies=False)
AT_START = Contract("A", offset=False)
KNOWN = Contract("A", unknown=False)


def operand(
    size: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    dtype: str = "bfloat16",
    offset: int = 0,
    divisors: tuple[int, ...] = (),
    layout: str = "strided",
) -> Operand:
    strides = [1]
    for extent in reversed(size[1:]):
        strides.insert(0, strides[0] * extent)
    return Operand(
        size,
        stride or tuple(strides[: len(size)]),
        dtype,
        "cuda",
        offset,
        layout,
        divisors=divisors,
    )


CASES: dict[str, tuple[Contract, Operand, str, str]] = {
    # name: contract, operand, verdict, what its reason says
    "rows": (ANY, operand((64, 32)), "accept", "read where it lies"),
    "columns": (ANY, operand((64, 32), (1, 64)), "accept", "(1, 64)"),
    "a slice of longer rows": (ANY, operand((64, 32), (40, 1), offset=8), "accept", "(40, 1)"),
    "no unit stride": (ANY, operand((64, 32), (64, 2)), "copy", "A needs a unit stride"),
    "one column of many": (ANY, operand((64, 1), (7, 3)), "accept", ""),
    "one column, to the letter": (LOOSE, operand((64, 1), (7, 3)), "copy", "needs a unit stride"),
    "rows wanted, columns given": (ROW, operand((64, 32), (1, 64)), "copy", "must be row-major"),
    "columns wanted, rows given": (COLUMN, operand((64, 32)), "copy", "B must be column-major"),
    "columns wanted and given": (COLUMN, operand((64, 32), (1, 64)), "accept", ""),
    "an expanded row": (ANY, operand((64, 32), (0, 1)), "copy", "A is expanded"),
    "an expanded column": (ANY, operand((64, 32), (1, 0)), "copy", "A is expanded"),
    "an expanded row where rows may lie anywhere": (LOOSE, operand((64, 32), (0, 1)), "accept", ""),
    "overlapping rows": (ANY, operand((64, 32), (8, 1)), "copy", "the rows of A overlap"),
    "overlapping columns": (ANY, operand((64, 32), (1, 8)), "copy", "the rows of A overlap"),
    "overlapping rows where they may": (LOOSE, operand((64, 32), (8, 1)), "accept", ""),
    "one row with any stride": (ANY, operand((1, 32), (5, 1)), "accept", ""),
    "a batch": (ANY, operand((3, 64, 32)), "accept", ""),
    "a batch of one matrix": (ANY, operand((3, 64, 32), (0, 32, 1)), "accept", ""),
    "a batch of one matrix for TMA": (TMA, operand((3, 64, 32), (0, 32, 1)), "copy", "broadcast"),
    "a batch side by side": (ANY, operand((3, 64, 32), (32, 96, 1)), "accept", ""),
    "the batch innermost": (ANY, operand((3, 64, 32), (1, 96, 3)), "copy", "unit stride"),
    "aligned rows": (WIDE, operand((64, 32)), "accept", ""),
    "a base in the middle of 16 bytes": (WIDE, operand((64, 32), offset=4), "copy", "offset is 4"),
    "a base at 16 bytes": (WIDE, operand((64, 32), offset=8), "accept", ""),
    "rows of 33 elements": (WIDE, operand((64, 32), (33, 1)), "copy", "A's stride is 33 elements"),
    "rows of 33 bytes": (WIDE, operand((64, 32), (48, 1), "int8"), "accept", ""),
    "an odd extent": (WIDE, operand((64, 31), (32, 1)), "copy", "inner extent is 31 elements"),
    "two odd extents": (WIDE, operand((63, 31), (32, 1)), "extern", "inner extent is 31 elements"),
    "an odd extent that does not count": (FREE, operand((64, 31), (32, 1)), "accept", ""),
    "odd rows whose extent does not count": (FREE, operand((64, 31)), "copy", "stride is 31"),
    "an odd extent whose columns are even": (WIDE, operand((64, 31)), "copy", "A's stride is 31"),
    "an odd batch stride": (TMA, operand((3, 64, 32), (2052, 32, 1)), "copy", "batch stride is"),
    "an offset": (AT_START, operand((64, 32), offset=64), "copy", "begins at element 64"),
    "a stride of run time": (
        WIDE,
        operand((64, 32), (4096, 1), divisors=(1, 1, 16)),
        "copy",
        "stride is some multiple of 1 elements",
    ),
    "a stride of run time, proven": (
        WIDE,
        operand((64, 32), (4096, 1), divisors=(8, 1, 16)),
        "accept",
        "",
    ),
    "an offset of run time": (
        WIDE,
        operand((64, 32), divisors=(16, 1, 1)),
        "copy",
        "offset is some multiple of 1",
    ),
    "strides that have to be known": (
        KNOWN,
        operand((64, 32), divisors=(16, 1, 16)),
        "copy",
        "known only at run time",
    ),
    "packed by a library": (ANY, operand((64, 32), layout="mkldnn"), "extern", "mkldnn"),
    "an output by columns": (OUT, operand((64, 32), (1, 64)), "extern", "must be row-major"),
    "an output by rows": (OUT, operand((64, 32), (40, 1)), "accept", ""),
    "an output whose rows overlap": (OUT, operand((64, 32), (8, 1)), "extern", "overlap"),
    "a bias of a row": (BIAS, operand((128,)), "accept", ""),
    "a row expanded along m": (BIAS, operand((64, 128), (0, 1)), "accept", ""),
    "a column expanded along n": (BIAS, operand((64, 128), (1, 0)), "accept", ""),
    "a full bias": (BIAS, operand((64, 128)), "accept", ""),
    "every other number of a bias": (BIAS, operand((128,), (2,)), "copy", "contiguous along n"),
    "a transposed bias": (BIAS, operand((64, 128), (1, 64)), "copy", "contiguous along n"),
    "a strided column": (BIAS, operand((64, 128), (3, 0)), "copy", "a column of bias"),
    "a strided column of one number each": (BIAS, operand((64, 1), (3, 1)), "accept", ""),
    "one number for all": (BIAS, operand((64, 128), (0, 0)), "copy", "one number for all"),
    "one number for one": (BIAS, operand((1, 1), (5, 7)), "accept", ""),
    "a bias whose rows overlap": (BIAS, operand((64, 128), (8, 1)), "copy", "overlap"),
    "a bias for each of a batch": (BIAS, operand((3, 64, 128), (128, 0, 1)), "accept", ""),
    "dense scales": (DENSE, operand((64, 1), (1, 1), "float32"), "accept", ""),
    "scales with gaps": (DENSE, operand((64, 1), (2, 1), "float32"), "copy", "must be contiguous"),
    "a packed weight by other strides": (
        DENSE,
        operand((4, 8, 32, 4), (4, 16, 128, 1)),
        "copy",
        "must be contiguous",
    ),
}


def kind(verdict: OperandVerdict) -> str:
    return {Accept: "accept", Copy: "copy", Extern: "extern"}[type(verdict)]


@pytest.mark.parametrize("name", CASES)
def test_an_operand_is_judged_by_its_strides(name: str) -> None:
    contract, described, wanted, said = CASES[name]
    verdict = judge(contract, described)
    assert kind(verdict) == wanted, verdict.reason
    assert said in verdict.reason
    if wanted != "accept" and described.layout == "strided":  # the values are in it
        assert any(
            str(n) in verdict.reason
            for n in (*described.stride, *described.size, described.offset, "run")
        )


def test_there_are_forty_cases_and_each_verdict_among_them() -> None:
    assert len(CASES) >= 40
    assert {wanted for _, _, wanted, _ in CASES.values()} == {"accept", "copy", "extern"}


@pytest.mark.parametrize(
    "name", [name for name, (_, _, wanted, _) in CASES.items() if wanted == "copy"]
)
def test_a_copy_is_accepted_where_the_operand_was_not(name: str) -> None:
    contract, described, _, _ = CASES[name]
    verdict = judge(contract, described)
    assert isinstance(verdict, Copy)
    there = replace(described, stride=verdict.stride, offset=0, divisors=())
    assert kind(judge(contract, there)) == "accept"


@pytest.mark.parametrize(
    ("contract", "tensor", "stride", "moved"),
    [
        # 64 x 32 bfloat16, read and written
        (ANY, operand((64, 32), (64, 2)), (32, 1), 8192),
        # what is expanded is read once
        (ANY, operand((64, 32), (0, 1)), (32, 1), 64 + 4096),
        # by the order it has
        (WIDE, operand((64, 32), (1, 65)), (1, 64), 8192),
        # padded to the next 8 elements: 64 rows of 40 are written
        (FREE, operand((64, 33)), (40, 1), 64 * 33 * 2 + 64 * 40 * 2),
        # 16 one-byte elements
        (FREE, operand((64, 33), None, "int8"), (48, 1), 64 * 33 + 64 * 48),
        # rows are odd, columns of the same matrix are not
        (WIDE, operand((64, 31)), (1, 64), 2 * 64 * 31 * 2),
        # a matrix for all of a batch stays one
        (ANY, operand((3, 64, 32), (0, 64, 2)), (0, 32, 1), 8192),
        # one number becomes a row for all of D
        (BIAS, operand((64, 128), (0, 0)), (0, 1), 2 + 256),
        (BIAS, operand((64, 128), (3, 0)), (1, 0), 256),
        (TMA, operand((3, 64, 32), (0, 32, 1)), (2048, 32, 1), 4096 + 3 * 4096),
    ],
)
def test_a_copy_tells_its_layout_and_its_bytes(
    contract: Contract, tensor: Operand, stride: tuple[int, ...], moved: int
) -> None:
    verdict = judge(contract, tensor)
    assert isinstance(verdict, Copy)
    assert (verdict.stride, verdict.bytes) == (stride, moved)


def test_an_extent_of_run_time_is_not_proven_and_no_copy_mends_it() -> None:
    tensor = operand((64, 32))
    assert kind(judge(WIDE, tensor, frozenset({0}))) == "accept"
    verdict = judge(WIDE, tensor, frozenset({0, 1}))
    assert isinstance(verdict, Extern)
    assert "nor could a copy be read" in verdict.reason
    # rows whose length is known, by columns of which nothing is: a copy lies by rows
    turned = judge(WIDE, operand((64, 32), (1, 64)), frozenset({0}))
    assert isinstance(turned, Copy)
    assert turned.recipe.order == "row"


def test_the_fast_kernels_ask_for_more() -> None:
    contract = Contract("A", preferred=16)
    odd = operand((64, 32), (33, 1))
    assert kind(judge(contract, odd)) == "accept"
    assert kind(judge(contract, odd, preferred=True)) == "copy"
    assert kind(judge(contract, operand((64, 32)), preferred=True)) == "accept"


def test_a_recipe_is_kept_for_other_sizes() -> None:
    padded = Recipe("row", 16)
    assert padded.strides((64, 33), 2) == (40, 1)
    assert padded.strides((3, 64, 33), 2) == (64 * 40, 40, 1)
    assert Recipe("column", 16).strides((33, 64), 4) == (1, 36)
    assert Recipe("row", 1, (0,)).strides((3, 64, 33), 2) == (0, 33, 1)
    assert padded.strides((7,), 4) == (1,)


def test_the_granularity_is_what_divides_all_rows() -> None:
    assert granularity(operand((64, 32)), "row") == 8
    assert granularity(operand((64, 32), (34, 1)), "row") == 2
    assert granularity(operand((64, 32), None, "float32"), "row") == 4
    assert granularity(operand((64, 32)), "row", frozenset({1})) == 1
    assert granularity(operand((64, 32)), "row", frozenset({0})) == 8
    assert granularity(operand((2, 64, 32), (2052, 32, 1)), "row") == 4


def test_an_order_is_told_by_the_strides() -> None:
    assert fits(operand((64, 1), (1, 1)), "row")
    assert fits(operand((64, 1), (1, 1)), "column")
    assert fits(operand((64, 1), (1, 5)), "row")
    assert not fits(operand((64, 1), (1, 5)), "row", exact=True)
    assert not fits(operand((64,)), "column")
    assert fits(operand((4, 1, 8), (8, 99, 1)), "dense")
    assert not fits(operand((4, 2, 8), (8, 99, 1)), "dense")


CONTRACTS = {"a": WIDE, "b": WIDE, "c": BIAS, "d": OUT}


def product(a: Operand, b: Operand, *bias: Operand, op: str = "mm", **facts: object) -> Problem:
    out = operand((a.size[-2], b.size[-1]))
    return replace(Problem(op, (*bias, a, b), out), **facts)


def test_a_problem_is_as_bad_as_its_worst_operand() -> None:
    fine, odd = operand((64, 32)), operand((64, 32), (33, 1))
    b, transposed = operand((32, 128)), operand((32, 128), (1, 40))
    assert judge_problem(CONTRACTS, product(fine, b)).kind == "accept"
    assert judge_problem(CONTRACTS, product(fine, b)).refusal is None
    verdict = judge_problem(CONTRACTS, product(odd, transposed))
    assert (verdict.kind, verdict.copied_bytes, [*verdict.copies]) == ("copy", 8192, [0])
    assert verdict.refusal == f"{verdict.reasons[0]} (a copy moves 8192 bytes)"
    both = judge_problem(CONTRACTS, product(odd, operand((32, 128), (129, 1))))
    assert (both.copied_bytes, [*both.copies]) == (8192 + 4 * 32 * 128, [0, 1])
    assert len(both.reasons) == 2
    bad = replace(product(odd, b), output=operand((64, 128), (1, 64)))
    worst = judge_problem(CONTRACTS, bad)
    assert worst.kind == "extern"
    # what cannot be mended is said first, and nothing is left out
    assert [reason[:5] for reason in worst.reasons] == ["the o", "A's s"]


def test_a_problem_behind_its_copies_is_accepted() -> None:
    bias = operand((64, 128), (0, 0))
    described = product(operand((64, 32), (33, 1)), operand((32, 128), offset=1), bias, op="addmm")
    verdict = judge_problem(CONTRACTS, described)
    assert [*verdict.copies] == [0, 1, 2]
    there = laid(described, verdict)
    assert [tensor.stride for tensor in there.inputs] == [(0, 1), (32, 1), (128, 1)]
    assert [tensor.offset for tensor in there.inputs] == [0, 0, 0]
    assert judge_problem(CONTRACTS, there).kind == "accept"


def test_a_copy_of_what_is_known_at_run_time_proves_its_steps() -> None:
    a = operand((300, 128), (4096, 1), divisors=(1, 1, 16))
    described = product(a, operand((128, 256)), dynamic=(SizeClass(0, 0, 257, 512, 300),))
    there = laid(described, judge_problem(CONTRACTS, described)).inputs[0]
    assert there.divisors == (8, 1, 16)
    assert granularity(there, "row", frozenset({0})) == 8


def test_operands_have_roles() -> None:
    a, b, c = operand((64, 32)), operand((32, 128)), operand((128,))
    assert roles(product(a, b)) == ("a", "b", "d")
    added = product(a, b, c, op="addmm")
    assert roles(added) == ("c", "a", "b", "d")
    # a bias times zero is not read
    assert roles(replace(added, arguments=(("beta", "0"),))) == ("", "a", "b", "d")
    assert roles(replace(added, arguments=(("beta", "s0"),)))[0] == "c"
    assert roles(replace(added, op="convolution")) == ("", "", "", "d")


def test_the_outputs_extents_are_those_of_its_factors() -> None:
    a, b, c = operand((64, 32)), operand((32, 128)), operand((128,))

    def of(op: str, *classes: tuple[int, int], bias: bool = False) -> frozenset[int]:
        dynamic = tuple(SizeClass(i, dim, 33, 64, 64) for i, dim in classes)
        changed = replace(product(a, b, *((c,) if bias else ()), op=op), dynamic=dynamic)
        return run_time(changed, len(changed.inputs))

    assert of("mm", (0, 0)) == {0}
    assert of("mm", (0, 1), (1, 0)) == frozenset()
    assert of("mm", (1, 1)) == {1}
    assert of("addmm", (1, 0), (2, 1), bias=True) == {0, 1}
    assert of("convolution", (0, 0)) == frozenset()
    dynamic = (SizeClass(0, 0, 33, 64, 64), SizeClass(1, 1, 33, 64, 64))
    changed = replace(product(a, b), dynamic=dynamic)
    assert [run_time(changed, index) for index in range(3)] == [{0}, {1}, {0, 1}]


def test_copies_that_take_longer_than_they_can_save_are_not_offered() -> None:
    large = product(operand((4096, 4096), (4097, 1)), operand((4096, 4096)))
    few = product(operand((16, 4096)), operand((4096, 4096), (4097, 1)))
    on = target("H100")
    for changed, why in ((large, None), (few, "the call itself")):
        changed = replace(changed, target=on)
        verdict = judge_problem(CONTRACTS, changed)
        reason = why_not_copied(changed, verdict)
        assert (reason is None) if why is None else (why in str(reason))
    for figures in (None, replace(on, memory_bandwidth=0.0)):
        bare = replace(few, target=figures)
        assert why_not_copied(large, judge_problem(CONTRACTS, large)) is None
        assert "too much for" in str(why_not_copied(bare, judge_problem(CONTRACTS, bare)))


def test_templates_of_products_declare_their_contracts() -> None:
    def declared_by(template: Template) -> set[str]:
        if not isinstance(template, Contracted):
            return set()
        return {role for op in template.ops for role in template.contract(op)}

    declared = {template.name: declared_by(template) for template in BUILTIN}
    assert declared["cutlass"] == {"a", "b", "c", "d", "scale_a", "scale_b", "offsets"}
    assert {name for name, of in declared.items() if of == {"a", "b"}} == {
        "triton_persistent_tma",
        "triton_decode",
        "triton_split_k",
        "triton_fp8",
    }
    assert declared["triton_int4"] == {"b", "scales"}
    known = {role for names in ROLES.values() for role in names} | {"d"}
    assert all(of <= known for of in declared.values())


def test_a_number_without_dimensions_breaks_no_contract() -> None:
    """Scales of a tensor-wise product are such numbers."""
    number = Operand((), (), "float32", "cuda")
    judged = 0
    for template in BUILTIN:
        if not isinstance(template, Contracted):
            continue
        for contract in (c for op in template.ops for c in template.contract(op).values()):
            judged += 1
            verdict = judge(contract, number)
            assert not isinstance(verdict, Copy), f"{template.name}: {verdict}"
            if contract.orders == ("dense",):
                assert isinstance(verdict, Accept), f"{template.name}: {verdict}"
    assert judged > 10
