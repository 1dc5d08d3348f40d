"""Inductor in a worker: calls of its library kernels, benchmark requests and generated modules, and Triton compiles.

Importing Inductor takes a worker 3.4 s on top of 2 s for torch, and most library kernels are plain
torch functions. So it is imported on first use, only where it is needed.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.attention import library
from inductor_plugin.cache import Resources
from inductor_plugin.config import process_environment, set_environment
from inductor_plugin.device import BoundCall
from inductor_plugin.kernels import resources
from inductor_plugin.kernels.call import (
    Argument,
    BufferRef,
    ExternKernel,
    ModuleKernel,
    OpKernel,
    RequestKernel,
    SequenceKernel,
    SequenceStep,
    Zeros,
)
from inductor_plugin.kernels.cuobjdump import triton_cuobjdump, triton_usage
from inductor_plugin.ops import int4, operators, sites
from inductor_plugin.ops.native import library as native
from inductor_plugin.worker.child import operands, triton_launch
from inductor_plugin.worker.jobs import TritonCompileJob, TritonTarget

SHORT_CUTS: dict[str, str] = {
    "mm": "torch.mm",
    "mm_dtype": "torch.mm",
    "bmm": "torch.bmm",
    "bmm_dtype": "torch.bmm",
    "addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "_int_mm": "torch._int_mm",
    "_scaled_mm": "torch._scaled_mm",
    "convolution": "torch.convolution",
    "_linear_pointwise": "torch.ops.mkldnn._linear_pointwise",
    "_linear_pointwise.binary": "torch.ops.mkldnn._linear_pointwise.binary",
    "_mkl_linear": "torch.ops.mkl._mkl_linear",
    "qlinear_pointwise": "torch.ops.onednn.qlinear_pointwise",
    "qlinear_pointwise.binary": "torch.ops.onednn.qlinear_pointwise.binary",
}
"""Names in Inductor's `extern_kernels` of functions that exist without Inductor.

The same objects in torch 2.11 to 2.15; a test compares them with the installed torch.
"""


@functools.cache
def load_inductor() -> Any:
    """Import the modules that register library kernels, and return Inductor's `extern_kernels`."""
    names = ("mm", "bmm", "conv", "mm_plus_mm")
    for module in ("lowering", *(f"kernel.{name}" for name in names), "mkldnn_lowerings"):
        importlib.import_module(f"torch._inductor.{module}")
    return importlib.import_module("torch._inductor.select_algorithm").extern_kernels


def load_compiler() -> None:
    """Import what compiling a Triton kernel needs, in 3 s; what chooses kernels would be another 2 s (`load_inductor`)."""
    for module in ("codecache", "runtime.compile_tasks", "runtime.triton_heuristics"):
        importlib.import_module(f"torch._inductor.{module}")


def cpp_compiler() -> str:
    """Return the C++ compiler that Inductor uses.

    Raises:
        RuntimeError: There is none.
    """
    return importlib.import_module("torch._inductor.cpp_builder").get_cpp_compiler()


def code_cache() -> Any:
    """Return Inductor's cache of generated modules."""
    return importlib.import_module("torch._inductor.codecache").PyCodeCache


def forget_modules() -> None:
    """Forget the generated modules, which hold the constants of their graphs."""
    codecache = sys.modules.get("torch._inductor.codecache")  # not imported for this
    if codecache is None:
        return
    cache: Any = codecache.PyCodeCache
    for module in cache.modules:
        sys.modules.pop(module.__name__, None)
    cache.cache_clear()


def use_instruction_set(isa: Any) -> None:
    """Let Inductor take the vector instruction set that the parent has chosen.

    Otherwise it probes each one of the processor, in a process of its own.
    """
    isas: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    isas.valid_vec_isa_list = functools.partial(list[Any], [isa])


def patched_options(options: Mapping[str, Any]) -> Any:
    """Return the context manager in which Inductor has these options."""
    config: Any = importlib.import_module("torch._inductor.config")
    return config.patch(dict(options))


def extern_function(name: str) -> Callable[..., Any]:
    """Return the function that Inductor has registered under a name.

    Raises:
        LookupError: There is none.
    """
    if name == int4.NAME:
        return int4.weight_int4pack_mm
    if name in library.FUNCTIONS:
        return library.FUNCTIONS[name]
    path = SHORT_CUTS.get(name)
    if path is not None:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    function = getattr(load_inductor(), name, None)
    if function is None:
        raise LookupError(f"torch {torch.__version__} has no library kernel named {name!r}")
    return function


def bind_extern(
    kernel: ExternKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor | None
) -> BoundCall:
    """Return the call of a library kernel, which writes to ``out`` or returns its result."""
    keywords = dict(kernel.kwargs)
    if kernel.has_out:
        keywords["out"] = out
    return functools.partial(extern_function(kernel.name), *inputs, **keywords)


def bind_op(kernel: OpKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> BoundCall:
    """Return the call of a torch operator that writes to ``out``; by a call site, as generated code has one."""
    if sites.has_site(kernel.op):
        if native.sites() is None:  # the parent may have compiled it meanwhile
            native.search_again()
        return sites.bound(kernel.op, (*inputs, *kernel.args), out)
    function = operators.resolve(kernel.op, kernel.imports)
    return functools.partial(function, *inputs, *kernel.args, out=out)


def bind_request(
    kernel: RequestKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor
) -> BoundCall:
    """Return the launch of an Inductor benchmark request created by our parent process."""
    if kernel.environment:
        # torch 2.11 ships its own ptxas, whose version is part of Triton's key.
        importlib.import_module("torch._inductor.runtime.compile_tasks")._set_triton_ptxas_path()
        set_environment(process_environment() | dict(kernel.environment))
    request = pickle.loads(kernel.payload)  # noqa: S301 - from the parent's pipe, never from disk
    if kernel.module:
        request.module_path = kernel.module
    call = request.make_run_fn(*inputs, out=out)
    return triton_launch.of_request(call, out) or call


@dataclass(frozen=True)
class BoundSequence:
    """Several kernels bound to one set of tensors.

    Attributes:
        calls: The kernels in order.
        scratch: What they write besides the output, by name.
    """

    calls: tuple[BoundCall, ...]
    scratch: Mapping[str, operands.GuardedOutput]

    def __call__(self) -> None:
        """Run the kernels."""
        for call in self.calls:
            call()


def bind_sequence(
    kernel: SequenceKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor
) -> BoundSequence:
    """Return the call of several kernels in sequence, on one set of tensors."""
    scratch = [operands.GuardedOutput(spec) for spec in kernel.scratch]
    tensors = [*inputs, *(zone.tensor for zone in scratch), out]
    names = kernel.names or map(str, range(len(scratch)))
    return BoundSequence(
        tuple(_bind_part(part, tensors) for part in kernel.parts),
        dict(zip(names, scratch, strict=True)),
    )


def _bind_part(part: SequenceStep, tensors: Sequence[torch.Tensor]) -> BoundCall:
    kernel = part.kernel
    arguments: list[Any] = [_argument(argument, tensors) for argument in part.arguments]
    if isinstance(kernel, ModuleKernel):
        module = _module(kernel)
        launch = triton_launch.of_module(module, arguments, tensors[-1].device)
        cleared = [
            memory
            for argument, memory in zip(part.arguments, arguments, strict=True)
            if isinstance(argument, Zeros) and argument.each_call
        ]
        return _behind_zeroing(cleared, launch or functools.partial(module.call, arguments))
    assert part.out is not None
    out = _argument(part.out, tensors)
    if isinstance(kernel, ExternKernel):
        return bind_extern(kernel, arguments, out)
    bind: Callable[..., BoundCall] = bind_op if isinstance(kernel, OpKernel) else bind_request
    return bind(kernel, arguments, out)


def _behind_zeroing(memory: Sequence[torch.Tensor], launch: BoundCall) -> BoundCall:
    """Return a launch that zeroes its scratch memory first, as generated code does; the launch itself if there is none."""
    if not memory:
        return launch

    def call() -> None:
        for scratch in memory:
            scratch.zero_()
        launch()

    return call


def _argument(argument: Argument, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(argument, BufferRef):
        tensor = tensors[argument.index]
        return (
            tensor
            if argument.size is None
            else tensor.as_strided(argument.size, argument.stride, argument.offset)
        )
    if isinstance(argument, tuple):  # an operator's list of tensors
        return [_argument(inner, tensors) for inner in argument]
    if not isinstance(argument, Zeros):
        return argument
    return torch.zeros(
        argument.count, dtype=getattr(torch, argument.dtype), device=tensors[-1].device
    )


def _module(kernel: ModuleKernel) -> Any:
    """Return the module of a generated kernel, loaded with the parent's environment variables."""
    if kernel.environment:
        importlib.import_module("torch._inductor.runtime.compile_tasks")._set_triton_ptxas_path()
        set_environment(process_environment() | dict(kernel.environment))
    return code_cache().load(kernel.source)


def compile_triton(job: TritonCompileJob) -> Resources | None:
    """Compile a Triton kernel into Triton's cache for the job's target; no GPU is needed.

    This is what Inductor's own compile workers run (torch 2.11 to 2.15: the same three arguments);
    it applies the variables, finds ptxas and compiles with ``warm_cache_only``.

    Returns:
        The kernel's GPU resources; None if not known.
    """
    tasks = importlib.import_module("torch._inductor.runtime.compile_tasks")
    cache = code_cache()

    def load_kernel() -> Any:
        return getattr(cache.load(job.source), job.kernel_name)

    with _no_driver(), driver_of(job.target):
        tasks._worker_compile_triton(load_kernel, dict(job.environment), {})
    return _resources(job)


def _resources(job: TritonCompileJob) -> Resources | None:
    """Return the resources of the only kernel in a job's folder; None if there are several."""
    folder = dict(job.environment).get("TRITON_CACHE_DIR")
    cubins = list(Path(folder).glob("*/*.cubin")) if folder else []
    if len(cubins) != 1:
        return None
    usage = triton_usage(cubins[0], triton_cuobjdump())
    return usage.stored() if isinstance(usage, resources.KernelResources) else None


@contextmanager
def _no_driver() -> Generator[None, None, None]:
    """Prevent generated modules from querying the driver on import (torch 2.14 does so itself)."""
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    original = helpers.set_driver_to_gpu
    helpers.set_driver_to_gpu = lambda: None
    try:
        yield
    finally:
        helpers.set_driver_to_gpu = original


class TargetDriver:
    """Replaces Triton's driver while a kernel compiles; it cannot launch kernels.

    Triton receives the target as an argument, but code inside a kernel can query it too
    (``tl.target_info``). Without a driver the answer is False, and Triton stores the resulting code
    under the same key.
    """

    def __init__(self, target: TritonTarget) -> None:
        """Report a device of ``target``."""
        self._target = target

    def get_current_target(self) -> Any:
        """Return the target."""
        compiler = importlib.import_module("triton.backends.compiler")
        return compiler.GPUTarget(self._target.backend, self._target.arch, self._target.warp_size)

    def get_current_device(self) -> int:
        """Return the index of the device."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:  # noqa: ARG002  Triton's name
        """Return the default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Return the device."""
        return torch.device("cuda" if self._target.backend == "hip" else self._target.backend, 0)


@contextmanager
def driver_of(target: TritonTarget | None) -> Generator[None, None, None]:
    """Make Triton see a device of ``target``."""
    driver: Any = importlib.import_module("triton.runtime").driver
    original = driver._active
    if target is not None:
        driver.set_active(TargetDriver(target))
    try:
        yield
    finally:
        driver._active = original
