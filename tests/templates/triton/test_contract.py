"""What every Triton template of products is held to; test_TEMPLATE.py has what is special to each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inductor_plugin.templates import BUILTIN
from tests.support.pairs import covering
from tests.support.triton.lowering import NEEDS_CUDA_BUILD, Every, check, compiled, lowered
from tests.support.triton.products import decode, fp8, int4, persistent_tma, split_k

pytestmark = NEEDS_CUDA_BUILD

CONTRACTS = {
    module.CONTRACT.template.name: module.CONTRACT
    for module in (decode, split_k, persistent_tma, fp8, int4)
}


def test_every_template_of_products_has_a_contract() -> None:
    products = [
        template.name for template in BUILTIN if not template.ops[0].startswith("attention")
    ]
    assert set(CONTRACTS) == {name for name in products if name.startswith("triton_")}


@pytest.mark.parametrize(
    ("template", "name"),
    [(key, name) for key, contract in CONTRACTS.items() for name in contract.rejected],
)
def test_what_it_cannot_run_is_refused_with_the_reason(template: str, name: str) -> None:
    contract = CONTRACTS[template]
    problem, reason = contract.rejected[name]
    refusal = contract.template.reject(problem)
    assert (reason in (refusal or "")) if reason else refusal is None


@pytest.mark.slow
@pytest.mark.parametrize("template", CONTRACTS)
def test_generated_kernels_compute_what_the_operator_means(template: str) -> None:
    check(CONTRACTS[template].template, template, CONTRACTS[template].cases)


@pytest.mark.slow
@pytest.mark.parametrize("template", CONTRACTS)
def test_epilogues_fuse_and_are_right(template: str) -> None:
    """All of one kind of product, of its other kinds what reads an operand: the rest sees only numbers."""
    first, *others = CONTRACTS[template].epilogues
    check(CONTRACTS[template].template, template, first)
    for cases in others:
        readers = {name: case for name, case in cases.items() if len(case.arguments) > 2}
        assert 1 < len(readers) < len(cases)
        check(CONTRACTS[template].template, template, readers)


@pytest.mark.parametrize(
    ("template", "name"),
    [(key, name) for key, contract in CONTRACTS.items() for name in contract.defaults],
)
def test_default_kernels_compile_without_spilling(template: str, name: str) -> None:
    contract = CONTRACTS[template]
    graph = contract.defaults[name]
    lowered_graph = lowered(contract.template, template, graph.function, graph.arguments)
    for arch in contract.archs:
        (usage,) = compiled(lowered_graph, arch, [0])
        contract.check(name, arch, usage)


@pytest.mark.slow
@pytest.mark.parametrize("template", [key for key, each in CONTRACTS.items() if each.tiles])
def test_all_tiles_compile_without_spilling(template: str) -> None:
    """Each tile of each product, and for each device each tile that it has: a tile of several products not for all devices in each."""
    contract = CONTRACTS[template]
    every = Every(contract.template, contract.every)
    graphs = [lowered(every, template, graph.function, graph.arguments) for graph in contract.tiles]
    assert [len(graph.entries) for graph in graphs] == [graph.kernels for graph in contract.tiles]
    cases = [
        (arch, place, number)
        for arch in contract.archs
        for place, graph in enumerate(graphs)
        for number in range(len(graph.entries))
    ]

    def facts(case: tuple[int, int, int]) -> Iterator[tuple[str, object]]:
        arch, place, number = case
        yield from (("arch", arch), ("product", place))
        yield "tile", graphs[place].entries[number].description

    for arch, place, number in covering(cases, facts):
        compiled(graphs[place], arch, [number])
