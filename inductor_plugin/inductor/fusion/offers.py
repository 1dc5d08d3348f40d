"""The candidates of a fusion: a product and its epilogue as two kernels, or as one."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch._inductor import ir

from inductor_plugin.cost.shortlist import Price
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.candidates.offers import offer_of
from inductor_plugin.inductor.facts.operands import output_tensor
from inductor_plugin.inductor.fusion.nodes import (
    Generated,
    compile_job,
    generated,
    module_kernel,
    operand_of,
)
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


@dataclass(frozen=True)
class Fusion:
    """Two scheduler nodes that may become one kernel.

    Attributes:
        scheduler: Inductor's scheduler.
        product: The product's buffer.
        first: The product's node, or that with what is fused behind it already.
        second: What stands behind.
        layout: Of the output that is compared.
        call: What the operands of the product are made from; its seeds serve for all operands.
    """

    scheduler: Any
    product: Any
    first: Any
    second: Any
    layout: ir.Layout
    call: AutotuneCall

    @functools.cached_property
    def written(self) -> dict[str, TensorSpec]:
        """What the two nodes write, by buffer; the one that is compared last."""
        nodes = (*self.first.get_nodes(), *self.second.get_nodes())
        layouts = {o.get_name(): o.node.get_layout() for node in nodes for o in node.get_outputs()}
        last = next(name for name in reversed(layouts) if layouts[name] is self.layout)
        order = [*(name for name in layouts if name != last), last]
        return {name: output_tensor(layouts[name]) for name in order}

    def prepared(self, made: Generated) -> tuple[ModuleKernel, list[Any]]:
        """Return a kernel that Inductor wrote and its arguments, tensors from outside as such."""
        arguments = [
            operand_of(one, self.call.seeds)
            if isinstance(one, str) and one not in self.written
            else one
            for one in made.arguments
        ]
        return module_kernel(made, self.layout.device), arguments


def unfused_offer(fusion: Fusion, settled: str | None, choice: Any) -> CandidateOffer:
    """Return the candidate that keeps two kernels; what is fused has to beat it.

    Args:
        fusion: The two nodes.
        settled: The candidate that is in ``first`` with an epilogue already; None for a bare product.
        choice: The product's kernel.
    """
    bare = offer_of(choice, fusion.call)
    name, description = f"{UNFUSED}.{bare.candidate_id}", f"{bare.name}, then its epilogue"
    identity = CandidateId(name, UNFUSED, "sequence", description, library=True)
    return CandidateOffer(identity, lambda own: _unfused(fusion, own, settled, choice, bare))


def fused_offer(
    fusion: Fusion,
    name: str,
    choice: Any,
    signature: str,
    price: Price,
) -> CandidateOffer:
    """Return the candidate that has the epilogue in the product's kernel.

    Its identity is that of the kernel and of the epilogue, so that nothing is generated where a
    record knows it; torch and Triton, which write and compile it, are part of the environment.

    Args:
        fusion: The two nodes.
        name: The product's kernel as a candidate.
        choice: The product's kernel.
        signature: The epilogue's.
        price: What it may cost, from the kernel alone.
    """
    family = f"fused.{choice.name.rsplit('_', 1)[0]}"
    digest = hashlib.sha256(f"{name} {signature}".encode()).hexdigest()[:12]
    identity = CandidateId(f"{family}-{digest}", family, "triton", str(choice.description))
    return CandidateOffer(identity, lambda own: _fused(fusion, own, choice, price))


@dataclass(frozen=True)
class Seen:
    """A tensor from outside as a kernel reads it: sizes, strides and offset along the product."""

    tensor: TensorSpec
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Operands:
    """The tensors of one candidate by their place: inputs, scratch, output."""

    fusion: Fusion
    inputs: list[TensorSpec] = field(default_factory=list[TensorSpec])
    parts: list[tuple[Single, list[Any], str | None]] = field(
        default_factory=list[tuple[Single, list[Any], "str | None"]]
    )

    def call(self, kernel: Single, arguments: Sequence[Any], out: str | None = None) -> None:
        """Add a kernel.

        Args:
            kernel: The kernel.
            arguments: Tensors from outside as such or as `Seen`, names of what the two nodes write,
                numbers and other texts, and tuples of those.
            out: Name of what it writes; None where its arguments say it.
        """
        for one in _flat(arguments):
            tensor = one.tensor if isinstance(one, Seen) else one
            if isinstance(tensor, TensorSpec) and tensor not in self.inputs:
                self.inputs.append(tensor)
        self.parts.append((kernel, list(arguments), out))

    def candidate(self, name: str) -> BenchCandidate:
        """Return the job argument of all kernels together."""
        *passed, last = self.fusion.written
        used = {
            one
            for _, arguments, out in self.parts
            for one in (*_flat(arguments), out)
            if isinstance(one, str)
        }
        order = [*(one for one in passed if one in used), last]
        places = {one: len(self.inputs) + index for index, one in enumerate(order)}
        parts = tuple(
            SequenceStep(
                kernel,
                tuple(self._place(one, places) for one in arguments),
                None if out is None else BufferRef(places[out]),
            )
            for kernel, arguments, out in self.parts
        )
        *scratch, output = (self.fusion.written[one] for one in order)
        kernel = SequenceKernel(parts, tuple(scratch))
        return BenchCandidate(name, kernel, tuple(self.inputs), output, self.fusion.call.timeout_s)

    def _place(self, one: Any, places: Mapping[str, int]) -> Argument:
        if isinstance(one, tuple):
            return tuple(self._place(inner, places) for inner in cast("tuple[Any, ...]", one))
        if isinstance(one, Seen):
            return BufferRef(self.inputs.index(one.tensor), one.size, one.stride, one.offset)
        if isinstance(one, TensorSpec):
            return BufferRef(self.inputs.index(one))
        return BufferRef(places[one]) if isinstance(one, str) and one in places else one


def _flat(arguments: Sequence[Any]) -> Iterator[Any]:
    """Return arguments one by one, those in tuples too."""
    for one in arguments:
        if isinstance(one, tuple):
            yield from _flat(cast("tuple[Any, ...]", one))
        else:
            yield one


def _unfused(
    fusion: Fusion, identity: CandidateId, settled: str | None, choice: Any, bare: CandidateOffer
) -> TaskCandidate:
    """Prepare the two kernels: the product's as it was measured, the other as Inductor writes it."""
    entry, name = TaskCandidate(identity), identity.candidate_id
    behind = fusion.prepared(generated(fusion.scheduler, fusion.second.get_nodes()))
    if settled is not None:
        with fusion.product.swap_as_triton_caller(choice):
            first = generated(fusion.scheduler, fusion.first.get_nodes())
        entry.bench = _bench(fusion, name, fusion.prepared(first), behind)
        return entry
    own = bare.entry()
    bench, product, _ = own.bench, fusion.product.get_name(), fusion.written
    if bench is None:
        return entry
    entry.build = own.build

    def both(library: str, symbol: str) -> BenchCandidate:
        candidate = bench(library, symbol)
        kernel: Any = candidate.kernel
        operands = Operands(fusion)
        operands.call(kernel, candidate.inputs, product)
        operands.call(*behind)
        return operands.candidate(name)

    entry.bench = both
    return entry


def _bench(
    fusion: Fusion, name: str, *kernels: tuple[ModuleKernel, list[Any]]
) -> Callable[[str, str], BenchCandidate]:
    """Return what gives the job argument of kernels that Inductor wrote; it is made here and now."""
    operands = Operands(fusion)
    for one in kernels:
        operands.call(*one)
    candidate = operands.candidate(name)
    return lambda _library, _symbol: candidate


def _fused(fusion: Fusion, identity: CandidateId, choice: Any, price: Price) -> TaskCandidate:
    """Prepare the one kernel."""
    entry = TaskCandidate(identity)
    nodes = (*fusion.first.get_nodes(), *fusion.second.get_nodes())
    with fusion.product.swap_as_triton_caller(choice):
        made = generated(fusion.scheduler, nodes)
    device, limit_s = fusion.layout.device, fusion.call.compile_timeout_s
    entry.build = compile_job(made, device, identity.name, limit_s)
    entry.judge, entry.least_ms = price.refused_compiled, price.least_ms()
    entry.bench = _bench(fusion, identity.candidate_id, fusion.prepared(made))
    return entry
