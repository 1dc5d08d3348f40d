"""Inductor's choices as offers: only the identity at first; costly parts only for new candidates."""

from __future__ import annotations

import functools
import hashlib
import itertools
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import select_algorithm
from torch._inductor.codegen.cpp_template_kernel import CppTemplateCaller

from inductor_plugin.cache import KernelKey
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.candidates.cuda import at
from inductor_plugin.inductor.candidates.decompose_k import FAMILY, parts_of
from inductor_plugin.inductor.candidates.template_choice import OFFERED_BY, TemplateChoice
from inductor_plugin.inductor.facts.operands import Operands, output_tensor, sizes_kept
from inductor_plugin.inductor.facts.problem import constant
from inductor_plugin.inductor.facts.toolchain import (
    triton_kernel_key,
    triton_target,
    triton_variables,
    with_header,
    without_device_index,
)
from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    OpKernel,
    RequestKernel,
    TensorSpec,
)
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.ops import decompose_k
from inductor_plugin.tuning.candidate import CandidateId
from inductor_plugin.tuning.offer import CandidateOffer
from inductor_plugin.tuning.task import CppBuild, TaskCandidate
from inductor_plugin.worker.child.operands import build as build_tensor
from inductor_plugin.worker.jobs import BenchCandidate, TritonCompileJob

_INDUCTOR_META = re.compile(r"^ *inductor_meta=\{.*\},?$", re.MULTILINE)
_PACKINGS = {
    "_mkl_linear": "mkl_linear",
    "_linear_pointwise": "mkldnn_linear",
    "_linear_pointwise.binary": "mkldnn_linear",
    "qlinear_pointwise": "onednn_qlinear",
    "qlinear_pointwise.binary": "onednn_qlinear",
}
"""How the worker packs the weight of a library kernel, by its name in Inductor's `extern_kernels`."""


def unwrapped(choice: Any) -> Any:
    """Return the choice inside Inductor's data-processing wrapper."""
    wrapper: Any = select_algorithm.DataProcessorChoiceCallerWrapper
    return choice._wrapped if isinstance(choice, wrapper) else choice


def is_library(choice: Any) -> bool:
    """Return True for a library kernel (ATen, oneDNN, MKL) that stock Inductor would offer."""
    extern: Any = select_algorithm.ExternKernelCaller
    inner = unwrapped(choice)
    return isinstance(inner, extern) and getattr(inner, "stock", True)


def is_cpp(choice: Any) -> bool:
    """Return True for a kernel of Inductor's C++ templates."""
    return isinstance(unwrapped(choice), CppTemplateCaller)


def why_not_measurable(choice: Any) -> str | None:
    """Return why the plugin cannot measure a choice, or None if it can."""
    inner = unwrapped(choice)
    measurable = (
        select_algorithm.ExternKernelCaller,
        CppTemplateCaller,
        select_algorithm.TritonTemplateCaller,
        TemplateChoice,
    )
    if isinstance(inner, measurable) or parts_of(inner) is not None:
        return None
    return f"{type(inner).__name__} choices are measured by Inductor itself"


def why_not_repacked(nodes: Sequence[Any], bias: int | None = None) -> str | None:
    """Return why Inductor's C++ templates would misread a frozen weight, None if they would not.

    To repack a weight, they (torch 2.11-2.15) look up the constant by name and view it by sizes and strides: a
    slice is packed as if it began at offset 0. Without an offset a view is packed rightly.

    Args:
        nodes: The call's operands.
        bias: Index of the bias, which is read as it is; None if there is none.
    """
    for index, node in enumerate(nodes):
        value = constant(node) if index != bias else None
        if value is not None and value.layout is torch.strided and value.storage_offset():
            return f"Inductor's C++ template would not see the offset of {node.get_name()}"
    return None


def scalars_of(choices: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return the scalar arguments of a call, taken from its library kernel."""
    for choice in filter(is_library, choices):
        scalars: dict[str, Any] = unwrapped(choice).kwargs
        return tuple((name, repr(value)) for name, value in sorted(scalars.items()))
    return ()


def offer_of(choice: Any, call: AutotuneCall) -> CandidateOffer:
    """Return a choice as an offer.

    Raises:
        TypeError: `why_not_measurable` returns a reason for it.
    """
    inner = unwrapped(choice)
    if isinstance(inner, select_algorithm.ExternKernelCaller):
        identity = _identity(inner.name, "extern", inner.hash_key(), library=is_library(inner))
        return CandidateOffer(identity, lambda identity: _extern_candidate(identity, inner, call))
    if isinstance(inner, CppTemplateCaller):
        key = f"{inner.hash_key()}-{call.toolchain().digest}"
        identity = _identity(f"cpp_{inner.category}", "cpp", key, str(inner.description))
        return CandidateOffer(
            identity, lambda identity: _cpp_candidate(identity, choice, inner, call)
        )
    if isinstance(inner, select_algorithm.TritonTemplateCaller):
        name, key = inner.name.rsplit("_", 1)[0], _triton_key(inner)
        identity = _identity(name, "triton", key, str(inner.description), template_of(inner))
        return CandidateOffer(identity, lambda identity: _triton_candidate(identity, inner, call))
    if isinstance(inner, TemplateChoice):
        key, template = inner.hash_key(), template_of(inner)
        identity = _identity(inner.name, "template", key, inner.description, template)
        return CandidateOffer(identity, lambda identity: _template_candidate(identity, inner, call))
    parts = parts_of(inner)
    if parts is not None:
        name = f"{FAMILY}_{parts}"
        identity = _identity(name, "subgraph", f"{FAMILY}-{parts}", f"K in {parts} parts")
        return CandidateOffer(
            identity, lambda identity: _decomposed_candidate(identity, parts, call)
        )
    raise TypeError(f"{type(inner).__name__} is not a choice the plugin measures")


def template_of(choice: Any) -> str:
    """Return the registered template that offers a choice, empty for a choice of Inductor's."""
    return getattr(unwrapped(choice), OFFERED_BY, "")


def candidate_id(name: str, key: str) -> str:
    """Return the identity of a candidate in records: its name, and a digest of what it is made of."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{name.replace('::', '.').replace('/', '_')}-{digest[:12]}"


def _identity(
    name: str,
    kind: str,
    key: str,
    description: str = "",
    template: str = "",
    *,
    library: bool = False,
) -> CandidateId:
    return CandidateId(candidate_id(name, key), name, kind, description, library, template)


def _bench(
    identity: CandidateId,
    kernel: Kernel,
    inputs: Sequence[TensorSpec],
    output: TensorSpec,
    call: AutotuneCall,
) -> BenchCandidate:
    return BenchCandidate(identity.candidate_id, kernel, tuple(inputs), output, call.timeout_s)


def _extern_candidate(identity: CandidateId, choice: Any, call: AutotuneCall) -> TaskCandidate:
    kernel = ExternKernel(
        name=choice.choice.name,
        kwargs=tuple(sorted(choice.kwargs.items())),
        has_out=choice.has_out_variant,
    )
    inputs = [_extern_input(choice, index, call) for index in range(len(choice.input_nodes))]
    operands = [operand for operand in inputs if operand is not None]
    output = output_tensor(choice.layout)
    candidate = TaskCandidate(identity)
    if len(operands) == len(inputs):
        candidate.bench = lambda _library, _symbol: _bench(identity, kernel, operands, output, call)
    if output.device == "cpu":  # timing in this process would not synchronize with another device
        candidate.in_process = _in_process(choice, output, call)
    return candidate


def _extern_input(choice: Any, index: int, call: AutotuneCall) -> TensorSpec | None:
    """Return an operand of a library kernel, None if it cannot be sent to a worker."""
    node, operands = choice.input_nodes[index], call.operands
    same_inputs = len(choice.input_nodes) == len(call.nodes)
    if same_inputs and (generated := operands.generated(index)):
        return generated
    value = operands.constant(node)
    if value is None or value.device.type != "cpu":
        return operands.view(node)
    if (frozen := operands.frozen(node)) is not None:
        return frozen
    packing = _PACKINGS.get(choice.choice.name)
    dense = _dense_weight(choice, value, operands)
    if packing is None or dense is None:
        return None
    batch = choice.kwargs.get("batch_size")
    if batch is None:
        batch = operands.view(choice.input_nodes[0]).size[0]
    return call.files.keep_packed(node.get_name(), dense, packing, int(batch))


def _dense_weight(choice: Any, packed: torch.Tensor, operands: Operands) -> torch.Tensor | None:
    """Return the plain weight of an opaque packed weight.

    MKL's packed format cannot be unpacked, but Inductor passes the plain weight next to it. oneDNN's weight of 8 bits is [K, N],
    and its packing takes a dense [N, K].
    """
    if choice.choice.name == "_mkl_linear":
        return operands.constant(choice.input_nodes[2])
    if not packed.is_mkldnn:
        return None
    dense = packed.to_dense()
    return dense.t().contiguous() if dense.dtype == torch.int8 else dense


def _in_process(choice: Any, output: TensorSpec, call: AutotuneCall) -> Callable[[], object]:
    """Return a call of a library kernel in this process; the first call creates its operands."""
    operands = call.operands
    values = [(operands.constant(node), operands.view(node)) for node in choice.input_nodes]
    function = choice.to_callable()

    @functools.lru_cache(maxsize=1)
    def prepared() -> Callable[[], object]:
        inputs = [value if value is not None else build_tensor(spec) for value, spec in values]
        if not choice.has_out_variant:
            return lambda: function(*inputs)
        out = build_tensor(output)
        return lambda: function(*inputs, out=out)

    return lambda: prepared()()


def _cpp_candidate(
    identity: CandidateId, choice: Any, inner: Any, call: AutotuneCall
) -> TaskCandidate:
    request = inner.bmreq
    toolchain = call.toolchain()
    sizes = tuple(int(extent.value) for extent in request.extra_args)
    key = KernelKey(
        template=inner.category,
        source=hashlib.sha256(request.source_code.encode()).hexdigest(),
        config=request.kernel_name,
        target=toolchain.target,
        toolchain=toolchain.compiler,
        flags=toolchain.flags,
    )
    source = CppSource(key.digest, request.source_code, request.kernel_name, shares=True)
    inputs = _cpp_inputs(choice, inner, call)
    output = output_tensor(inner.layout)
    return TaskCandidate(
        identity,
        build=CppBuild(key, source, with_header(toolchain.command)),
        bench=lambda library, symbol: _bench(
            identity, CppKernel(symbol, library, sizes), inputs, output, call
        ),
    )


def _cpp_inputs(choice: Any, inner: Any, call: AutotuneCall) -> list[TensorSpec]:
    """Return the operands of a C++ template kernel, repacked by its preprocessor.

    The preprocessor is a closure over Inductor's IR, so it runs here, on real tensors; its results
    are sent to the worker as files. The constants that it adds to the call's operands are those of the graph, as in the generated code:
    of a quantized product with a residual it computes them of the wrong operands (torch 2.14.1, `CppGemmTemplate.prep_weight`).
    """
    operands, indices = call.operands, range(len(call.nodes))

    def unchanged(index: int) -> TensorSpec:
        return operands.fixed(index) or operands.bases[index]

    if choice is unwrapped(choice):
        return [unchanged(index) for index in indices]
    tensors = [operands.value(index) for index in indices]
    with sizes_kept(call.nodes):
        processed, _ = choice._preprocessor(tensors, build_tensor(operands.output))
    before = {id(tensor): index for index, tensor in enumerate(tensors)}
    inputs = [
        unchanged(before[id(tensor)]) if id(tensor) in before else call.files.keep_new(tensor)
        for tensor in processed
    ]
    for place, node in enumerate(_added(inner.input_nodes, call.nodes), 1):
        constant = operands.frozen(node)
        if constant is not None and constant.size == inputs[-place].size:
            inputs[-place] = constant
    return inputs


def _added(nodes: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Return the last operands of a C++ template that are none of its call's, from the end, each name once."""
    names = {node.get_name() for node in own}
    different = {node.get_name(): node for node in nodes}
    backwards = reversed(list(different.values()))
    return list(itertools.takewhile(lambda node: node.get_name() not in names, backwards))


def _triton_candidate(identity: CandidateId, choice: Any, call: AutotuneCall) -> TaskCandidate:
    request = choice.bmreq
    environment = triton_variables(call.layout.device)
    target = triton_target(call.layout.device)
    inputs, output = call.operands.distinct_bases, call.operands.output
    key = triton_kernel_key(identity.name, _triton_key(choice), request.kernel_name, target)
    kernel = RequestKernel(pickle.dumps(request), environment, request.module_path, key.digest)
    build = TritonCompileJob(
        key=request.module_cache_key,
        kernel_name=request.kernel_name,
        source=_source_at(request.module_path),
        environment=environment,
        timeout_s=call.compile_timeout_s,
        target=target,
        kernel=key,
    )
    return TaskCandidate(
        identity,
        build=build,
        bench=lambda _library, _symbol: _bench(identity, kernel, inputs, output, call),
    )


@functools.lru_cache(maxsize=512)
def _source_at(path: str) -> str:
    """Return the source of a kernel's module; its path depends on its content."""
    return Path(path).read_text(encoding="utf-8")


def _triton_key(choice: Any) -> str:
    """Return the identity of a Triton candidate: its source without the parts that are not the kernel.

    Inductor adds the device's index and its own options to the source. With them in the identity,
    the second GPU of a machine, or a compile ahead of time, would tune everything again.
    """
    source = _source_at(choice.bmreq.module_path)
    return without_device_index(_INDUCTOR_META.sub("", source))


def _template_candidate(
    identity: CandidateId, choice: TemplateChoice, call: AutotuneCall
) -> TaskCandidate:
    inputs, output = call.operands.views, call.operands.output
    kernel: OpKernel = choice.kernel

    def bench(library: str, symbol: str) -> BenchCandidate:
        return _bench(
            identity, at(kernel, library, symbol) if library else kernel, inputs, output, call
        )

    return TaskCandidate(identity, build=choice.build, bench=bench)


def _decomposed_candidate(identity: CandidateId, parts: int, call: AutotuneCall) -> TaskCandidate:
    kernel = OpKernel(decompose_k.OP, (parts,), (decompose_k.__name__,))
    inputs, output = call.operands.views, call.operands.output
    return TaskCandidate(
        identity, bench=lambda _library, _symbol: _bench(identity, kernel, inputs, output, call)
    )
