"""A product and its epilogue as one CUTLASS kernel: offered for a fusion, and generated if it wins.

Such a kernel is a torch operator with the epilogue's operands. Inductor's scheduler fuses the two
nodes as it would for Triton, so that the epilogue is not fused with another node; where it then asks
for the code of a template, the call of the operator is generated instead.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.virtualized import V

from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.inductor.candidates.cuda import at, build_of
from inductor_plugin.inductor.candidates.template_choice import why_not_wanted
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.operands import view_operand
from inductor_plugin.inductor.fusion.nodes import generated, operand_of
from inductor_plugin.inductor.fusion.offers import FusionOperands, StridedRead
from inductor_plugin.inductor.fusion.pair import Fusion
from inductor_plugin.inductor.fusion.visitors_split import EpilogueSplit, split_of
from inductor_plugin.inductor.native import declare_site
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem.epilogue import Access, Epilogue
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate, CudaSource, Failed
from inductor_plugin.templates.cutlass.fused import absorbed
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import CppBuild, TaskCandidate
from inductor_plugin.worker.jobs import BenchCandidate, Outcome

logger = logging.getLogger(__name__)

_PLAN = "_inductor_plugin_call"
_STOCK: dict[str, Any] = {}


@dataclass(frozen=True)
class VisitorKernel:
    """A kernel for one fusion, and one call of its operator.

    Attributes:
        candidate: The template's candidate.
        split: The part of the fusion it computes.
        kernel: The operator and the kernel's name and launch, which follow the operands.
        build: Build of its library.
        factors: A and B.
        reads: Buffers that the epilogue reads.
        aux: Names of the buffers it writes besides ``out``.
        out: Name of the buffer it writes last.
    """

    candidate: Candidate
    split: EpilogueSplit
    kernel: OpKernel
    build: CppBuild
    factors: tuple[Any, Any]
    reads: tuple[StridedRead, ...]
    aux: tuple[str, ...]
    out: str

    @property
    def kept_in_registers(self) -> tuple[str, ...]:
        """Names of buffers that are not written."""
        return tuple(name for name in self.split.written if name not in (*self.aux, self.out))


def kernels(fusion: Fusion) -> tuple[list[VisitorKernel], str]:
    """Return the kernels that compute a product and its epilogue, best first, or why there are none."""
    if reason := _why_no_call(fusion):
        return [], reason

    @functools.cache
    def offered(part: Epilogue) -> Sequence[Candidate] | str:
        return _candidates(fusion, part)

    def why_not(part: Epilogue) -> str | None:
        candidates = offered(part)
        return candidates if isinstance(candidates, str) else None

    split = split_of(fusion, why_not)
    if isinstance(split, str):
        return [], split
    if split.remainder:
        logger.debug("%s: visitors: %s", fusion.product.get_name(), split.reason)
    visitor_kernels: list[VisitorKernel] = []
    reason, whole = split.reason, absorbed(fusion.pending.ticket.problem, split.epilogue)
    candidates = offered(split.epilogue)
    assert not isinstance(candidates, str)
    for candidate in candidates:
        assert isinstance(candidate.kernel, CudaSource)
        built = build_of(candidate.kernel, candidate.template, fusion.config)
        if isinstance(built, Failed):
            reason = f"{candidate.template}: {built.reason}"
            break
        visitor_kernels.append(_kernel(fusion, candidate, split, whole, *built))
    return visitor_kernels, split.reason if visitor_kernels else reason


def _candidates(fusion: Fusion, epilogue: Epilogue) -> Sequence[Candidate] | str:
    """Return the kernels that templates have for a product and an epilogue, or why there are none."""
    if reason := _why_unreadable(fusion, epilogue):
        return reason
    problem = fusion.pending.ticket.problem
    candidates: list[Candidate] = []
    reason = "no template fuses epilogues"
    for template in default_registry().for_op(problem.op):
        make: Callable[..., Sequence[Candidate] | str] | None
        make = getattr(template, "with_epilogue", None)
        if make is None:
            continue
        offered = why_not_wanted(template, problem.op, fusion.config) or make(problem, epilogue)
        if isinstance(offered, str):
            reason = f"{template.name}: {offered}"
        else:
            candidates += offered
    return candidates or reason


def _why_no_call(fusion: Fusion) -> str | None:
    """Return why no call can be generated here, whatever the epilogue; None if one can."""
    if V.graph.cpp_wrapper or V.graph.aot_mode:
        return "the generated code is C++, which has no operator with an epilogue"
    if len(fusion.first.get_nodes()) > 1:
        return "a kernel of Triton with another epilogue is settled"
    return None


def _why_unreadable(fusion: Fusion, epilogue: Epilogue) -> str | None:
    """Return why the reads of an epilogue cannot be arguments of a call, None if they can."""
    if epilogue.product != "full":
        return "the product is read through a view"
    nodes = fusion.call.nodes
    added = [*nodes[: len(nodes) - 2], fusion.product]  # the product's own bias comes first
    steps = [step for node in added for step in (*node.get_stride(), node.get_layout().offset)]
    unknown = any(access.dynamic for access in (*epilogue.reads, *epilogue.writes))
    if unknown or any(getattr(step, "free_symbols", None) for step in steps):
        return "strides or offsets of what the epilogue reads are known only at run time"
    return None


def _kernel(
    fusion: Fusion,
    candidate: Candidate,
    split: EpilogueSplit,
    epilogue: Epilogue,
    build: CppBuild,
    kernel: OpKernel,
) -> VisitorKernel:
    """Return a kernel whose epilogue begins with the product's own bias."""
    nodes = [ir.InputsKernel.unwrap_storage_for_input(node) for node in fusion.call.nodes]
    added = len(nodes) - 2
    product = fusion.product.get_name()
    # The product is written, too, if other nodes read it.
    aux = [write.buffer or product for write in epilogue.writes[:-1]]
    aux += [product] if epilogue.readers else []
    reads = [
        _bias(fusion, nodes[0])
        if added and index == 0 and read.buffer == "bias"
        else _read(fusion, read)
        for index, read in enumerate(epilogue.reads)
    ]
    return VisitorKernel(
        candidate=candidate,
        split=split,
        kernel=kernel,
        build=build,
        factors=(nodes[added], nodes[added + 1]),
        reads=tuple(reads),
        aux=tuple(aux),
        out=epilogue.writes[-1].buffer,
    )


def _read(fusion: Fusion, access: Access) -> StridedRead:
    size = fusion.product.get_size()
    return _under(access.buffer, size, access.stride, access.offset)


def _bias(fusion: Fusion, node: Any) -> StridedRead:
    """Return the product's own bias, broadcast to D."""
    size = fusion.product.get_size()
    extents, strides = compat.hints(node.get_size()), compat.hints(node.get_stride())
    own = [0 if n == 1 else s for n, s in zip(extents, strides, strict=True)]
    stride = (*([0] * (len(size) - len(own))), *own)
    return _under(node.get_name(), size, stride, compat.hints([node.get_layout().offset])[0])


def _under(name: str, size: Sequence[Any], stride: Sequence[int], offset: int) -> StridedRead:
    touched = [extent if step else 1 for extent, step in zip(size, stride, strict=True)]
    return StridedRead(name, tuple(touched), compat.hints(touched), tuple(stride), offset)


def offer(fusion: Fusion, visitor: VisitorKernel, estimate: FusionEstimate) -> CandidateOffer:
    """Return a kernel as a candidate of a fusion.

    Args:
        fusion: The two nodes.
        visitor: The kernel.
        estimate: Its estimate from the kernel alone.
    """
    candidate, split = visitor.candidate, visitor.split
    config = json.dumps(dict(candidate.config), sort_keys=True)
    parts = (candidate.template, candidate.name, repr(visitor.kernel.args), config)
    text = "-".join((*parts, fusion.problem.epilogue))
    name, description = f"fused.{candidate.template}.{candidate.name}", candidate.description
    if split.remainder:
        name += "+rest"
        text += f"-{split.epilogue.signature}-{split.places}"
        description += (
            f", then a kernel for {len(split.remainder)} of {len(fusion.second.get_nodes())} nodes"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    identity = CandidateId(
        f"{name}-{digest}", name, "template", description, template=candidate.template
    )
    return CandidateOffer(
        identity, lambda own: _entry(fusion, visitor, TaskCandidate(own), estimate)
    )


def _entry(
    fusion: Fusion, visitor: VisitorKernel, entry: TaskCandidate, estimate: FusionEstimate
) -> TaskCandidate:
    """Prepare the operator, and the kernel of the remaining nodes after it."""
    seeds = fusion.call.seeds
    factors = [view_operand(factor, seeds) for factor in visitor.factors]
    reads = tuple(
        replace(read, source=operand_of(str(read.source), seeds)) for read in visitor.reads
    )
    remainder = visitor.split.remainder
    try:
        after = fusion.prepared(generated(fusion.scheduler, remainder)) if remainder else None
    except Exception as error:  # Inductor's own code; it concerns this candidate only
        why = f"Inductor cannot write the kernel of the rest: {type(error).__name__}: {error}"
        logger.debug("%s", why, exc_info=True)
        entry.outcome = Outcome(entry.candidate_id, "compile_failed", why)
        return entry

    def bench(library: str, symbol: str) -> BenchCandidate:
        kernel = at(visitor.kernel, library, symbol)
        operands = FusionOperands(fusion)
        arguments = (*factors, reads, *kernel.args, visitor.aux)
        operands.call(replace(kernel, args=()), arguments, visitor.out)
        if after is not None:
            operands.call(*after)
        return operands.candidate(entry.candidate_id)

    # No lower bound of its time: the time known is of the template's fastest configuration.
    entry.build, entry.bench, entry.judge = visitor.build, bench, estimate.why_not_compiled
    return entry


def settle(product: Any, visitor: VisitorKernel) -> None:
    """Make the call of a kernel the generated code of a product and of the nodes fused with it."""
    setattr(product, _PLAN, visitor)


def install() -> None:
    """Wrap Inductor's code generation of templates; products without a call are left to it."""
    if _STOCK:
        return
    stock = _STOCK["codegen_template"] = CUDACombinedScheduling.codegen_template

    @functools.wraps(stock)
    def codegen_template(
        scheduling: Any, template_node: Any, epilogue_nodes: Any, prologue_nodes: Any, **more: Any
    ) -> Any:
        visitor: VisitorKernel | None = getattr(template_node.node, _PLAN, None)
        if visitor is None:
            return stock(scheduling, template_node, epilogue_nodes, prologue_nodes, **more)
        _write(scheduling, visitor, [template_node, *epilogue_nodes])
        return None

    CUDACombinedScheduling.codegen_template = codegen_template  # type: ignore[method-assign]


def uninstall() -> None:
    """Put Inductor's own method back."""
    if _STOCK:
        CUDACombinedScheduling.codegen_template = _STOCK.pop("codegen_template")  # type: ignore[method-assign]


def _write(scheduling: Any, visitor: VisitorKernel, nodes: Sequence[Any]) -> None:
    """Generate the call of a kernel for its nodes, and the Triton kernel of the remaining nodes."""
    graph: Any = V.graph
    wrapper: Any = graph.wrapper_code
    names = {node.get_name() for node in visitor.split.remainder}
    remainder = [node for node in nodes if node.get_name() in names]
    graph.removed_buffers |= dict.fromkeys(visitor.kept_in_registers).keys()
    for node in nodes:
        if node not in remainder:
            node.mark_run()
    counts = len(visitor.reads), len(visitor.aux)
    site = declare_site(wrapper, visitor.out, visitor.kernel, *counts)
    shape: Callable[[Sequence[Any]], str] = wrapper.codegen_python_shape_tuple
    factors = [factor.codegen_reference() for factor in visitor.factors]
    reads = [
        f"reinterpret_tensor({r.source}, {shape(r.size)}, {shape(r.stride)}, {r.offset})"
        for r in visitor.reads
    ]
    arguments = [*factors, *reads, *visitor.aux, "None"]
    wrapper.writeline(f"{site}({', '.join(arguments)}, out={visitor.out})")
    if remainder:
        # Inductor allocates their outputs here, and then frees buffers that are not read any more.
        scheduling.codegen_node(FusedSchedulerNode(graph.scheduler, remainder))
    else:
        graph.scheduler.free_buffers()
