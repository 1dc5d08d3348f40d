"""A product and its epilogue as one CUTLASS kernel: offered for a fusion, and written if it wins.

Such a kernel is a torch operator with the epilogue's operands. Inductor's scheduler fuses the two
nodes as it would for Triton, so that nothing else takes the epilogue meanwhile; where it then asks for
the code of a template, the call of the operator is written instead.
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

from inductor_plugin.config import Config
from inductor_plugin.cost.shortlist import Price
from inductor_plugin.inductor.candidates.cuda import at, build_of
from inductor_plugin.inductor.candidates.template_choice import unwanted
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.operands import view_operand
from inductor_plugin.inductor.fusion.nodes import generated, operand_of
from inductor_plugin.inductor.fusion.offers import Fusion, Operands, Seen
from inductor_plugin.inductor.fusion.visitors_split import Cut, cut_of
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
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
class View:
    """A buffer as the kernel reads it: with strides along D, one element where it is the same.

    Attributes:
        name: The buffer.
        size: Extents; symbolic where D's are.
        hint: Extents as they were measured.
        stride: In elements.
        offset: In elements.
    """

    name: str
    size: tuple[Any, ...]
    hint: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Call:
    """One call of the operator.

    Attributes:
        kernel: The operator and the kernel's name and launch, which follow the operands.
        build: How its library is made.
        factors: A and B.
        reads: What the epilogue reads.
        aux: Names of what it writes besides ``out``.
        out: Name of the last of its writes.
        kept_in_registers: Names of buffers that are not written.
        left: Names of the nodes it does not take: Inductor's own kernel of them follows.
    """

    kernel: OpKernel
    build: CppBuild
    factors: tuple[Any, Any]
    reads: tuple[View, ...]
    aux: tuple[str, ...]
    out: str
    kept_in_registers: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class Evt:
    """A kernel for one fusion.

    Attributes:
        candidate: The template's.
        call: How it is called.
        cut: What it takes of the fusion.
    """

    candidate: Candidate
    call: Call
    cut: Cut


def kernels(
    fusion: Fusion, problem: Problem, epilogue: Epilogue, config: Config
) -> tuple[list[Evt], str]:
    """Return the kernels that compute a product and its epilogue, best first, or why there are none.

    Args:
        fusion: The two nodes.
        problem: The product alone.
        epilogue: What stands behind it.
        config: The options.
    """
    if reason := _unable(fusion):
        return [], reason

    @functools.cache
    def offered(part: Epilogue) -> Sequence[Candidate] | str:
        return _candidates(fusion, problem, part, config)

    def refused(part: Epilogue) -> str | None:
        found = offered(part)
        return found if isinstance(found, str) else None

    cut = cut_of(fusion, epilogue, refused)
    if isinstance(cut, str):
        return [], cut
    if cut.left:
        logger.debug("%s: visitors: %s", fusion.product.get_name(), cut.reason)
    found: list[Evt] = []
    reason, whole = cut.reason, absorbed(problem, cut.epilogue)
    chosen = offered(cut.epilogue)
    assert not isinstance(chosen, str)
    for candidate in chosen:
        assert isinstance(candidate.kernel, CudaSource)
        built = build_of(candidate.kernel, candidate.template, config)
        if isinstance(built, Failed):
            reason = f"{candidate.template}: {built.reason}"
            break
        found.append(Evt(candidate, _call(fusion, cut, whole, *built), cut))
    return found, cut.reason if found else reason


def _candidates(
    fusion: Fusion, problem: Problem, epilogue: Epilogue, config: Config
) -> Sequence[Candidate] | str:
    """Return the kernels that templates have for a product and an epilogue, or why there are none."""
    if reason := _unread(fusion, epilogue):
        return reason
    found: list[Candidate] = []
    reason = "no template fuses epilogues"
    for template in default_registry().for_op(problem.op):
        make: Callable[..., Sequence[Candidate] | str] | None
        make = getattr(template, "with_epilogue", None)
        if make is None:
            continue
        offered = unwanted(template, problem.op, config) or make(problem, epilogue)
        if isinstance(offered, str):
            reason = f"{template.name}: {offered}"
        else:
            found += offered
    return found or reason


def _unable(fusion: Fusion) -> str | None:
    """Return why no call can be written here, whatever the epilogue; None if one can."""
    if V.graph.cpp_wrapper or V.graph.aot_mode:
        return "the generated code is C++, which has no operator with an epilogue"
    if len(fusion.first.get_nodes()) > 1:
        return "a kernel of Triton with another epilogue is settled"
    return None


def _unread(fusion: Fusion, epilogue: Epilogue) -> str | None:
    """Return why no call can say what an epilogue reads, None if one can."""
    if epilogue.product != "full":
        return "the product is read through a view"
    nodes = fusion.call.nodes
    added = [*nodes[: len(nodes) - 2], fusion.product]  # what the product itself adds, first
    steps = [step for one in added for step in (*one.get_stride(), one.get_layout().offset)]
    unknown = any(one.dynamic for one in (*epilogue.reads, *epilogue.writes))
    if unknown or any(getattr(one, "free_symbols", None) for one in steps):
        return "strides or offsets of what the epilogue reads are known only at run time"
    return None


def _call(fusion: Fusion, cut: Cut, epilogue: Epilogue, build: CppBuild, kernel: OpKernel) -> Call:
    """Return the call of a kernel whose epilogue begins with what the product itself adds."""
    nodes = [ir.InputsKernel.unwrap_storage_for_input(one) for one in fusion.call.nodes]
    added = len(nodes) - 2
    product = fusion.product.get_name()
    # What others read of the product is written too.
    aux = [one.buffer or product for one in epilogue.writes[:-1]]
    aux += [product] if epilogue.readers else []
    out = epilogue.writes[-1].buffer
    views = [
        _bias(fusion, nodes[0])
        if added and index == 0 and one.buffer == "bias"
        else _view(fusion, one)
        for index, one in enumerate(epilogue.reads)
    ]
    return Call(
        kernel=kernel,
        build=build,
        factors=(nodes[added], nodes[added + 1]),
        reads=tuple(views),
        aux=tuple(aux),
        out=out,
        kept_in_registers=tuple(n for n in cut.written if n not in (*aux, out)),
        left=tuple(one.get_name() for one in cut.left),
    )


def _view(fusion: Fusion, access: Access) -> View:
    size = fusion.product.get_size()
    return _under(access.buffer, size, access.stride, access.offset)


def _bias(fusion: Fusion, node: Any) -> View:
    """Return what the product itself adds as it lies under D."""
    size = fusion.product.get_size()
    extents, strides = compat.hints(node.get_size()), compat.hints(node.get_stride())
    known = [0 if n == 1 else s for n, s in zip(extents, strides, strict=True)]
    stride = (*([0] * (len(size) - len(known))), *known)
    return _under(node.get_name(), size, stride, compat.hints([node.get_layout().offset])[0])


def _under(name: str, size: Sequence[Any], stride: Sequence[int], offset: int) -> View:
    taken = [extent if step else 1 for extent, step in zip(size, stride, strict=True)]
    return View(name, tuple(taken), compat.hints(taken), tuple(stride), offset)


def offer(fusion: Fusion, evt: Evt, signature: str, price: Price) -> CandidateOffer:
    """Return a kernel as a candidate of a fusion.

    Args:
        fusion: The two nodes.
        evt: The kernel.
        signature: The epilogue's.
        price: What it may cost, from the kernel alone.
    """
    candidate, kernel, cut = evt.candidate, evt.call.kernel, evt.cut
    config = json.dumps(dict(candidate.config), sort_keys=True)
    text = f"{candidate.template}-{candidate.name}-{kernel.args!r}-{config}-{signature}"
    name, description = f"fused.{candidate.template}.{candidate.name}", candidate.description
    if cut.left:
        name += "+rest"
        text += f"-{cut.epilogue.signature}-{cut.places}"
        description += (
            f", then a kernel for {len(cut.left)} of {len(fusion.second.get_nodes())} nodes"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    identity = CandidateId(f"{name}-{digest}", name, "template", description)
    return CandidateOffer(identity, lambda own: _entry(fusion, evt, TaskCandidate(own), price))


def _entry(fusion: Fusion, evt: Evt, entry: TaskCandidate, price: Price) -> TaskCandidate:
    """Prepare the operator, and behind it the kernel of what it does not take."""
    call, seeds = evt.call, fusion.call.seeds
    factors = [view_operand(one, seeds) for one in call.factors]
    reads = tuple(
        Seen(operand_of(one.name, seeds), one.hint, one.stride, one.offset) for one in call.reads
    )
    left = evt.cut.left
    try:
        behind = fusion.prepared(generated(fusion.scheduler, left)) if left else None
    except Exception as error:  # Inductor's own code; the other candidates are none the worse
        why = f"Inductor cannot write the kernel of the rest: {type(error).__name__}: {error}"
        logger.debug("%s", why, exc_info=True)
        entry.outcome = Outcome(entry.candidate_id, "compile_failed", why)
        return entry

    def bench(library: str, symbol: str) -> BenchCandidate:
        kernel = at(call.kernel, library, symbol)
        operands = Operands(fusion)
        arguments = (*factors, reads, *kernel.args, call.aux)
        operands.call(replace(kernel, args=()), arguments, call.out)
        if behind is not None:
            operands.call(*behind)
        return operands.candidate(entry.candidate_id)

    # No least time: that of the plain kernel is its template's fastest, maybe another configuration.
    entry.build, entry.bench, entry.judge = call.build, bench, price.refused_compiled
    return entry


def settle(product: Any, evt: Evt) -> None:
    """Let a product's code, and that of what is fused with it, be the call of a kernel."""
    setattr(product, _PLAN, evt.call)


def install() -> None:
    """Put our writer before Inductor's; it leaves to that what it has no call for."""
    if _STOCK:
        return
    stock = _STOCK["codegen_template"] = CUDACombinedScheduling.codegen_template

    @functools.wraps(stock)
    def codegen_template(
        scheduling: Any, template_node: Any, epilogue_nodes: Any, prologue_nodes: Any, **more: Any
    ) -> Any:
        call: Call | None = getattr(template_node.node, _PLAN, None)
        if call is None:
            return stock(scheduling, template_node, epilogue_nodes, prologue_nodes, **more)
        _write(scheduling, call, [template_node, *epilogue_nodes])
        return None

    CUDACombinedScheduling.codegen_template = codegen_template  # type: ignore[method-assign]


def uninstall() -> None:
    """Put Inductor's own writer back."""
    if _STOCK:
        CUDACombinedScheduling.codegen_template = _STOCK.pop("codegen_template")  # type: ignore[method-assign]


def _write(scheduling: Any, call: Call, nodes: Sequence[Any]) -> None:
    """Write the call of a kernel where its nodes run, and the kernel of those it does not take."""
    graph: Any = V.graph
    wrapper: Any = graph.wrapper_code
    left = [one for one in nodes if one.get_name() in call.left]
    graph.removed_buffers |= dict.fromkeys(call.kept_in_registers).keys()
    for node in nodes:
        if node not in left:
            node.mark_run()
    for name in call.kernel.imports:
        wrapper.add_import_once(f"import {name}")
    shape: Callable[[Sequence[Any]], str] = wrapper.codegen_python_shape_tuple
    factors = [one.codegen_reference() for one in call.factors]
    reads = [
        f"reinterpret_tensor({v.name}, {shape(v.size)}, {shape(v.stride)}, {v.offset})"
        for v in call.reads
    ]
    arguments = [
        *factors,
        f"[{', '.join(reads)}]",
        *map(repr, call.kernel.args),
        f"[{', '.join(call.aux)}]",
    ]
    operator = f"torch.ops.{call.kernel.op.replace('::', '.')}"
    wrapper.writeline(f"{operator}({', '.join(arguments)}, out={call.out})")
    if left:
        # Inductor allocates what they write here, and frees behind it what nobody reads any more.
        scheduling.codegen_node(FusedSchedulerNode(graph.scheduler, left))
    else:
        graph.scheduler.free_buffers()
