"""Calls of the project's CUTLASS products on emulated GPUs, and what float64 says of the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from inductor_plugin.errors import KernelError
from inductor_plugin.ops import gemm_abi, gemm_call
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.problem.target import Target
from inductor_plugin.problem.tolerance import product_tolerance
from inductor_plugin.templates.cutlass.config import GemmConfig
from tests.emulator.kernels import build
from tests.emulator.kernels.accuracy import share
from tests.emulator.kernels.operand import DeviceTensor, allowed, device_tensor, workspace
from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "s32": torch.int32,
}
_ROUNDING = {"bf16": 2**-8, "f16": 2**-11}


@dataclass(frozen=True)
class Case:
    """One call of a kernel: D = alpha * A[m, k] @ B[k, n] + beta * C.

    Attributes:
        config: The kernel.
        m: Rows of A.
        n: Columns of B.
        k: Summed.
        batch: Matrices of a batch; 0 for no batch.
        pad: Elements between rows.
        shared_a: Whether all matrices of a batch have the same A.
        shared_b: Whether they have the same B.
        alpha: Factor of the product.
        beta: Factor of C, if the kernel adds one.
        split: Parts K is cut into.
        multiprocessors: How many the kernel is said to run on; 0 for all of the GPU.
        ends: For a grouped kernel, where the rows of each group end.
        fields: Further fields of the call.
        spoil: Changes the call before it is run: how tests make it wrong.
        spoil_planned: Changes it when its workspace is planned.
    """

    config: GemmConfig
    m: int
    n: int
    k: int
    batch: int = 0
    pad: int = 0
    shared_a: bool = False
    shared_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    split: int = 1
    multiprocessors: int = 0
    ends: tuple[int, ...] = ()
    fields: Mapping[str, int] = field(default_factory=dict[str, int])
    spoil: Callable[[GemmCall], None] | None = None
    spoil_planned: Callable[[GemmCall], None] | None = None


@dataclass(frozen=True)
class Operands:
    """The tensors of a case; those that its kernel does not take are None."""

    a: DeviceTensor
    b: DeviceTensor
    d: DeviceTensor
    c: DeviceTensor | None = None
    scales: tuple[DeviceTensor, DeviceTensor] | None = None
    ends: DeviceTensor | None = None

    def all(self) -> list[DeviceTensor]:
        """Return all there are."""
        listed = (self.a, self.b, self.d, self.c, *(self.scales or ()), self.ends)
        return [operand for operand in listed if operand is not None]


@dataclass(frozen=True)
class Outcome:
    """What a call computed.

    Attributes:
        operands: Its tensors.
        expected: D by float64.
        error: Largest difference, in units of what rounding explains; at most 1 if the kernel is right.
        share: Largest error, in units of what the product accepts (`accuracy.share`); at most 1, too.
        changed: Bytes that changed and are no elements of D.
        launches: What was launched.
    """

    operands: Operands
    expected: torch.Tensor
    error: float
    share: float
    changed: int
    launches: list[Launch]


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return random numbers that a type can hold."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values * 40).round().clamp(-128, 127) if dtype in (torch.int8, torch.int32) else values


def _matrix(
    case: Case, rows: int, columns: int, kind: str, row_major: bool, align: int, seed: int
) -> DeviceTensor:
    """Return a matrix, or a batch of them; with seed 0 its elements are no numbers."""
    contiguous = columns if row_major else rows
    lead = -(-(contiguous + case.pad) // align) * align
    stride = (lead, 1) if row_major else (1, lead)
    shape: tuple[int, ...] = (rows, columns)
    if case.batch:
        shape = (case.batch, *shape)
        whole = lead * (rows if row_major else columns)
        shared = {1: case.shared_a, 2: case.shared_b}.get(seed, False)
        stride = (0 if shared else whole, *stride)
    dtype = DTYPES[kind]
    return device_tensor(shape, dtype, stride, random(shape, dtype, seed) if seed else None)


def _scale(shape: tuple[int, ...], seed: int) -> DeviceTensor:
    values = 0.5 + 1.5 * torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return device_tensor(shape, torch.float32, None, values)


def operands(case: Case) -> Operands:
    """Return tensors for a case."""
    config, m, n, k = case.config, case.m, case.n, case.k
    rows_a, rows_b = config.layout_a == "row", config.layout_b == "row"
    single = Case(config, m, n, k, pad=case.pad) if config.grouped else case
    a = _matrix(single, m, k, config.a, rows_a, config.align_a, 1)
    b = _matrix(case, k, n, config.b, rows_b, config.align_b, 2)
    d = _matrix(single, m, n, config.d, True, config.align_d, 0)
    c = None
    if config.bias == "row":
        c = device_tensor((n,), DTYPES[config.c], None, random((n,), DTYPES[config.c], 3))
    elif config.bias == "column":
        c = device_tensor((m, 1), DTYPES[config.c], None, random((m, 1), DTYPES[config.c], 3))
    elif config.bias == "full":
        # With a beta of 0 a kernel does not read C, as torch does not; scaled products have no beta.
        is_read = case.beta != 0 or config.scale != "none"
        c = _matrix(case, m, n, config.c, True, config.align_c, 3 if is_read else 0)
    scales, ends = None, None
    if config.scale != "none":
        whole = config.scale != "rowwise"
        scale_a = _scale((1,) if whole else (m, 1), 4)
        scale_b = _scale((1,) if whole else (1, n), 5)
        scales = (scale_a, scale_b)
    if config.grouped:
        groups = len(case.ends)
        ends = device_tensor((groups,), torch.int32, None, torch.tensor(case.ends))
    return Operands(a, b, d, c, scales, ends)


def _call(case: Case, tensors: Operands, target: Target) -> GemmCall:
    config = case.config
    order = "".join("t" if each == "row" else "n" for each in (config.layout_a, config.layout_b))
    launch = (order, 1, 0, case.split)
    count = case.multiprocessors or target.multiprocessors
    a, b, out = tensors.a.view, tensors.b.view, tensors.d.view
    if tensors.ends is not None:
        call = gemm_call.grouped(a, b, tensors.ends.view, *launch, out=out, sm_count=count)
    elif tensors.scales is not None:
        scales = [scale.view for scale in tensors.scales]
        if tensors.c is None:
            call = gemm_call.scaled(a, b, *scales, *launch, out=out, sm_count=count)
        else:
            c = tensors.c.view
            call = gemm_call.scaled_added(a, b, *scales, c, *launch, out=out, sm_count=count)
            if config.bias == "full":
                call.lead_c = c.stride[-2]
    elif tensors.c is not None:
        rest = (*launch, config.bias, case.alpha, case.beta)
        call = gemm_call.added(tensors.c.view, a, b, *rest, out=out, sm_count=count)
    else:
        call = gemm_call.product(a, b, *launch, out=out, sm_count=count)
        call.alpha = case.alpha
    for name, value in case.fields.items():
        setattr(call, name, value)
    if case.spoil is not None:
        case.spoil(call)
    return call


def expected(case: Case, tensors: Operands) -> torch.Tensor:
    """Return D by float64; NaN where the kernel writes nothing."""
    x, y = tensors.a.numbers(), tensors.b.numbers()
    if tensors.ends is not None:
        result = torch.full((case.m, case.n), torch.nan, dtype=torch.float64)
        first = 0
        for group, end in enumerate(case.ends):
            result[first:end] = x[first:end] @ y[group]
            first = end
        return result
    result = case.alpha * (x @ y)
    beta = case.beta
    if tensors.scales is not None:
        result = result * tensors.scales[0].numbers() * tensors.scales[1].numbers()
        beta = 1.0
    return result + beta * tensors.c.numbers() if tensors.c is not None and beta else result


def _error(case: Case, got: torch.Tensor, wanted: torch.Tensor) -> float:
    known = ~wanted.isnan()
    wanted, got = wanted[known], got[known]
    if got.isnan().any():
        return torch.inf
    step = _ROUNDING.get(case.config.d, 2**-20)
    bound = step * wanted.abs() + 2e-5 * case.k**0.5 * (1 + wanted.abs())
    if case.split > 1 and case.config.arch == "sm_80":
        # CUTLASS 2 rounds each partial sum to the type of D; see cutlass choices of split K.
        bound = bound + case.split * step * wanted.abs().max() / 4
    if case.config.d == "s32":
        bound = torch.full_like(wanted, 0.5)
    return float(((got - wanted).abs() / bound).max())


def run(runtime: Runtime, case: Case, target: Target, schedule: Schedule) -> Outcome:
    """Build the kernel of a case, call it as the project does, and compare.

    Raises:
        FaultError: The kernel touched other memory than its operands and workspace, or worse.
        KernelError: It refused the call.
    """
    tensors = operands(case)
    return compared(runtime, case, tensors, _call(case, tensors, target), target, schedule)


def compared(
    runtime: Runtime,
    case: Case,
    tensors: Operands,
    call: GemmCall,
    target: Target,
    schedule: Schedule,
) -> Outcome:
    """Run a call of a case's kernel, and compare; errors as `run`."""
    launches, room = launched(
        runtime, case.config, call, tensors.all(), target, schedule, case.spoil_planned
    )
    wanted = expected(case, tensors)
    changed = room.changed(output=True)
    changed += sum(operand.changed(output=operand is tensors.d) for operand in tensors.all())
    got = tensors.d.tensor
    accepted = product_tolerance(
        dtype_name(got.dtype), dtype_name(tensors.a.tensor.dtype), case.k, tf32=True
    )
    return Outcome(
        tensors,
        wanted,
        _error(case, got.double(), wanted),
        share(got, wanted, accepted),
        changed,
        launches,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype as problems have it."""
    return str(dtype).removeprefix("torch.")


def launched(
    runtime: Runtime,
    config: GemmConfig,
    call: GemmCall,
    values: Sequence[DeviceTensor],
    target: Target,
    schedule: Schedule,
    spoil: Callable[[GemmCall], None] | None = None,
) -> tuple[list[Launch], DeviceTensor]:
    """Build a kernel, call it as the project does, and return its launches and its workspace.

    Args:
        runtime: Runs it.
        config: The kernel.
        call: The call, without a workspace.
        values: Its operands.
        target: The GPU.
        schedule: Order of warps and asynchronous operations.
        spoil: Changes the call when it has its workspace.

    Raises:
        FaultError: The kernel touched other memory than its operands and workspace, or worse.
        KernelError: It refused the call.
    """
    library = build.library(config, runtime.cudart, runtime.folder)
    kernel = gemm_abi.load(library.path, library.symbol)
    with runtime.on(target):
        if (reason := gemm_abi.can_implement(kernel, call)) is not None:
            raise KernelError(reason)
        room = workspace(gemm_abi.workspace_bytes(kernel, call))
    call.workspace, call.workspace_bytes = room.tensor.data_ptr(), room.span
    if spoil is not None:
        spoil(call)
    with runtime.on(target, schedule, allowed([*values, room])) as launches:
        gemm_abi.run(kernel, call, 0)
    return launches, room
