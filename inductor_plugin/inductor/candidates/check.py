"""How the candidates of a call are checked: what their numbers are compared by, and at which sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._inductor.virtualized import V

from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.facts import compat
from inductor_plugin.problem import Problem
from inductor_plugin.problem.definition import size_class
from inductor_plugin.problem.number_check import (
    NumberCheck,
    added_operands,
    amplitudes,
    random_factors,
    steepness,
    tolerance_of,
)
from inductor_plugin.tuning.ends import SizeEnd
from inductor_plugin.tuning.environment import float32_precision
from inductor_plugin.worker.devices.cuda import convolution_tf32

_ALIGNMENTS = (16, 8, 4, 2)


def number_check(problem: Problem, names: Sequence[str], seeds: dict[str, int]) -> NumberCheck:
    """Return how a candidate's numbers are compared with the library kernel's.

    Args:
        problem: The problem.
        names: Names of its inputs in the graph; fewer if the others are not added to the product.
        seeds: Seeds of the random values of inputs, by name; missing ones are added.
    """
    convolution = problem.op == "convolution"
    device = problem.output.device
    exact = not convolution_tf32() if convolution else float32_precision(device) == "highest"
    # Elsewhere than on a CPU, frozen weights are random as all operands are (`Operands.frozen`).
    own = V.graph.constants if device == "cpu" else {}
    frozen = [i for i, name in enumerate(names) if name in own]
    shared = [i for i, name in enumerate(names) if names.count(name) > 1]

    def seed(index: int) -> int:
        return seeds.setdefault(names[index], len(seeds) + 1)

    factors = amplitudes(problem, frozen, shared)
    filters = [1] if convolution and len(names) > 1 else []
    return NumberCheck(
        tolerance_of(problem, tf32=device != "cpu" and not exact),
        tuple({seed(i): factor for i, factor in factors.items() if i < len(names)}.items()),
        added=frozenset(seed(i) for i in added_operands(problem) if i < len(names)),
        large_values=not problem.epilogue,
        factors=random_factors(problem, frozen),
        steep=steepness(problem, frozen, shared),
        unplanted=frozenset(seed(i) for i in filters),
    )


def size_ends(call: AutotuneCall) -> tuple[SizeEnd, ...]:
    """Return the ends of a dynamic call's size class; none for a static call.

    None either where Inductor generates an operand that depends on a size (ends of groups): it is for the measured
    sizes.
    """
    # A quantized product without a bias has a generator for the bias, too (torch 2.14.1, `qlinear_unary`).
    generated = [call.nodes[index] for index in call.input_gen_fns if index < len(call.nodes)]
    on_gpu = call.layout.device.type != "cpu"
    if not call.problem.dynamic or _symbols(generated) or (generated and on_gpu):
        return ()
    symbols = _symbols([*call.nodes, call.layout])
    measured = {symbol: compat.hints([symbol])[0] for symbol in symbols}
    ends: list[SizeEnd] = []
    for pick in (0, 1):
        sizes = {s: _within(s, size_class(size)[pick]) for s, size in measured.items()}
        # A kernel has the value of a size, not its name: one value must not have two others.
        pairs = {(measured[symbol], size) for symbol, size in sizes.items()}
        if sizes != measured and len(pairs) == len(dict(pairs)):
            ends.append(_end(call, sizes, tuple(sorted(pairs))))
    return tuple(ends)


def _end(call: AutotuneCall, sizes: dict[Any, int], pairs: tuple[tuple[int, int], ...]) -> SizeEnd:
    measured = call.operands
    before = (*measured.views, *measured.bases)
    with compat.at_sizes(sizes):
        there = call.at_other_sizes()
        after = (*there.operands.views, *there.operands.bases)
        check = number_check(there.problem, call.names, call.seeds)
        output = there.operands.output
    plain = {a: b for a, b in zip(before, after, strict=True) if a.file is None}
    return SizeEnd(pairs, tuple(plain.items()), (measured.output, output), check)


def _symbols(nodes: Sequence[Any]) -> list[Any]:
    """Return the symbols in sizes, strides and offsets of nodes or layouts."""
    symbols: dict[Any, None] = {}
    for node in nodes:
        layout = node.get_layout() if hasattr(node, "get_layout") else node
        for extent in (*layout.size, *layout.stride, layout.offset):
            symbols |= dict.fromkeys(getattr(extent, "free_symbols", ()))
    return sorted(symbols, key=str)


def _within(symbol: Any, size: int) -> int:
    """Return the size nearest to one that a symbol may have: in its range, a multiple of what divides it."""
    low, high = compat.bounds(symbol)
    proven = V.graph.sizevars.statically_known_multiple_of
    step = next((number for number in _ALIGNMENTS if proven(symbol, number)), 1)
    return -(-min(max(size, low), high) // step) * step
