"""Operations and bytes of a recorded problem, and the peaks of its device: its place under the roofline. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from inductor_plugin.cache.report import number
from inductor_plugin.errors import TargetError
from inductor_plugin.problem.attention import DIRECTIONS, attention_of, operands_of
from inductor_plugin.problem.definition import Operand, Problem, item_bytes
from inductor_plugin.problem.product import (
    LINEAR,
    ROLES,
    SUM_OF_PRODUCTS,
    factors,
    flops,
    output_size,
)
from inductor_plugin.problem.target import Target, from_properties, names
from inductor_plugin.repro.operand import ODD, concrete, measured_shapes

_COUNTED = frozenset({*ROLES, *LINEAR, SUM_OF_PRODUCTS, "convolution"})
"""Operators whose operations follow from their operands, besides attentions."""


@dataclass(frozen=True)
class Work:
    """What a call has to do at least.

    Attributes:
        flops: Multiplications and additions of its matrix products; epilogues are not counted.
        bytes: Size of each operand and of the output, read or written once.
        dtype: Type of the factors.
    """

    flops: float
    bytes: float
    dtype: str


@dataclass(frozen=True)
class Peak:
    """The peaks of a device.

    Attributes:
        name: The device.
        bandwidth: Of device memory, bytes/s.
        rates: Operations/s by dtype, dense, on tensor cores.
        sources: Where the figures are from.
    """

    name: str
    bandwidth: float
    rates: Mapping[str, float]
    sources: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        """Return the peaks as plain JSON values."""
        return {
            "name": self.name,
            "bandwidth": self.bandwidth,
            "rates": dict(self.rates),
            "sources": list(self.sources),
        }

    def bound_ms(self, work: Work) -> float | None:
        """Return the least milliseconds a call can take; None if the rate of its dtype is not known."""
        rate = self.rates.get(_rated(work.dtype, self))
        if rate is None:
            return None
        return 1e3 * max(work.flops / rate, work.bytes / self.bandwidth)


def _rated(dtype: str, peak: Peak) -> str:
    """Return the dtype whose rate bounds a product: tensor cores take float32 as TF32."""
    return "tf32" if dtype == "float32" and "tf32" in peak.rates else dtype


def work_of(problem: Mapping[str, Any], describe: str) -> Work | None:
    """Return the work of a problem, None where its operator is not known or its fields are not the operator's.

    Args:
        problem: The problem's fields in a record.
        describe: Its description, which has the measured sizes.
    """
    try:
        inputs = [_operand(*pair) for pair in _paired(problem["inputs"], describe)]
        output = _output(problem, inputs)
        read = Problem(
            str(problem["op"]),
            tuple(inputs),
            output,
            tuple((str(name), str(text)) for name, text in problem["arguments"]),
        )
        operations = _operations(read)
        if operations is None:
            return None
        packed = _packed_bytes(read)
        moved = packed + sum(map(_bytes, (*read.inputs, read.output)))
        first, _ = factors(read.op) or (0, 1)
        work = Work(float(operations), float(moved), read.inputs[first].dtype)
    except ODD:
        return None
    sound = all(math.isfinite(value) and value > 0 for value in (work.flops, work.bytes))
    return work if sound else None


def peak_of(environment: Mapping[str, Any]) -> Peak | None:
    """Return the peaks of an environment's device; None if they are not known, as those of a CPU."""
    device = environment.get("device")
    if not isinstance(device, Mapping):
        return None
    facts = cast("Mapping[str, Any]", device)
    try:
        if facts["type"] != "cuda":
            return None
        major, _, minor = str(facts["capability"]).partition(".")
        target = from_properties(
            {
                "name": facts["name"],
                "major": major,
                "minor": minor,
                "multi_processor_count": facts["multiprocessors"],
                "total_memory": facts.get("memory_bytes"),
            }
        )
    except (TargetError, *ODD):
        return None
    # An environment has neither the clock nor the memory's width of its GPU: those of one beside the table are not known.
    return peak_of_target(target) if target.name in names() else None


def peak_of_target(target: Target) -> Peak | None:
    """Return the peaks of a device; None unless its bandwidth and at least one rate are finite and positive.

    The figures may be a package's, which nobody has checked.
    """
    rates = {dtype: rate for dtype, rate in dict(target.rates).items() if _is_peak(rate)}
    if not rates or not _is_peak(target.memory_bandwidth):
        return None
    return Peak(target.name, target.memory_bandwidth, rates, target.sources)


def _is_peak(figure: object) -> bool:
    return (number(figure) or 0.0) > 0.0


def _paired(inputs: Any, describe: str) -> list[tuple[Mapping[str, Any], tuple[int, ...]]]:
    shapes = measured_shapes(describe)
    return list(zip(inputs, shapes, strict=True))


def _operand(fields: Mapping[str, Any], shape: tuple[int, ...]) -> Operand:
    strided = fields["layout"] == "strided"
    stride = concrete(fields["stride"], shape) if strided else ()
    return Operand(
        shape, tuple(stride), str(fields["dtype"]), str(fields["device"]), layout=fields["layout"]
    )


def _output(problem: Mapping[str, Any], inputs: Sequence[Operand]) -> Operand:
    """Return the output; that of a dynamic problem is recorded without extents, which its operands have."""
    fields, op = problem["output"], problem["op"]
    size: Any = fields["size"]
    if not isinstance(size, int):
        size = tuple(int(extent) for extent in size)
    elif (of_factors := output_size(op, inputs)) is not None and len(of_factors) == size:
        size = of_factors
    elif op in DIRECTIONS:
        names = operands_of(dict[str, str](problem["arguments"]))
        size = inputs[names.index("k" if "do" in names else "q")].size
    else:
        raise ValueError("its output's extents are not recorded")
    return Operand(tuple(size), (), str(fields["dtype"]), str(fields["device"]))


def _operations(problem: Problem) -> int | None:
    if problem.op in DIRECTIONS:
        return attention_of(problem).flops
    known = problem.op in _COUNTED and not _is_on(problem, "transposed")
    return flops(problem) if known else None


def _is_on(problem: Problem, name: str) -> bool:
    return dict(problem.arguments).get(name) == "True"


def _packed_bytes(problem: Problem) -> float:
    """Return the bytes of a weight whose layout hides its extents."""
    if problem.op not in LINEAR:
        return 0.0
    x = problem.inputs[0]
    return float(x.size[-1] * problem.output.size[-1] * item_bytes(x.dtype))


def _bytes(operand: Operand) -> float:
    """Return the bytes of an operand's elements; what is broadcast (stride 0) is read once."""
    if operand.layout != "strided":
        return 0.0
    strides = operand.stride or (1,) * len(operand.size)
    extents = [n for n, step in zip(operand.size, strides, strict=True) if step != 0]
    return float(math.prod(extents) * item_bytes(operand.dtype))
