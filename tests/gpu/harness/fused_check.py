"""What a benchmark worker does with one CUTLASS kernel and its epilogue: run it in every way, and compare.

Plain between guard zones, on another stream, in a CUDA graph that is replayed with other inputs, and
with the library gone, where torch computes the same.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from inductor_plugin.ops import gemm_epilogue
from inductor_plugin.worker.child import operands as operand
from tests.gpu.harness.check import error_of, load, made
from tests.gpu.harness.fused_cases import ACCEPTED, FusedCase
from tests.gpu.harness.fused_offers import WrittenCall, fused_case

GONE = f"gone@{'0' * 64}"
"""A kernel nobody has built."""
_REPLAYS = 2
Operator = Callable[..., Any]


@dataclass(frozen=True)
class FusedReport:
    """How one kernel fared; each error is the largest over what it writes, as a part of what is accepted.

    Attributes:
        plain: Error of a plain call.
        stream: Error of a call on another stream; None where there are no streams.
        graph: Largest error of a replayed CUDA graph.
        gone: Error where the library is gone.
        apart: How far the kernel and what stands in for it are apart.
        overrun: What was written outside of the outputs; empty if nothing was.
    """

    plain: float
    stream: float | None
    graph: float | None
    gone: float
    apart: float
    overrun: str

    @property
    def good(self) -> bool:
        """Whether all of it is right; kernel and stand-in may each be off by what is accepted."""
        errors = [self.plain, self.stream or 0.0, self.graph or 0.0, self.gone, self.apart / 2]
        return not self.overrun and all(one <= 1.0 for one in errors)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def checked(identity: str, call: WrittenCall, device: str = "cuda:0") -> FusedReport:
    """Run one kernel of a case in every way; called in a benchmark worker."""
    given = fused_case(identity)
    operator = torch.ops.inductor_plugin.cutlass_mm_epilogue.out
    return checked_with(operator, given, call, device)


def checked_with(
    operator: Operator, given: FusedCase, call: WrittenCall, device: str
) -> FusedReport:
    """Run a case by way of an operator; tests without a GPU give one of their own."""
    tensors = made(given.specs, device, seed=1)
    expected = given.expected(tensors)
    outputs = Outputs(call, device)
    run(operator, call, tensors, outputs)
    found = outputs.returned()
    stand_in = Outputs(call, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the library is gone
        run(operator, replace(call, kernel=GONE), tensors, stand_in)
    on_gpu = device.startswith("cuda")
    return FusedReport(
        plain=worst(found, expected),
        stream=_on_a_stream(operator, given, call, device) if on_gpu else None,
        graph=_in_a_graph(operator, given, call, device) if on_gpu else None,
        gone=worst(stand_in.returned(), expected),
        apart=worst(stand_in.returned(), found),
        overrun="; ".join(filter(None, (outputs.overrun(), stand_in.overrun()))),
    )


class Outputs:
    """What a call writes, each between guard zones and full of what is not a number."""

    def __init__(self, call: WrittenCall, device: str) -> None:
        """Allocate what the call writes."""
        self._call = call
        self._guarded = {
            name: operand.Guarded(replace(spec, device=device)) for name, spec in call.buffers
        }
        self.named = {name: one.tensor for name, one in self._guarded.items()}

    def returned(self) -> tuple[torch.Tensor, ...]:
        """Return what the graph returns, in its order."""
        return tuple(self.named[one] for one in self._call.returned)

    def overrun(self) -> str:
        """Return what was written outside; empty if nothing was."""
        found = {name: one.overrun() for name, one in self._guarded.items()}
        return "; ".join(f"{name}: {what}" for name, what in found.items() if what)


def run(
    operator: Operator, call: WrittenCall, tensors: Sequence[torch.Tensor], outputs: Outputs
) -> None:
    """Run a call as it is written."""
    space: dict[str, Any] = dict(zip(call.names, tensors, strict=True))
    space |= {"reinterpret_tensor": _seen_as, **outputs.named}
    a, b, operands = (eval(one, space) for one in (call.a, call.b, call.operands))
    aux = [outputs.named[one] for one in call.aux]
    operator(a, b, operands, call.kernel, *call.launch, aux, out=outputs.named[call.out])


def _seen_as(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """Return what Inductor's ``reinterpret_tensor`` does: the offset counts from the tensor's own."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def worst(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest error, as a part of what is accepted of its type."""
    errors = [
        error_of(one, other) / ACCEPTED[one.dtype]
        for one, other in zip(found, expected, strict=True)
    ]
    return max(errors)


def on_a_cpu(
    a: torch.Tensor, b: torch.Tensor, operands: Any, *others: Any, out: torch.Tensor
) -> None:
    """Compute what the operator computes where its library is gone; without a GPU, too."""
    size = (*a.shape[:-1], b.shape[-1])
    *_, epilogue, aux = others
    beside = [one.view(size) for one in aux]
    stand_in: Any = getattr(gemm_epilogue, "_library")  # noqa: B009
    stand_in(a, b, operands, epilogue, beside, out.view(size))


def _on_a_stream(operator: Operator, given: FusedCase, call: WrittenCall, device: str) -> float:
    """Call it on a stream behind slow work that brings its inputs: elsewhere it comes too early."""
    own, other = made(given.specs, device, seed=1), made(given.specs, device, seed=2)
    outputs = Outputs(call, device)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        cuda: Any = torch.cuda
        cuda._sleep(50_000_000)  # cycles, about 25 ms
        load(own, other)
        run(operator, call, own, outputs)
    stream.synchronize()
    return worst(outputs.returned(), given.expected(other))


def _in_a_graph(operator: Operator, given: FusedCase, call: WrittenCall, device: str) -> float:
    """Capture a call and replay it with other inputs; return the largest error of the replays."""
    own, outputs = made(given.specs, device, seed=1), Outputs(call, device)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        run(operator, call, own, outputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run(operator, call, own, outputs)
    largest = 0.0
    for replay in range(_REPLAYS):
        tensors = made(given.specs, device, seed=3 + replay)
        load(own, tensors)
        for one in outputs.named.values():
            one.view(torch.uint8).fill_(0xFF)
        graph.replay()
        torch.cuda.synchronize()
        largest = max(largest, worst(outputs.returned(), given.expected(tensors)))
    return largest
