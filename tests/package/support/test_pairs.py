"""Of many cases a few in which whatever meets in all of them meets."""

from __future__ import annotations

from itertools import combinations, product

from tests.support.pairs import covering

FACTORS = {"dtype": ("float32", "bfloat16", "float16"), "rows": (1, 64, 65), "batch": (0, 1, 3)}
Case = dict[str, object]
CASES: list[Case] = [
    dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values())
]


def meetings(cases: list[Case]) -> set[tuple[tuple[str, object], ...]]:
    return {pair for case in cases for pair in combinations(case.items(), 2)}


def test_all_pairs_are_there_in_half_of_the_cases_or_fewer() -> None:
    chosen = covering(CASES, lambda case: case.items())
    assert meetings(chosen) == meetings(CASES)
    assert 9 <= len(chosen) <= len(CASES) // 2
    assert chosen == [case for case in CASES if case in chosen]


def test_the_same_are_chosen_each_time_and_a_case_that_has_something_of_its_own_always() -> None:
    odd: Case = {"dtype": "int8", "rows": 64, "batch": 3}
    assert covering(CASES, lambda case: case.items()) == covering(CASES, lambda case: case.items())
    assert odd in covering([*CASES, odd], lambda case: case.items())


def test_cases_of_one_fact_are_told_apart_by_it() -> None:
    assert covering("abca", lambda letter: letter) == ["a", "b", "c"]
    assert covering([], lambda case: [case]) == []
