"""A product and its epilogue as one CUTLASS kernel: offered for a fusion, and written if it wins.

Such a kernel is a torch operator with the epilogue's operands. Inductor's scheduler fuses the two
nodes as it would for Triton, so that nothing else takes the epilogue meanwhile; where it then asks for
the code of a template, the call of the operator is written instead.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.virtualized import V

from inductor_plugin import compat
from inductor_plugin.config import Config
from inductor_plugin.epilogue import Access, Epilogue
from inductor_plugin.fusion import Price
from inductor_plugin.jobs import BenchCandidate, Buffer, OpKernel, Part, SequenceKernel, Tensor
from inductor_plugin.lowering_cuda import at, build_of
from inductor_plugin.lowering_fusion_code import operand_of
from inductor_plugin.lowering_fusion_offer import Fusion
from inductor_plugin.lowering_problem import view_operand
from inductor_plugin.lowering_template import unwanted
from inductor_plugin.offer import Offer
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.task import CppBuild, Entry
from inductor_plugin.template import Candidate, CudaSource, Failed
from inductor_plugin.templates.cutlass_fused import absorbed

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
    """

    kernel: OpKernel
    build: CppBuild
    factors: tuple[Any, Any]
    reads: tuple[View, ...]
    aux: tuple[str, ...]
    out: str
    kept_in_registers: tuple[str, ...]


@dataclass(frozen=True)
class Evt:
    """A kernel for one fusion.

    Attributes:
        candidate: The template's.
        call: How it is called.
    """

    candidate: Candidate
    call: Call


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
    if reason := _unable(fusion, epilogue):
        return [], reason
    found: list[Evt] = []
    reason = "no template fuses epilogues"
    for template in default_registry().for_op(problem.op):
        make: Callable[..., Sequence[Candidate] | str] | None
        make = getattr(template, "with_epilogue", None)
        if make is None:
            continue
        refused = unwanted(template, problem.op, config)
        offered = refused or make(problem, epilogue)
        if isinstance(offered, str):
            reason = f"{template.name}: {offered}"
            continue
        whole = absorbed(problem, epilogue)
        for candidate in offered:
            assert isinstance(candidate.kernel, CudaSource)
            built = build_of(candidate.kernel, candidate.template, config)
            if isinstance(built, Failed):
                reason = f"{template.name}: {built.reason}"
                break
            found.append(Evt(candidate, _call(fusion, whole, *built)))
    return found, "" if found else reason


def _unable(fusion: Fusion, epilogue: Epilogue) -> str | None:
    """Return why no call can be written here, None if one can."""
    if V.graph.cpp_wrapper or V.graph.aot_mode:
        return "the generated code is C++, which has no operator with an epilogue"
    if len(fusion.first.get_nodes()) > 1:
        return "a kernel of Triton with another epilogue is settled"
    if epilogue.product != "full":
        return "the product is read through a view"
    nodes = fusion.call.nodes
    added = [*nodes[: len(nodes) - 2], fusion.product]  # what the product itself adds, first
    steps = [step for one in added for step in (*one.get_stride(), one.get_layout().offset)]
    unknown = any(one.dynamic for one in (*epilogue.reads, *epilogue.writes))
    if unknown or any(getattr(one, "free_symbols", None) for one in steps):
        return "strides or offsets of what the epilogue reads are known only at run time"
    return None


def _call(fusion: Fusion, epilogue: Epilogue, build: CppBuild, kernel: OpKernel) -> Call:
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
        kept_in_registers=tuple(n for n in fusion.written if n not in (*aux, out)),
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


def offer(fusion: Fusion, evt: Evt, signature: str, price: Price) -> Offer:
    """Return a kernel as a candidate of a fusion.

    Args:
        fusion: The two nodes.
        evt: The kernel.
        signature: The epilogue's.
        price: What it may cost, from the kernel alone.
    """
    candidate, kernel = evt.candidate, evt.call.kernel
    config = json.dumps(dict(candidate.config), sort_keys=True)
    text = f"{candidate.template}-{candidate.name}-{kernel.args!r}-{config}-{signature}"
    name = f"fused.{candidate.template}.{candidate.name}"
    identity = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return Offer(
        candidate_id=identity,
        name=name,
        kind="template",
        description=candidate.description,
        library=False,
        make_entry=lambda: _entry(fusion, evt, identity, name, price),
    )


def _entry(fusion: Fusion, evt: Evt, identity: str, name: str, price: Price) -> Entry:
    call = evt.call
    seeds = fusion.call.seeds
    inputs: list[Tensor] = []

    def placed(spec: Tensor) -> int:
        if spec not in inputs:
            inputs.append(spec)
        return inputs.index(spec)

    factors = [Buffer(placed(view_operand(one, seeds))) for one in call.factors]
    reads = [
        Buffer(placed(operand_of(one.name, seeds)), one.hint, one.stride, one.offset)
        for one in call.reads
    ]
    aux = [Buffer(len(inputs) + index) for index in range(len(call.aux))]
    out = Buffer(len(inputs) + len(aux))
    scratch = tuple(fusion.written[one] for one in call.aux)
    output = fusion.written[call.out]

    def bench(library: str, symbol: str) -> BenchCandidate:
        kernel = at(call.kernel, library, symbol)
        arguments = (*factors, tuple(reads), *kernel.args, tuple(aux))
        part = Part(replace(kernel, args=()), arguments, out)
        sequence = SequenceKernel((part,), scratch)
        return BenchCandidate(identity, sequence, tuple(inputs), output, fusion.call.timeout_s)

    entry = Entry(identity, name, "template", evt.candidate.description, library=False)
    entry.build, entry.bench = call.build, bench
    entry.judge, entry.least_ms = price.refused_compiled, price.least_ms()
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
        _write(call, [template_node, *epilogue_nodes])
        return None

    CUDACombinedScheduling.codegen_template = codegen_template  # type: ignore[method-assign]


def uninstall() -> None:
    """Put Inductor's own writer back."""
    if _STOCK:
        CUDACombinedScheduling.codegen_template = _STOCK.pop("codegen_template")  # type: ignore[method-assign]


def _write(call: Call, nodes: Sequence[Any]) -> None:
    """Write the call of a kernel where its nodes run."""
    graph: Any = V.graph
    wrapper: Any = graph.wrapper_code
    graph.removed_buffers |= dict.fromkeys(call.kept_in_registers).keys()
    for node in nodes:
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
    graph.scheduler.free_buffers()
