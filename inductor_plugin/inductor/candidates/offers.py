"""Inductor's choices as offers: identity first, everything costly only for the unseen."""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch._inductor import ir, select_algorithm
from torch._inductor.codegen.cpp_template_kernel import CppTemplateCaller

from inductor_plugin.cache import KernelKey
from inductor_plugin.inductor.candidates.cuda import at
from inductor_plugin.inductor.candidates.decompose_k import FAMILY, parts_of
from inductor_plugin.inductor.candidates.template_choice import TemplateChoice
from inductor_plugin.inductor.facts import toolchain as lowering_toolchain
from inductor_plugin.inductor.facts.operands import (
    base_operand,
    generated_value,
    output_tensor,
    sizes_kept,
    view_operand,
)
from inductor_plugin.inductor.facts.problem import constant, device_text, is_view
from inductor_plugin.inductor.facts.toolchain import CppToolchain, with_header
from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    OpKernel,
    RequestKernel,
    Tensor,
)
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.ops import decompose_k
from inductor_plugin.tuning.offer import Offer
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.tuning.task import CppBuild, Entry
from inductor_plugin.worker.child.operands import build as build_tensor
from inductor_plugin.worker.jobs import BenchCandidate, TritonCompileJob

logger = logging.getLogger(__name__)

_DEVICE_INDEX = re.compile(r"(DeviceProperties\(type='\w+', )index=\d+, ")
_INDUCTOR_META = re.compile(r"^ *inductor_meta=\{.*\},?$", re.MULTILINE)
_PACKINGS = {"_mkl_linear": "mkl_linear", "_linear_pointwise": "mkldnn_linear"}


@dataclass
class Call:
    """One call of Inductor's selection: what the conversion of its choices needs.

    Attributes:
        nodes: Inputs of the call.
        layout: What it writes.
        input_gen_fns: Inductor's generators of inputs whose values matter.
        timeout_s: Seconds one candidate may be measured.
        compile_timeout_s: Seconds one candidate may be compiled.
        files: Where operands with values are written.
        toolchain: Tells how C++ is compiled here; the same for all calls of a graph.
        seeds: Seed of each input by name.
    """

    nodes: Sequence[Any]
    layout: ir.Layout
    input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]]
    timeout_s: float
    compile_timeout_s: float
    files: OperandFiles
    toolchain: Callable[[], CppToolchain]
    seeds: dict[str, int] = field(default_factory=dict[str, int])


def unwrapped(choice: Any) -> Any:
    """Return the choice inside Inductor's data-processing wrapper."""
    wrapper: Any = select_algorithm.DataProcessorChoiceCallerWrapper
    return choice._wrapped if isinstance(choice, wrapper) else choice


def is_library(choice: Any) -> bool:
    """Return True for a library kernel (ATen, oneDNN, MKL) that Inductor alone would call."""
    extern: Any = select_algorithm.ExternKernelCaller
    inner = unwrapped(choice)
    return isinstance(inner, extern) and getattr(inner, "stock", True)


def foreign(choice: Any) -> str | None:
    """Return why the plugin cannot measure a choice, or None if it can."""
    inner = unwrapped(choice)
    known = (
        select_algorithm.ExternKernelCaller,
        CppTemplateCaller,
        select_algorithm.TritonTemplateCaller,
        TemplateChoice,
    )
    if isinstance(inner, known) or parts_of(inner) is not None:
        return None
    return f"{type(inner).__name__} choices are measured by Inductor itself"


def misread(choice: Any, nodes: Sequence[Any]) -> str | None:
    """Return which frozen weight a choice would read wrongly, or None if it reads all rightly.

    When it repacks a weight, Inductor's C++ template (torch 2.11-2.15) takes the constant by its
    name: a view of it is packed as if it were the whole, a slice as if it began at the start.
    """
    if not isinstance(unwrapped(choice), CppTemplateCaller):
        return None
    for node in nodes:
        value = constant(node)
        if value is None or value.layout is not torch.strided:
            continue
        if is_view(node):
            return f"Inductor's C++ template would not see the view of {node.get_name()}"
        if value.storage_offset():
            return f"Inductor's C++ template would not see the offset of {node.get_name()}"
    return None


def offer_of(choice: Any, call: Call) -> Offer:
    """Return a choice as an offer.

    Raises:
        TypeError: `foreign` names it.
    """
    inner = unwrapped(choice)
    if isinstance(inner, select_algorithm.ExternKernelCaller):
        identity = _Identity(inner.name, "extern", inner.hash_key(), "", is_library(inner))
        return identity.offer(lambda own: _extern_entry(own, inner, call))
    if isinstance(inner, CppTemplateCaller):
        toolchain = call.toolchain()
        key = f"{inner.hash_key()}-{toolchain.digest}"
        identity = _Identity(f"cpp_{inner.category}", "cpp", key, str(inner.description))
        return identity.offer(lambda own: _cpp_entry(own, choice, inner, call))
    if isinstance(inner, select_algorithm.TritonTemplateCaller):
        name = inner.name.rsplit("_", 1)[0]
        identity = _Identity(name, "triton", _triton_key(inner), str(inner.description))
        return identity.offer(lambda own: _triton_entry(own, inner, call))
    if isinstance(inner, TemplateChoice):
        identity = _Identity(inner.name, "template", inner.hash_key(), inner.description)
        return identity.offer(lambda own: _template_entry(own, inner, call))
    parts = parts_of(inner)
    if parts is not None:
        key = f"{FAMILY}-{parts}"
        identity = _Identity(f"{FAMILY}_{parts}", "subgraph", key, f"K in {parts} parts")
        return identity.offer(lambda own: _decomposed_entry(own, parts, call))
    raise TypeError(f"{type(inner).__name__} is not a choice the plugin measures")


def _generated(index: int, call: Call) -> Tensor | None:
    """Return an operand whose values Inductor generates (ends of groups), None for any other.

    Random ends of groups would make a kernel read and write outside its operands.
    """
    node = call.nodes[index]
    if index not in call.input_gen_fns or call.layout.device.type == "cpu":
        return None
    value = generated_value(node, call.input_gen_fns[index])
    if value is None:
        return None
    kept = call.files.keep(f"{node.get_name()} (generated)", value)
    return replace(kept, device=device_text(call.layout.device))


@dataclass(frozen=True)
class _Identity:
    name: str
    kind: str
    hash_key: str
    description: str
    library: bool = False

    @functools.cached_property
    def candidate_id(self) -> str:
        digest = hashlib.sha256(self.hash_key.encode()).hexdigest()
        return f"{self.name.replace('::', '.').replace('/', '_')}-{digest[:12]}"

    def offer(self, prepare: Callable[[Entry], Entry]) -> Offer:
        return Offer(
            candidate_id=self.candidate_id,
            name=self.name,
            kind=self.kind,
            description=self.description,
            library=self.library,
            make_entry=lambda: prepare(self.entry()),
        )

    def entry(self) -> Entry:
        return Entry(self.candidate_id, self.name, self.kind, self.description, self.library)


def _bench(
    own: Entry, kernel: Kernel, inputs: Sequence[Tensor], output: Tensor, call: Call
) -> BenchCandidate:
    return BenchCandidate(own.candidate_id, kernel, tuple(inputs), output, call.timeout_s)


def _extern_entry(own: Entry, choice: Any, call: Call) -> Entry:
    kernel = ExternKernel(
        name=choice.choice.name,
        kwargs=tuple(sorted(choice.kwargs.items())),
        has_out=choice.has_out_variant,
    )
    inputs = [_extern_input(choice, index, call) for index in range(len(choice.input_nodes))]
    output = output_tensor(choice.layout)
    if all(one is not None for one in inputs):
        operands = [one for one in inputs if one is not None]
        own.bench = lambda _library, _symbol: _bench(own, kernel, operands, output, call)
    if output.device == "cpu":  # the clock at home does not wait for another device
        own.home = _at_home(choice)
    return own


def _extern_input(choice: Any, index: int, call: Call) -> Tensor | None:
    """Return an operand of a library kernel, None if it cannot travel to a worker."""
    node = choice.input_nodes[index]
    if len(choice.input_nodes) == len(call.nodes) and (made := _generated(index, call)):
        return made
    value = constant(node)
    if value is None or value.device.type != "cpu":
        # Only a CPU repacks frozen weights; elsewhere all candidates get the same random ones.
        return view_operand(node, call.seeds)
    if value.layout is torch.strided:
        return call.files.keep(_kept_name(node), value)
    packing = _PACKINGS.get(choice.choice.name)
    dense = _dense_weight(choice, value)
    if packing is None or dense is None:
        return None
    batch = choice.kwargs.get("batch_size")
    if batch is None:
        batch = view_operand(choice.input_nodes[0], call.seeds).size[0]
    return call.files.keep_packed(node.get_name(), dense, packing, int(batch))


def _kept_name(node: Any) -> str:
    """Return a name for a frozen value: a view of it is another one."""
    layout = node.get_layout() if is_view(node) else ""
    return f"{node.get_name()} {layout}"


def _dense_weight(choice: Any, packed: torch.Tensor) -> torch.Tensor | None:
    """Return the weight behind an opaque packed one.

    MKL's packed format cannot be unpacked, but Inductor passes the plain weight beside it.
    """
    if choice.choice.name == "_mkl_linear":
        return constant(choice.input_nodes[2])
    return packed.to_dense() if packed.is_mkldnn else None


def _at_home(choice: Any) -> Callable[[], object]:
    """Return a call of a library kernel in this process; its operands are made at the first call."""
    values = [constant(node) for node in choice.input_nodes]
    specs = [view_operand(node, {}) for node in choice.input_nodes]
    function = choice.to_callable()
    output = output_tensor(choice.layout) if choice.has_out_variant else None

    @functools.lru_cache(maxsize=1)
    def prepared() -> Callable[[], object]:
        made = zip(values, specs, strict=True)
        inputs = [value if value is not None else build_tensor(spec) for value, spec in made]
        if output is None:
            return lambda: function(*inputs)
        out = build_tensor(output)
        return lambda: function(*inputs, out=out)

    return lambda: prepared()()


def _cpp_entry(own: Entry, choice: Any, inner: Any, call: Call) -> Entry:
    request = inner.bmreq
    toolchain = call.toolchain()
    sizes = tuple(int(one.value) for one in request.extra_args)
    key = KernelKey(
        template=inner.category,
        source=hashlib.sha256(request.source_code.encode()).hexdigest(),
        config=request.kernel_name,
        target=toolchain.target,
        toolchain=toolchain.compiler,
        flags=toolchain.flags,
    )
    own.build = CppBuild(
        key,
        CppSource(key.digest, request.source_code, request.kernel_name),
        with_header(toolchain.command),
    )
    inputs = _cpp_inputs(choice, call)
    output = output_tensor(inner.layout)
    own.bench = lambda library, symbol: _bench(
        own, CppKernel(symbol, library, sizes), inputs, output, call
    )
    return own


def _cpp_inputs(choice: Any, call: Call) -> list[Tensor]:
    """Return the operands of a C++ template kernel: repacked as its preprocessor wants them.

    The preprocessor is a closure over Inductor's IR, so it runs here, on real tensors; what it
    makes of them travels as a file.
    """
    specs = [base_operand(node, call.seeds) for node in call.nodes]
    tensors = [
        call.input_gen_fns[i](node) if i in call.input_gen_fns else _example(node, specs[i])
        for i, node in enumerate(call.nodes)
    ]
    if choice is unwrapped(choice):
        return [
            call.files.keep(node.get_name(), t) if i in call.input_gen_fns else specs[i]
            for i, (node, t) in enumerate(zip(call.nodes, tensors, strict=True))
        ]
    with sizes_kept(call.nodes):
        processed, _ = choice._preprocessor(tensors, build_tensor(output_tensor(call.layout)))
    known = {
        id(t): s
        for i, (t, s) in enumerate(zip(tensors, specs, strict=True))
        if i not in call.input_gen_fns
    }
    return [known.get(id(t)) or call.files.keep_new(t) for t in processed]


def _example(node: Any, spec: Tensor) -> torch.Tensor:
    value = constant(node)
    return value if value is not None else build_tensor(spec)


def _triton_entry(own: Entry, choice: Any, call: Call) -> Entry:
    request = choice.bmreq
    environment = lowering_toolchain.triton_variables(call.layout.device)
    target = lowering_toolchain.triton_target(call.layout.device)
    source = _triton_source(choice)
    kernel = RequestKernel(pickle.dumps(request), environment)
    # A kernel takes each buffer once, however many of its operands are views of it (x @ x.T).
    bases = {node.get_name(): (index, node) for index, node in enumerate(call.nodes)}
    inputs = [_generated(i, call) or base_operand(node, call.seeds) for i, node in bases.values()]
    output = output_tensor(call.layout)
    own.build = TritonCompileJob(
        key=request.module_cache_key,
        kernel_name=request.kernel_name,
        source=source,
        environment=environment,
        timeout_s=call.compile_timeout_s,
        target=target,
        kernel=KernelKey(
            template=own.name,
            # What is left out is nothing to Triton: a pack's kernel has to be found elsewhere.
            source=hashlib.sha256(_triton_key(choice).encode()).hexdigest(),
            config=request.kernel_name,
            target=f"{target.backend}:{target.arch}",
            toolchain=lowering_toolchain.triton_toolchain(target),
            flags="",
        ),
    )
    own.bench = lambda _library, _symbol: _bench(own, kernel, inputs, output, call)
    return own


def _triton_source(choice: Any) -> str:
    return Path(choice.bmreq.module_path).read_text(encoding="utf-8")


def _triton_key(choice: Any) -> str:
    """Return what identifies a Triton candidate: its source, but for what is not the kernel.

    Inductor writes the device's index and its own options beside the kernel. With them in the
    identity, the second GPU of a machine, or a compile ahead of time, would tune everything anew.
    """
    return _DEVICE_INDEX.sub(r"\1", _INDUCTOR_META.sub("", _triton_source(choice)))


def _template_entry(own: Entry, choice: TemplateChoice, call: Call) -> Entry:
    inputs = [
        _generated(i, call) or view_operand(node, call.seeds) for i, node in enumerate(call.nodes)
    ]
    output = output_tensor(call.layout)
    kernel: OpKernel = choice.kernel
    own.build = choice.build

    def bench(library: str, symbol: str) -> BenchCandidate:
        return _bench(own, at(kernel, library, symbol) if library else kernel, inputs, output, call)

    own.bench = bench
    return own


def _decomposed_entry(own: Entry, parts: int, call: Call) -> Entry:
    kernel = OpKernel(decompose_k.OP, (parts,), (decompose_k.__name__,))
    inputs = [view_operand(node, call.seeds) for node in call.nodes]
    output = output_tensor(call.layout)
    own.bench = lambda _library, _symbol: _bench(own, kernel, inputs, output, call)
    return own
