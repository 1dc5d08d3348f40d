"""Which CUTLASS kernels compute a product together with its epilogue.

Problem, Epilogue ─► absorbed ─► evt_of ─► fused ─► (GemmConfig, Launch), ...   or the reason
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.epilogue import Access, Epilogue, Step, pattern_of
from inductor_plugin.problem.product import ROLES
from inductor_plugin.templates.cutlass.choices import ALL, Choice, choices, family
from inductor_plugin.templates.cutlass.config import BITS, Element, GemmConfig, full_alignment
from inductor_plugin.templates.cutlass.evt import Evt, evt_of
from inductor_plugin.templates.cutlass.limits import why_not_buildable
from inductor_plugin.templates.cutlass.order import order
from inductor_plugin.templates.cutlass.problem import GemmFacts, facts_of

LIMIT = 4
"""Most kernels of one epilogue: each is compiled only for it."""

_PLAIN = {"mm": "mm", "bmm": "bmm", "int_mm": "int_mm", "addmm": "mm", "baddbmm": "bmm"}
"""What is left of an operator without its bias, which becomes a part of the epilogue."""
_ADDS = tuple(op for op in _PLAIN if "c" in ROLES[op])


def absorbed(problem: Problem, epilogue: Epilogue) -> Epilogue:
    """Return an epilogue that begins with the bias of ``addmm`` and ``baddbmm``.

    The bias becomes the first of its reads; epilogues of other operators stay unchanged. If other nodes
    read the sum, too, it is stored before the last of the writes.
    """
    if problem.op not in _ADDS:
        return epilogue
    alpha, beta = (float(dict(problem.arguments).get(name, "1")) for name in ("alpha", "beta"))
    steps = [Step("product")]
    if alpha != 1:
        steps += [Step("constant", (), alpha), Step("mul", (0, 1))]
    product, reads = len(steps) - 1, epilogue.reads
    if beta != 0:  # a bias times zero is not read, whatever it holds, as in torch
        steps.append(Step("load", (), 0))
        if beta != 1:
            factor = len(steps)
            steps += [Step("constant", (), beta), Step("mul", (factor - 1, factor))]
        steps.append(Step("add", (product, len(steps) - 1)))
        reads = (_bias(problem, epilogue.size), *reads)
    moved = len(reads) - len(epilogue.reads)
    return _continued(epilogue, steps, reads, moved)


def _continued(
    epilogue: Epilogue, first: list[Step], reads: tuple[Access, ...], moved: int
) -> Epilogue:
    """Return an epilogue whose product is the last of ``first``; its loads move by ``moved``."""
    steps, writes, last = list(first), epilogue.writes, len(epilogue.writes) - 1
    value, places = len(first) - 1, dict[int, int]()
    if epilogue.readers:
        steps.append(Step("store", (value,), last))
        whole = replace(writes[-1], dtype=epilogue.dtype, buffer="")
        writes = (*writes[:-1], whole, writes[-1])
    for place, step in enumerate(epilogue.steps):
        if step.op == "product":
            places[place] = value
            continue
        arguments = tuple(places[argument] for argument in step.arguments)
        number = step.value
        if step.op == "load" and isinstance(number, int):
            number += moved
        if step.op == "store" and epilogue.readers and number == last:
            number = last + 1
        places[place] = len(steps)
        steps.append(Step(step.op, arguments, number))
    return replace(epilogue, steps=tuple(steps), reads=reads, writes=writes, readers=0)


def _bias(problem: Problem, size: tuple[int, ...]) -> Access:
    """Return how D's elements map to the bias."""
    bias: Operand = problem.inputs[ROLES[problem.op].index("c")]
    missing = len(size) - len(bias.size)
    strides = [
        0 if extent == 1 else bias.stride_divisor(dim) for dim, extent in enumerate(bias.size)
    ]
    stride = (*([0] * missing), *strides)
    elements = 1
    for extent, step in zip(size, stride, strict=True):
        elements *= extent if step else 1
    return Access(
        pattern_of(stride, size), bias.dtype, elements, stride, bias.offset_divisor, "bias"
    )


def fused(problem: Problem, epilogue: Epilogue) -> tuple[GemmFacts, tuple[Choice, ...]] | str:
    """Return the most promising kernels, best first, or why there are none.

    Args:
        problem: The product without its epilogue.
        epilogue: As `absorbed` returns it.
    """
    evt = evt_of(epilogue)
    reason = _why_not(problem) or (evt if isinstance(evt, str) else None)
    if reason is not None or isinstance(evt, str) or problem.target is None:
        return reason or ""
    plain = _without_bias(problem)
    facts = facts_of(plain, allow_tf32=plain.tf32)
    if isinstance(facts, str):
        return facts
    offered = _uneven(plain, facts, evt) or choices(facts, problem.target.arch, limit=ALL)
    if isinstance(offered, str):
        return offered
    configured = list(_configured(offered, evt))
    fitting = [choice for choice in configured if why_not_buildable(choice.config) is None]
    if fitting:
        return facts, order(problem.target, facts, fitting, limit=LIMIT)
    reasons = dict.fromkeys(why_not_buildable(choice.config) or "" for choice in configured)
    return "; ".join(list(reasons)[:2]) or "no kernel of another schedule fuses"


def _why_not(problem: Problem) -> str | None:
    """Return why no kernel of this family computes a product, whatever its sizes."""
    if problem.target is None or family(problem.target.arch) == "sm_80":
        return "kernels with an epilogue of visitors are for sm_90a and sm_100a"
    if problem.op not in _PLAIN:
        return f"kernels with an epilogue compute {', '.join(_PLAIN)}, not {problem.op}"
    return None


def _without_bias(problem: Problem) -> Problem:
    """Return the product without its bias."""
    if problem.op not in _ADDS:
        return problem
    return replace(
        problem,
        op=_PLAIN[problem.op],
        inputs=problem.inputs[1:],
        arguments=(),
        dynamic=tuple(
            replace(extent, operand=extent.operand - 1)
            for extent in problem.dynamic
            if extent.operand > 0
        ),
    )


def _uneven(problem: Problem, facts: GemmFacts, evt: Evt) -> str | None:
    """Return why rows of operands as large as D do not end at a multiple of 16 bytes."""
    if any(
        extent.operand == 1 and extent.dim == len(problem.inputs[1].size) - 1
        for extent in problem.dynamic
    ):
        return "rows of D have a length that is known only at run time; TMA wants multiples of 16 bytes"
    large = [read.element for read in evt.operands if read.kind in ("source", "full")]
    for element in (*large, *(output.element for output in evt.outputs)):
        step = 128 // BITS[element]
        if facts.n % step:
            return f"rows of {facts.n} {element} do not end at a multiple of 16 bytes"
    return None


def _configured(offered: tuple[Choice, ...], evt: Evt) -> Iterator[Choice]:
    """Return each kernel once, with the epilogue."""
    d = cast("Element", evt.result.element)
    c = d if evt.source is None else cast("Element", evt.operands[evt.source].element)
    yielded: set[GemmConfig] = set()
    for choice in offered:
        config = choice.config
        if config.schedule in ("stream_k", "multistage"):
            continue
        full = full_alignment(d)
        fused_config = replace(
            config, c=c, d=d, align_c=full_alignment(c), align_d=full, bias="none", epilogue=evt
        )
        if fused_config not in yielded:
            yielded.add(fused_config)
            yield Choice(fused_config, choice.launch)
