"""The candidates of a fusion: a product and its epilogue as two kernels, or as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.inductor.candidates.offers import offer_of, template_of
from inductor_plugin.inductor.fusion.nodes import compile_job, generated
from inductor_plugin.inductor.fusion.pair import Fusion
from inductor_plugin.kernels.call import (
    Argument,
    BufferRef,
    ModuleKernel,
    SequenceKernel,
    SequenceStep,
    Single,
    TensorSpec,
)
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.worker.jobs import BenchCandidate

UNFUSED = "unfused"


def unfused_offer(fusion: Fusion, settled: str | None, choice: Any) -> CandidateOffer:
    """Return the candidate that keeps two kernels; a fused candidate has to beat it.

    Args:
        fusion: The two nodes.
        settled: The candidate that ``first`` already contains with an epilogue; None for a bare product.
        choice: The product's kernel.
    """
    bare = offer_of(choice, fusion.call)
    name, description = f"{UNFUSED}.{bare.candidate_id}", f"{bare.name}, then its epilogue"
    identity = CandidateId(name, UNFUSED, "sequence", description, library=True)
    return CandidateOffer(identity, lambda own: _unfused(fusion, own, settled, choice, bare))


def fused_offer(fusion: Fusion, name: str, choice: Any, estimate: FusionEstimate) -> CandidateOffer:
    """Return the candidate that has the epilogue in the product's kernel.

    Its identity consists of those of the kernel and the epilogue, so that no code is generated if a
    record has it; the versions of torch and Triton are part of the environment.

    Args:
        fusion: The two nodes.
        name: Candidate id of the product's kernel.
        choice: The product's kernel.
        estimate: Its estimate from the kernel alone.
    """
    family = f"fused.{choice.name.rsplit('_', 1)[0]}"
    digest = hashlib.sha256(f"{name} {fusion.problem.epilogue}".encode()).hexdigest()[:12]
    description, template = str(choice.description), template_of(choice)
    identity = CandidateId(f"{family}-{digest}", family, "triton", description, template=template)
    return CandidateOffer(identity, lambda own: _fused(fusion, own, choice, estimate))


@dataclass(frozen=True)
class StridedRead:
    """A buffer as a kernel reads it: with strides along the product, extent 1 where it is broadcast.

    Attributes:
        source: The buffer's name, or its tensor.
        size: Extents; symbolic where the product's are.
        hint: Extents at which it is measured.
        stride: Strides in elements.
        offset: Offset in elements.
    """

    source: str | TensorSpec
    size: tuple[Any, ...]
    hint: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class FusionOperands:
    """The tensors of one candidate by position: inputs, scratch, output."""

    fusion: Fusion
    inputs: list[TensorSpec] = field(default_factory=list[TensorSpec])
    parts: list[tuple[Single, list[Any], str | None]] = field(
        default_factory=list[tuple[Single, list[Any], "str | None"]]
    )

    def call(self, kernel: Single, arguments: Sequence[Any], out: str | None = None) -> None:
        """Add a kernel.

        Args:
            kernel: The kernel.
            arguments: Input tensors or `StridedRead` of them, names of buffers the two nodes write,
                numbers, other strings, and tuples of those.
            out: Name of the buffer it writes; None if the buffer is among the arguments.
        """
        for argument in _flat(arguments):
            tensor = argument.source if isinstance(argument, StridedRead) else argument
            if isinstance(tensor, TensorSpec) and tensor not in self.inputs:
                self.inputs.append(tensor)
        self.parts.append((kernel, list(arguments), out))

    def candidate(self, name: str) -> BenchCandidate:
        """Return all kernels together as a candidate of a benchmark job."""
        *passed, last = self.fusion.written
        used = {
            argument
            for _, arguments, out in self.parts
            for argument in (*_flat(arguments), out)
            if isinstance(argument, str)
        }
        order = [*(buffer for buffer in passed if buffer in used), last]
        places = {buffer: len(self.inputs) + index for index, buffer in enumerate(order)}
        parts = tuple(
            SequenceStep(
                kernel,
                tuple(self._place(argument, places) for argument in arguments),
                None if out is None else BufferRef(places[out]),
            )
            for kernel, arguments, out in self.parts
        )
        *scratch, output = (self.fusion.written[buffer] for buffer in order)
        kernel = SequenceKernel(parts, tuple(scratch), tuple(order[:-1]))
        return BenchCandidate(name, kernel, tuple(self.inputs), output, self.fusion.call.timeout_s)

    def _place(self, argument: Any, places: Mapping[str, int]) -> Argument:
        if isinstance(argument, tuple):
            inner = cast("tuple[Any, ...]", argument)
            return tuple(self._place(part, places) for part in inner)
        if isinstance(argument, StridedRead):
            index = self.inputs.index(cast("TensorSpec", argument.source))
            return BufferRef(index, argument.hint, argument.stride, argument.offset)
        if isinstance(argument, TensorSpec):
            return BufferRef(self.inputs.index(argument))
        named = isinstance(argument, str) and argument in places
        return BufferRef(places[argument]) if named else argument


def _flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """Yield arguments without nesting."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(cast("tuple[Any, ...]", argument))
        else:
            yield argument


def _unfused(
    fusion: Fusion, identity: CandidateId, settled: str | None, choice: Any, bare: CandidateOffer
) -> TaskCandidate:
    """Prepare the two kernels: the product's as it was measured, the other as Inductor generates it."""
    entry, name = TaskCandidate(identity), identity.candidate_id
    second = fusion.prepared(generated(fusion.scheduler, fusion.second.get_nodes()))
    if settled is not None:
        with fusion.product.swap_as_triton_caller(choice):
            first = generated(fusion.scheduler, fusion.first.get_nodes())
        entry.bench = _bench(fusion, name, fusion.prepared(first), second)
        return entry
    own = bare.entry()
    bench, product, _ = own.bench, fusion.product.get_name(), fusion.written
    if bench is None:
        return entry
    entry.build = own.build

    def both(library: str, symbol: str) -> BenchCandidate:
        candidate = bench(library, symbol)
        kernel: Any = candidate.kernel
        operands = FusionOperands(fusion)
        operands.call(kernel, candidate.inputs, product)
        operands.call(*second)
        return operands.candidate(name)

    entry.bench = both
    return entry


def _bench(
    fusion: Fusion, name: str, *kernels: tuple[ModuleKernel, list[Any]]
) -> Callable[[str, str], BenchCandidate]:
    """Return a function that returns the benchmark candidate of kernels that Inductor generated."""
    operands = FusionOperands(fusion)
    for kernel in kernels:
        operands.call(*kernel)
    candidate = operands.candidate(name)
    return lambda _library, _symbol: candidate


def _fused(
    fusion: Fusion, identity: CandidateId, choice: Any, estimate: FusionEstimate
) -> TaskCandidate:
    """Prepare the fused kernel."""
    entry = TaskCandidate(identity)
    nodes = (*fusion.first.get_nodes(), *fusion.second.get_nodes())
    with fusion.product.swap_as_triton_caller(choice):
        kernel = generated(fusion.scheduler, nodes)
    device, limit_s = fusion.layout.device, fusion.call.compile_timeout_s
    entry.build = compile_job(kernel, device, identity.name, limit_s)
    entry.judge, entry.least_ms = estimate.why_not_compiled, estimate.least_ms()
    entry.bench = _bench(fusion, identity.candidate_id, fusion.prepared(kernel))
    return entry
