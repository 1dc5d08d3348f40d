"""The worker's side of Inductor: how to call its library kernels and requests, how to warm Triton.

Importing Inductor takes a worker 3.4 s on top of 2 s for torch, and most library kernels are plain
torch functions. So it is imported on first use, by what cannot do without.
"""

from __future__ import annotations

import functools
import importlib
import pickle
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.attention import library
from inductor_plugin.cache import Resources
from inductor_plugin.config import set_environment
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
from inductor_plugin.ops import int4
from inductor_plugin.worker.child import operands
from inductor_plugin.worker.jobs import TritonCompileJob, TritonTarget

Call = Callable[[], object]

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
}
"""Names on Inductor's `extern_kernels` that mean a function which exists without Inductor.

The same objects in torch 2.11 to 2.15; a test compares them with the installed one.
"""


@functools.cache
def load_inductor() -> Any:
    """Import what registers library kernels, and return Inductor's `extern_kernels`."""
    names = ("mm", "bmm", "conv", "mm_plus_mm")
    for module in ("lowering", *(f"kernel.{name}" for name in names), "mkldnn_lowerings"):
        importlib.import_module(f"torch._inductor.{module}")
    return importlib.import_module("torch._inductor.select_algorithm").extern_kernels


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
) -> Call:
    """Return the call of a library kernel; it writes to ``out``, or returns its result."""
    keywords = dict(kernel.kwargs)
    if kernel.has_out:
        keywords["out"] = out
    return functools.partial(extern_function(kernel.name), *inputs, **keywords)


def bind_op(kernel: OpKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> Call:
    """Return the call of a torch operator that writes to ``out``."""
    for module in kernel.imports:
        importlib.import_module(module)
    namespace, _, rest = kernel.op.partition("::")
    name, _, overload = rest.partition(".")
    function = getattr(getattr(torch.ops, namespace), name)
    if overload:
        function = getattr(function, overload)
    return functools.partial(function, *inputs, *kernel.args, out=out)


def bind_request(kernel: RequestKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> Call:
    """Return the launch of an Inductor benchmark request, made by our own parent process."""
    if kernel.environment:
        # torch 2.11 brings its own ptxas, whose version is part of Triton's key.
        importlib.import_module("torch._inductor.runtime.compile_tasks")._set_triton_ptxas_path()
        set_environment(dict(kernel.environment))
    request = pickle.loads(kernel.payload)  # noqa: S301 - from the parent's pipe, never from disk
    return request.make_run_fn(*inputs, out=out)


def bind_sequence(
    kernel: SequenceKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor
) -> Call:
    """Return the call of several kernels, one after the other, on one set of tensors."""
    scratch = [operands.build(one) for one in kernel.scratch]
    tensors = [*inputs, *scratch, out]
    calls = [_bind_part(part, tensors) for part in kernel.parts]

    def run() -> None:
        for call in calls:
            call()

    return run


def _bind_part(part: SequenceStep, tensors: Sequence[torch.Tensor]) -> Call:
    kernel = part.kernel
    arguments: list[Any] = [_argument(one, tensors) for one in part.arguments]
    if isinstance(kernel, ModuleKernel):
        return functools.partial(_module(kernel).call, arguments)
    assert part.out is not None
    out = _argument(part.out, tensors)
    if isinstance(kernel, ExternKernel):
        return bind_extern(kernel, arguments, out)
    bind: Callable[..., Call] = bind_op if isinstance(kernel, OpKernel) else bind_request
    return bind(kernel, arguments, out)


def _argument(one: Argument, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(one, BufferRef):
        tensor = tensors[one.index]
        return tensor if one.size is None else tensor.as_strided(one.size, one.stride, one.offset)
    if isinstance(one, tuple):  # an operator's list of tensors
        return [_argument(inner, tensors) for inner in one]
    if not isinstance(one, Zeros):
        return one
    return torch.zeros(one.count, dtype=getattr(torch, one.dtype), device=tensors[-1].device)


def _module(kernel: ModuleKernel) -> Any:
    """Return the module of a generated kernel, loaded under its parent's variables."""
    if kernel.environment:
        importlib.import_module("torch._inductor.runtime.compile_tasks")._set_triton_ptxas_path()
        set_environment(dict(kernel.environment))
    cache: Any = importlib.import_module("torch._inductor.codecache").PyCodeCache
    return cache.load(kernel.source)


def compile_triton(job: TritonCompileJob) -> Resources | None:
    """Compile a Triton kernel into Triton's cache for the target the job names, no GPU needed.

    This is what Inductor's own compile workers run (torch 2.11 to 2.15: the same three arguments);
    it applies the variables, finds ptxas and compiles with ``warm_cache_only``.

    Returns:
        What the kernel takes of the GPU; None if that is not known.
    """
    tasks = importlib.import_module("torch._inductor.runtime.compile_tasks")
    codecache = importlib.import_module("torch._inductor.codecache")

    def load_kernel() -> Any:
        return getattr(codecache.PyCodeCache.load(job.source), job.kernel_name)

    with _no_driver(), driver_of(job.target):
        tasks._worker_compile_triton(load_kernel, dict(job.environment), {})
    return _taken(job)


def _taken(job: TritonCompileJob) -> Resources | None:
    """Return what the one kernel in a job's own folder takes; a shared folder does not tell whose."""
    folder = dict(job.environment).get("TRITON_CACHE_DIR")
    cubins = list(Path(folder).glob("*/*.cubin")) if folder else []
    if len(cubins) != 1:
        return None
    found = triton_usage(cubins[0], triton_cuobjdump())
    return found.stored() if isinstance(found, resources.KernelResources) else None


@contextmanager
def _no_driver() -> Generator[None, None, None]:
    """Keep generated modules from asking the driver when imported (torch 2.14 does so itself)."""
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    kept = helpers.set_driver_to_gpu
    helpers.set_driver_to_gpu = lambda: None
    try:
        yield
    finally:
        helpers.set_driver_to_gpu = kept


class TargetDriver:
    """Answers what is asked of Triton's driver while a kernel compiles; it launches nothing.

    Triton gets the target as an argument, but code inside a kernel can ask for it too
    (``tl.target_info``). It is told False where there is no driver, and Triton stores what came of
    it under the same key.
    """

    def __init__(self, target: TritonTarget) -> None:
        """Stand for a device of ``target``."""
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
    """Let Triton see a device of ``target``."""
    driver: Any = importlib.import_module("triton.runtime").driver
    kept = driver._active
    if target is not None:
        driver.set_active(TargetDriver(target))
    try:
        yield
    finally:
        driver._active = kept
