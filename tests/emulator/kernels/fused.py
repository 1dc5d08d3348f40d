"""Calls of CUTLASS products with an epilogue of visitors on emulated GPUs, and what float64 says of the results.

The epilogue is Inductor's own, lowered from a function of torch; the same function in float64 is the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch

from inductor_plugin.ops import gemm_call
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import Target
from inductor_plugin.problem.tolerance import product_tolerance
from inductor_plugin.templates.cutlass.config import Element, GemmConfig, full_alignment
from inductor_plugin.templates.cutlass.evt import Evt, evt_of
from tests.emulator.kernels import gemm
from tests.emulator.kernels.accuracy import share
from tests.emulator.kernels.gemm import DTYPES, dtype_name, launched
from tests.emulator.kernels.operand import DeviceTensor, device_tensor
from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.support.graphs import epilogues
from tests.support.graphs.with_epilogues import OUTPUTS, lowered


@dataclass(frozen=True)
class Case:
    """One product with an epilogue.

    Attributes:
        plain: The kernel without it.
        epilogue: A name of `epilogues.CASES` or `MORE`.
        m: Rows of A.
        n: Columns of B.
        k: Summed.
        batch: Matrices of a batch; 0 for no batch.
        pad: Elements between rows.
        spoil: Changes the call before it is run: how tests make it wrong.
    """

    plain: GemmConfig
    epilogue: str
    m: int
    n: int
    k: int
    batch: int = 0
    pad: int = 0
    spoil: Callable[[GemmCall], None] | None = None

    @property
    def function(self) -> epilogues.Case:
        """What is computed of the product."""
        return EPILOGUES[self.epilogue]

    @property
    def lowered(self) -> Epilogue:
        """The epilogue as Inductor writes it, after a product of other sizes (`epilogues`)."""
        return _lowered(self.epilogue, DTYPES[self.plain.a]).epilogue

    @property
    def config(self) -> GemmConfig:
        """The kernel."""
        evt = _lowered(self.epilogue, DTYPES[self.plain.a]).evt
        d = cast("Element", evt.result.element)
        c = d if evt.source is None else cast("Element", evt.operands[evt.source].element)
        return replace(
            self.plain,
            c=c,
            d=d,
            align_c=full_alignment(c),
            align_d=full_alignment(d),
            epilogue=evt,
        )


EPILOGUES = {each.name: each for each in (*epilogues.CASES, *epilogues.MORE)}


@dataclass(frozen=True)
class _Lowered:
    """An epilogue as Inductor writes it.

    Attributes:
        epilogue: The epilogue.
        evt: Its tree.
        outputs: Names of what the function returns.
    """

    epilogue: Epilogue
    evt: Evt
    outputs: tuple[str, ...]


@functools.cache
def _lowered(name: str, dtype: torch.dtype) -> _Lowered:
    function, shapes = EPILOGUES[name].graph(dtype)
    epilogue, graph = lowered(function, shapes, EPILOGUES[name].readers)
    evt = evt_of(epilogue)
    assert isinstance(evt, Evt), evt
    return _Lowered(epilogue, evt, tuple(graph.meta[OUTPUTS]))


@dataclass(frozen=True)
class Outcome:
    """What a call computed.

    Attributes:
        share: Largest error of any output, in units of what the product accepts; at most 1.
        changed: Bytes that changed and are no elements of an output.
        launches: What was launched.
    """

    share: float
    changed: int
    launches: list[Launch]


def _operand(case: Case, kind: str, dtype: torch.dtype, seed: int) -> DeviceTensor:
    """Return what an epilogue reads, with as many dimensions as D; seed 0 is an output, ``full``."""
    shape = {"row": (1, case.n), "column": (case.m, 1), "scalar": (1, 1)}.get(kind)
    shape = shape or (case.m, case.n)
    lead = shape[1] + (case.pad if kind == "full" else 0)
    stride = (lead, 1)
    if case.batch:
        stride = ((shape[0] * lead, *stride)) if kind != "scalar" else (0, *stride)
        shape = (case.batch, *shape)
    if not seed:
        return device_tensor(shape, dtype, stride)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return device_tensor(shape, dtype, stride, values.abs() + 0.5 if kind == "scalar" else values)


def run(runtime: Runtime, case: Case, target: Target, schedule: Schedule) -> Outcome:
    """Build the kernel of a case, call it as the project does, and compare; errors as `gemm.run`."""
    config, dtype = case.config, DTYPES[case.plain.a]
    lowering = _lowered(case.epilogue, dtype)
    plain = gemm.operands(gemm.Case(case.plain, case.m, case.n, case.k, case.batch, case.pad))
    kinds = case.function.operands
    operands = [
        _operand(case, kind, torch.float32 if kind == "scalar" else dtype, 10 + place)
        for place, kind in enumerate(kinds)
    ]
    evt = lowering.evt
    written = [_operand(case, "full", DTYPES[output.element], 0) for output in evt.outputs]
    # Loops come across operands in an order of their own: "arg2_1" is the function's first one.
    numbers = [int(read.buffer[3:].partition("_")[0]) - 2 for read in lowering.epilogue.reads]
    slots = [operands[number].view for number in numbers]
    call = gemm_call.fused(
        [*slots, *(aux.view for aux in written[:-1])],
        plain.a.view,
        plain.b.view,
        config.order,
        1,
        0,
        1,
        out=written[-1].view,
        sm_count=target.multiprocessors,
    )
    if case.spoil is not None:
        case.spoil(call)
    inputs = [plain.a, plain.b, *operands]
    launches, room = launched(runtime, config, call, [*inputs, *written], target, schedule)
    changed = sum(each.changed(output=False) for each in inputs)
    changed += sum(each.changed(output=True) for each in (*written, room))
    accepted = product_tolerance(dtype_name(dtype), dtype_name(dtype), case.k, tf32=False)
    pairs = zip(written, _expected(case, lowering, plain, operands), strict=True)
    shares = [
        share(
            each.tensor.double() if each.tensor.dtype == torch.int8 else each.tensor,
            wanted.double(),
            accepted.of_type(dtype_name(each.tensor.dtype)),
        )
        for each, wanted in pairs
    ]
    return Outcome(max(shares), changed, launches)


def _expected(
    case: Case, lowering: _Lowered, plain: gemm.Operands, operands: list[DeviceTensor]
) -> list[torch.Tensor]:
    """Return the outputs by float64, in the order of the tree's."""
    product = plain.a.numbers() @ plain.b.numbers()
    results = epilogues.eager(case.function, product, [each.numbers() for each in operands])
    wanted = [results[lowering.outputs.index(each.buffer)] for each in lowering.epilogue.writes]
    if lowering.epilogue.readers:
        wanted.insert(-1, product)
    return wanted
