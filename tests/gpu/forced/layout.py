"""One process that compiles one of the layout cases (tests/support/graphs/layouts.py) with each way forced to win.

    python -m tests.gpu.forced.layout CASE CACHE_DIR

Ways: a Triton kernel that reads the view as it lies; an operator that takes aligned rows alone and
gets copies of all else (tests/support/candidates/row_major_ops.py); CUTLASS, which copies what TMA cannot read; the library.
Prints one JSON line.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch._dynamo import config as dynamo_config
from torch._inductor.utils import run_and_get_code

from benchmarks.harness.error import error_of
from benchmarks.harness.forced import forced, is_named
from tests.gpu.cases.product import BF16, Spec
from tests.gpu.forced.process import compiled, listed, main
from tests.gpu.harness.ways import drawn
from tests.support.candidates import row_major_ops
from tests.support.graphs import layouts
from tests.support.native.spelled_out import operators_for_sites
from tests.support.warned import forget

Size = tuple[int, int, int]
LARGE = (4096, 4096, 4096)
"""M, k and n: a copy of either operand takes a sixth of the product's time, so that it is offered."""
SMALL = (256, 128, 512)
"""On a CPU, where a copy always is."""
WAYS = {"triton": "ATEN,TRITON", "picky": "ATEN", "cutlass": "ATEN,CUTLASS", "library": "ATEN"}
"""The option ``gemm_backends`` by the beginning of the candidate's identity; the library's has none."""
ON_A_CPU = ("picky", "library")


@dataclass(frozen=True)
class LayoutCase:
    """One layout.

    Attributes:
        function: What is compiled.
        inputs: Its tensors, by m, k and n.
        copied: Whether the operator that wants aligned rows gets a copy.
        cutlass: Whether CUTLASS gets one.
        conflict: Whether something else wants other strides, so that the library kernel runs.
    """

    function: Callable[..., Any]
    inputs: Callable[[int, int, int], tuple[Spec, ...]]
    copied: bool = False
    cutlass: bool = False
    conflict: bool = False

    @property
    def most(self) -> int:
        """The option ``max_candidates``: kernels that need no copy come first, seven of CUTLASS."""
        return 9 if self.cutlass else 4


def _specs(inputs: Callable[[int, int, int], Any]) -> Callable[[int, int, int], tuple[Spec, ...]]:
    return lambda m, k, n: tuple(Spec(size, BF16, stride) for size, stride in inputs(m, k, n))


def _unbacked(m: int, k: int, n: int) -> tuple[Spec, ...]:
    which = tuple(int(row % 3 > 0) for row in range(m))
    return Spec((m, k)), Spec((m,), torch.bool, contents=which), Spec((k, n))


CASES: dict[str, LayoutCase] = {
    **{
        name: LayoutCase(case.function, _specs(case.inputs), bool(case.picky), bool(case.cutlass))
        for name, case in layouts.CASES.items()
    },
    "unbacked size": LayoutCase(layouts.unbacked, _unbacked),
    "open strides": LayoutCase(layouts.turned, _specs(layouts.turned_inputs)),
    "conflict at scheduling": LayoutCase(
        layouts.fought_over, _specs(layouts.turned_inputs), conflict=True
    ),
}


def forced_way(way: str) -> AbstractContextManager[list[str]]:
    """Force a candidate of a way, after copies if there is one; give what was taken."""
    if way == "library":
        return forced(None)
    return forced(way, lambda name, ms: "_copied_" not in name)


def report(
    name: str,
    cache_dir: Path,
    device: str = "cuda",
    size: Size = LARGE,
    ways: Sequence[str] = tuple(WAYS),
) -> dict[str, Any]:
    """Compile and run a case in each way; return for each its error, who was taken, and the calls."""
    started = time.monotonic()
    result: dict[str, Any] = {}
    with (
        row_major_ops.picky_offered(),
        inductor_config.patch(fx_graph_cache=False),
        dynamo_config.patch(capture_dynamic_output_shape_ops=True),
    ):
        for way in ways:
            result[way] = _way(CASES[name], way, cache_dir, device, size)
    return {"ways": result, "seconds": round(time.monotonic() - started, 1)}


def _way(
    operands: LayoutCase, way: str, cache_dir: Path, device: str, size: Size
) -> dict[str, Any]:
    forget()
    tensors = drawn(operands.inputs(*size), device, seed=1)
    wide = [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
    function = compiled(operands.function, cache_dir, backends=WAYS[way], most=operands.most)
    warnings = _Warnings()
    logger = logging.getLogger("inductor_plugin")
    logger.addHandler(warnings)
    try:
        with forced_way(way) as taken:
            answer, codes = run_and_get_code(function, *tensors)
    finally:
        logger.removeHandler(warnings)
    pair = listed(answer), listed(operands.function(*wide))
    return {
        "error": max(error_of(actual, other) for actual, other in zip(*pair, strict=True)),
        "taken": taken[-1] if taken else "",
        "calls": calls(codes[0]),
        "warnings": warnings.texts,
    }


class _Warnings(logging.Handler):
    """Keeps the warnings of layouts that are not what kernels were measured with."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "was measured with" in record.getMessage():
            self.texts.append(record.getMessage())


def calls(code: str) -> dict[str, int]:
    """Return how often generated code calls each kind of product."""
    code = operators_for_sites(code)
    return {
        "copied": len(re.findall(r"torch\.ops\.inductor_plugin\.copied_\d\.out\(", code)),
        "picky": code.count("torch.ops.picky."),
        "cutlass": len(re.findall(r"torch\.ops\.inductor_plugin\.cutlass_\w+\.out\(", code)),
        "library": len(re.findall(r"extern_kernels\.(?:mm|bmm|addmm|baddbmm)\(", code)),
    }


def complaints(name: str, ways: Mapping[str, Mapping[str, Any]], accepted: float) -> list[str]:
    """Return what is not as a case was designed, one line each."""
    case, result = CASES[name], list[str]()
    for way, answered in ways.items():
        if not answered["error"] <= accepted:
            result.append(f"{way}: error {answered['error']}")
        if way != "library" and not is_named(answered["taken"], way):
            result.append(f"{way}: taken was {answered['taken']}")
        called = answered["calls"]
        if case.conflict and way != "library":
            if called["library"] == 0 or len(answered["warnings"]) != 1:
                result.append(f"{way}: the library did not run, warned once: {answered}")
            continue
        copied = {"picky": case.copied, "cutlass": case.cutlass}.get(way, False)
        if bool(called["copied"]) != copied:
            result.append(f"{way}: {called['copied']} calls behind copies, {copied} was expected")
        own = {"picky": "picky", "cutlass": "cutlass", "library": "library"}.get(way)
        if own is not None and not copied and called[own] == 0:
            result.append(f"{way}: no call of {own} in {called}")
        if way != "library" and answered["warnings"]:
            result.append(f"{way}: {answered['warnings']}")
    return result


if __name__ == "__main__":
    main(report)
