"""Registers an epilogue needs: values across library calls, across columns and across stores; what is prefetched."""

from __future__ import annotations

import pytest

from inductor_plugin.cost.liveness import asked_ahead, live_values, longest_chain
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from tests.support.graphs.chains import M, N, access, epilogue, gelu


def steps_of(*steps: Step, reads: tuple[Access, ...] = (), outputs: int = 1) -> Epilogue:
    """Return an epilogue of these steps, the first of which is the product."""
    return Epilogue((M, N), "bfloat16", (Step("product"), *steps), reads, (access(),) * outputs)


def stored_after(*operations: str, reads: tuple[Access, ...] = ()) -> Epilogue:
    """Return an epilogue that stores the product, and what each operation makes of it."""
    steps = [Step("store", (0,), 0)]
    for index, operation in enumerate(operations, start=1):
        steps += [Step(operation, (0,)), Step("store", (len(steps) + 1,), index)]
    return steps_of(*steps, reads=reads, outputs=1 + len(operations))


def test_a_chain_computed_element_by_element_keeps_nothing() -> None:
    assert live_values(epilogue("relu", "neg", "exp")) == 0.0
    assert live_values(epilogue(reads=(access("row"), access()))) == 0.0


def test_a_value_used_after_a_library_function_waits_in_a_register() -> None:
    assert live_values(epilogue("erf")) == 1.0  # the function's own
    assert live_values(gelu()) == 2.0
    assert live_values(epilogue("pow")) == 2.25
    assert live_values(epilogue("erf"), chained=True) == 1.0


def test_operands_and_further_outputs_are_live_across_a_library_function() -> None:
    assert live_values(epilogue("erf", reads=(access("row"),))) == 1.25
    assert live_values(epilogue("erf", reads=(access("scalar"),))) == 1.0
    twice = steps_of(Step("erf", (0,)), Step("store", (1,), 0), Step("store", (1,), 1), outputs=2)
    assert live_values(twice) == 0.5 + 2 * 1.0  # across the stores; 1.25 across the function


def test_independent_library_functions_overlap_and_dependent_ones_where_the_compiler_does() -> None:
    apart = steps_of(
        Step("erf", (0,)), Step("tanh", (0,)), Step("add", (1, 2)), Step("store", (3,), 0)
    )
    assert live_values(apart) == 3.0  # the product, and both functions
    dependent = epilogue("erf", "tanh")
    assert live_values(dependent) == 1.0
    assert live_values(dependent, chained=True) == 2.0


def test_simple_values_are_computed_again_from_what_is_loaded() -> None:
    """Two of the product wait as the product; two of results of library functions are both kept."""
    simple = steps_of(
        Step("neg", (0,)),
        Step("relu", (0,)),
        Step("erf", (0,)),
        Step("mul", (1, 3)),
        Step("mul", (2, 4)),
        Step("store", (5,), 0),
    )
    assert live_values(simple) == 2.0
    late = steps_of(
        Step("exp", (0,)),
        Step("log", (0,)),
        Step("erf", (0,)),
        Step("mul", (1, 3)),
        Step("mul", (2, 4)),
        Step("store", (5,), 0),
    )
    assert live_values(late) == 3.0


@pytest.mark.parametrize(
    ("reads", "registers"),
    [
        ((access("column"),), 0.5 + 0.5),
        ((access("column", "float32"),), 0.5 + 1.0),
        ((access("column", "float64"),), 0.5 + 1.0),
        ((access("column"), access()), 0.5 + 2 * 0.5),
        ((access("column"), access("scalar")), 0.5 + 0.5),
    ],
)
def test_all_loaded_operands_wait_while_a_column_changes_its_layout(
    reads: tuple[Access, ...], registers: float
) -> None:
    assert live_values(epilogue(reads=reads)) == registers
    assert live_values(epilogue(reads=reads), persistent=True) == registers + 1.0


def test_a_persistent_kernel_needs_no_more_without_columns() -> None:
    assert live_values(gelu(), persistent=True) == 2.0


def test_several_outputs_are_computed_together() -> None:
    assert live_values(stored_after("relu")) == 0.5 + 2 * 0.375
    assert live_values(stored_after("exp")) == 0.5 + 0.375 + 1.0
    assert live_values(stored_after("relu", "neg")) == 0.5 + 3 * 0.375
    assert live_values(stored_after("relu", reads=(access(),))) == 2 * 0.5 + 2 * 0.375
    assert live_values(stored_after("relu", reads=(access("row"),))) == 0.5 + 2 * 0.375


@pytest.mark.parametrize(
    ("reads", "registers"),
    [
        ((), 0.5),
        ((access("scalar"),), 0.5),
        ((access(),), 1.0),
        ((access("row"),), 0.75),
        ((access(), access("row")), 1.25),
        ((access(), access("row"), access()), 1.5),  # the two largest
    ],
)
def test_two_operands_are_prefetched(reads: tuple[Access, ...], registers: float) -> None:
    assert asked_ahead(epilogue("relu", reads=reads)) == registers


def test_elements_of_eight_bits_are_packed() -> None:
    assert asked_ahead(epilogue("relu", out="float8_e4m3fn")) == 0.5 + 0.75
    assert asked_ahead(epilogue("relu", out="int8")) == 0.5 + 0.5


@pytest.mark.parametrize(
    ("chain", "prefetched"),
    [
        (epilogue("relu"), False),
        (epilogue("relu", reads=(access(),)), False),
        (epilogue("relu", reads=(access("scalar"),)), False),
        (epilogue("sigmoid"), False),
        (epilogue("relu", reads=(access(), access())), True),
        (epilogue("relu", reads=(access(dtype="float32"),)), True),
        (epilogue("relu", reads=(access(dtype="int8"),)), True),
        (epilogue("relu", reads=(access("row"),)), True),
        (epilogue("relu", out="float8_e4m3fn"), True),
        (steps_of(Step("sigmoid", (0,)), Step("mul", (0, 1)), Step("store", (2,), 0)), True),
    ],
)
def test_registers_that_are_plentiful_are_used_where_anything_is_prefetched(
    chain: Epilogue, prefetched: bool
) -> None:
    assert (asked_ahead(chain, plenty=9.0) == 9.0) is prefetched
    assert asked_ahead(chain) < 9.0


def test_the_longest_chain_counts_additions_and_multiplications_alone() -> None:
    assert longest_chain(epilogue("relu", "neg", "exp")) == 0
    assert longest_chain(epilogue("relu", reads=(access(), access()))) == 2
    two_branches = steps_of(
        Step("mul", (0, 0)),
        Step("add", (1, 1)),
        Step("relu", (2,)),
        Step("sub", (0, 0)),
        Step("fma", (3, 4, 4)),
        Step("store", (5,), 0),
    )
    assert longest_chain(two_branches) == 3
