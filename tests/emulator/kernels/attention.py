"""Calls of the project's CUTLASS attention on emulated GPUs, and what float64 says of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from inductor_plugin.attention import cutlass_abi, cutlass_call
from inductor_plugin.attention.check.reference import Reference, excess
from inductor_plugin.attention.check.sample import Sampler, exact_rows, sequences
from inductor_plugin.attention.cutlass_abi import FmhaCall
from inductor_plugin.errors import KernelError
from inductor_plugin.problem.attention import Attention, Mask
from inductor_plugin.problem.target import Target
from inductor_plugin.problem.tolerance import attention_bound
from inductor_plugin.templates.cutlass_attention import problem as attention_problem
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels import build
from tests.emulator.kernels.gemm import DTYPES, dtype_name
from tests.emulator.kernels.operand import DeviceTensor, allowed, device_tensor, workspace
from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.support.attention.problems import attention

Layout = tuple[tuple[int, ...], int]
"""Strides of an operand, and the elements before its first one."""
_SEEDS = {"q": 1, "k": 2, "v": 3, "do": 4}
"""Of what is read; the others are outputs."""


@dataclass(frozen=True)
class Case:
    """One call of a kernel.

    Attributes:
        config: The kernel.
        batch: Sequences.
        heads: Heads of q.
        heads_kv: Heads of k and v.
        queries: Rows of q.
        keys: Rows of k and v.
        dim: Size of a head.
        left: Keys that are seen before a query's own; -1 for all.
        right: Keys that are seen behind it; -1 for all.
        bottom_right: Whether the last query's own key is the last one, not that of its number.
        multiprocessors: How many the kernel is said to run on; 0 for all of the GPU.
        spread: Whether rows of all heads lie side by side: [batch, row, head, dim].
        lse: Whether the forward writes lse, too; else the call is that of the operator without it.
        factor: Factor of q @ k.T; 0 for that of torch, by the size of a head.
        layouts: Strides and offset in elements of operands with layouts of their own, by name.
        spoil: Changes the call before it is run: how tests make it wrong.
    """

    config: FmhaConfig
    batch: int
    heads: int
    heads_kv: int
    queries: int
    keys: int
    dim: int
    left: int = -1
    right: int = -1
    bottom_right: bool = False
    multiprocessors: int = 0
    spread: bool = False
    lse: bool = True
    factor: float = 0.0
    layouts: Mapping[str, Layout] = field(default_factory=dict[str, Layout])
    spoil: Callable[[FmhaCall], None] | None = None

    @property
    def scale(self) -> float:
        """Factor of q @ k.T."""
        return self.factor or self.dim**-0.5


@dataclass(frozen=True)
class Outcome:
    """What a call computed.

    Attributes:
        errors: Root mean square error of each output, relative to that of its values.
        infinities: Whether infinite numbers are where they have to be.
        share: Largest error of a number of any row, in units of what the product accepts (`share_of`).
        changed: Bytes that changed and are no elements of an operand.
        launches: What was launched.
    """

    errors: dict[str, float]
    infinities: bool
    share: float
    changed: int
    launches: list[Launch]


@dataclass(frozen=True)
class _Reference:
    """Attention in float64, [batch, heads, queries, ...]; k and v repeated for all heads."""

    k: torch.Tensor
    v: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


def _reference(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> _Reference:
    group = case.heads // case.heads_kv
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = case.scale * q @ k.transpose(-1, -2)
    i, j = torch.arange(case.queries)[:, None], torch.arange(case.keys)[None, :]
    shift = case.keys - case.queries if case.bottom_right else 0
    seen = torch.ones((case.queries, case.keys), dtype=torch.bool)
    if case.left >= 0:
        seen &= j >= i + shift - case.left
    if case.right >= 0:
        seen &= j <= i + shift + case.right
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0)  # a row without keys has none
    return _Reference(k, v, weights, weights @ v, lse)


def _tensor(case: Case, name: str, dtype: torch.dtype) -> DeviceTensor:
    """Return an operand, [batch, heads, rows, dim]."""
    of_keys = name in ("k", "v", "dk", "dv")
    heads, rows = (case.heads_kv, case.keys) if of_keys else (case.heads, case.queries)
    shape = (case.batch, heads, rows, case.dim)
    whole = heads * rows * case.dim
    stride = (
        (whole, case.dim, heads * case.dim, 1)
        if case.spread
        else (whole, rows * case.dim, case.dim, 1)
    )
    stride, offset = case.layouts.get(name, (stride, 0))
    seed = _SEEDS.get(name, 0)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) if seed else None
    return device_tensor(shape, dtype, stride, values, offset)


def run(runtime: Runtime, case: Case, target: Target, schedule: Schedule) -> Outcome:
    """Build the kernel of a case, call it as the project does, and compare.

    Raises:
        FaultError: The kernel touched other memory than its operands and workspace, or worse.
        KernelError: It refused the call.
    """
    dtype = DTYPES[case.config.element]
    q, k, v = (_tensor(case, name, dtype) for name in ("q", "k", "v"))
    exact = _reference(case, q.numbers(), k.numbers(), v.numbers())
    if case.config.backward:
        return _backward(runtime, case, target, schedule, (q, k, v), exact)
    written = torch.bfloat16 if case.config.element == "e4m3" else dtype
    out = _tensor(case, "out", written)
    outputs = {"out": (out, exact.out)}
    mask = (case.scale, case.left, case.right, case.bottom_right)
    count = case.multiprocessors or target.multiprocessors
    if case.lse:
        lse = device_tensor(exact.lse.shape, torch.float32)
        outputs["lse"] = (lse, exact.lse)
        call = cutlass_call.forward_of(
            q.view, k.view, v.view, lse.view, *mask, out=out.view, sm_count=count
        )
    else:
        call = cutlass_call.output_of(q.view, k.view, v.view, *mask, out=out.view, sm_count=count)
    named = {"q": q, "k": k, "v": v}
    return _called(runtime, case, target, schedule, call, named, outputs)


def _backward(
    runtime: Runtime,
    case: Case,
    target: Target,
    schedule: Schedule,
    inputs: tuple[DeviceTensor, DeviceTensor, DeviceTensor],
    exact: _Reference,
) -> Outcome:
    q, k, v = inputs
    dtype = DTYPES[case.config.element]
    names = ("do", "out", "dq", "dk", "dv")
    d_out, out, dq, dk, dv = (_tensor(case, name, dtype) for name in names)
    gradient = d_out.numbers()
    sums = (exact.out * gradient).sum(-1)
    # As the project's forward kernels and `attention.check.sample.exact_rows` write it: +inf where no key is seen.
    seen = exact.lse.masked_fill(exact.lse.isneginf(), torch.inf)
    lse = device_tensor(seen.shape, torch.float32, None, seen)
    delta = device_tensor(sums.shape, torch.float32, None, sums)
    call = cutlass_call.backward_of(
        d_out.view,
        q.view,
        k.view,
        v.view,
        out.view,
        lse.view,
        delta.view,
        dq.view,
        dv.view,
        case.scale,
        case.left,
        case.right,
        case.bottom_right,
        out=dk.view,
        sm_count=case.multiprocessors or target.multiprocessors,
    )
    of_weights = gradient @ exact.v.transpose(-1, -2)
    of_scores = exact.weights * (of_weights - sums[..., None]) * case.scale

    def folded(x: torch.Tensor) -> torch.Tensor:
        group = case.heads // case.heads_kv
        return x.reshape(case.batch, case.heads_kv, group, case.keys, case.dim).sum(2)

    outputs = {
        "dq": (dq, of_scores @ exact.k),
        "dk": (dk, folded(of_scores.transpose(-1, -2) @ q.numbers())),
        "dv": (dv, folded(exact.weights.transpose(-1, -2) @ gradient)),
    }
    operands = {"q": q, "k": k, "v": v, "do": d_out, "lse": lse, "delta": delta}
    return _called(runtime, case, target, schedule, call, operands, outputs)


def _called(
    runtime: Runtime,
    case: Case,
    target: Target,
    schedule: Schedule,
    call: FmhaCall,
    inputs: Mapping[str, DeviceTensor],
    outputs: dict[str, tuple[DeviceTensor, torch.Tensor]],
) -> Outcome:
    if case.spoil is not None:
        case.spoil(call)
    library = build.library(case.config, runtime.cudart, runtime.folder)
    kernel = cutlass_abi.load(library.path, library.symbol)
    with runtime.on(target):
        if (reason := cutlass_abi.can_implement(kernel, call)) is not None:
            raise KernelError(reason)
        room = workspace(cutlass_abi.workspace_bytes(kernel, call))
    call.workspace, call.workspace_bytes = room.tensor.data_ptr(), room.span
    operands = [*inputs.values(), *(tensor for tensor, _ in outputs.values()), room]
    with runtime.on(target, schedule, allowed(operands)) as launches:
        cutlass_abi.run(kernel, call, 0)
    errors: dict[str, float] = {}
    infinities = True
    for name, (tensor, wanted) in outputs.items():
        got, finite = tensor.numbers(), wanted.isfinite()
        infinities &= bool(torch.equal(got.isfinite(), finite))
        difference = (got - wanted)[finite].square().mean().sqrt()
        errors[name] = float(difference / wanted[finite].square().mean().sqrt())
    written = [room, *(tensor for tensor, _ in outputs.values())]
    changed = sum(tensor.changed(output=True) for tensor in written)
    changed += sum(tensor.changed(output=False) for tensor in inputs.values())
    tensors = {name: tensor.tensor for name, (tensor, _) in outputs.items()}
    worst = share_of(case, {name: each.tensor for name, each in inputs.items()}, tensors)
    return Outcome(errors, infinities, worst, changed, launches)


def facts_of(case: Case) -> Attention:
    """Return a case as the project sees it."""
    names = {"bf16": "bfloat16", "f16": "float16", "e4m3": "float8_e4m3fn"}
    problem = attention(
        batch=case.batch,
        heads=case.heads,
        kv_heads=case.heads_kv,
        queries=case.queries,
        keys=case.keys,
        dim=case.dim,
        dtype=names[case.config.element],
        mask=Mask(case.left, case.right, case.bottom_right),
        backward=case.config.backward,
        scale=case.scale,
        lse=case.lse,
    )
    facts = attention_problem.facts_of(problem)
    assert isinstance(facts, Attention), facts
    return facts


class _EveryRow(Sampler):
    """A sampler that leaves no row out: the product samples 256 of them, since its attentions are larger."""

    def _picked(self, name: str, heads: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        for sequence, part in enumerate(self._split[name]):
            for head in range(heads):
                yield sequence, head, torch.arange(part.size(1))


_BEYOND_SAMPLE = 2.0
"""How much larger an error may be in a row that is not sampled, as in `attention.check.reference`."""


def share_of(
    case: Case, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> float:
    """Return the largest error of a number against the project's own float64, in units of what it accepts of that row.

    More than 1 is wrong. It is infinite where a number is not finite that has to be, or if the product does not accept the outputs.

    Args:
        case: The call.
        inputs: Its operands by name.
        outputs: What it has written, by name.
    """
    return share_of_facts(facts_of(case), inputs, outputs)


def share_of_facts(
    facts: Attention, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> float:
    """Return the same of an attention as the project sees it."""
    if Reference(facts, inputs).judge(outputs).reason:
        return torch.inf
    sampled = _worst(facts, Sampler(facts, inputs), inputs, outputs)
    return max(sampled, _worst(facts, _EveryRow(facts, inputs), inputs, outputs) / _BEYOND_SAMPLE)


def _worst(
    facts: Attention,
    sampler: Sampler,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
) -> float:
    """Return the largest error of the rows that a sampler picks, in units of what is accepted of a sampled one."""
    parts = list(sampler.queries())
    if facts.backward:
        parts += sampler.keys(exact_rows(facts, inputs)[1])
    worst = 0.0
    for part in (each for each in parts if each.output in outputs):
        tensor = outputs[part.output]
        bound = attention_bound(
            None,
            output_dtype=dtype_name(tensor.dtype),
            input_dtype=facts.dtype,
            reduction=facts.queries if part.output in ("dk", "dv") else facts.keys,
            tf32=False,
        )
        got = sequences(facts, part.output, tensor, {})[part.sequence][part.head, part.rows]
        errors = excess(got.double(), part.values, part.scale, bound.unit, 0.0)
        worst = max(worst, float(errors.max()) / bound.relative)
    return worst
