"""A CUDA device that is not there: Inductor lowers for it, Triton compiles for it, nothing launches.

What Inductor and Triton ask of a device between tracing and launching is answered here, for torch
2.11 to 2.15; tensors are fake ones. `torch.cuda.is_available` stays False: with True, Inductor asks
the driver for the state of a random generator.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from inductor_plugin import lowering_runner
from inductor_plugin.jobs import RequestKernel

H100: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "total_memory": 80 << 30,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
    "L2_cache_size": 50 << 20,
    "gcnArchName": "",
    "clock_rate": 1980000,
    "memory_clock_rate": 2619000,
    "memory_bus_width": 5120,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
}

_CACHES = (
    "torch.utils._triton:has_triton",
    "torch.utils._triton:has_triton_tma",
    "torch.utils._triton:has_triton_tma_device",
    "torch.utils._triton:has_datacenter_blackwell_tma_device",
    "torch.utils._triton:_device_supports_tensor_descriptor",
    "torch.utils._triton:has_triton_experimental_host_tma",
    "torch.utils._triton:has_triton_tensor_descriptor_host_tma",
    "torch.utils._triton:has_triton_stable_tma_api",
    "torch.utils._triton:has_triton_reduction_ordering",
    "torch.utils._triton:triton_backend",
    "torch.utils._triton:triton_hash_with_backend",
    "torch._inductor.codecache:CacheBase.get_system",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.utils:get_max_num_sms",
    "torch._inductor.utils:get_num_sms",
    "torch._inductor.utils:is_big_gpu",
    "torch._inductor.utils:get_gpu_type",
    "torch._inductor.utils:get_gpu_dram_gbps",
    "torch._inductor.utils:get_device_tflops",
    "inductor_plugin.environment:_cuda",
    "inductor_plugin.environment:_software",
)
"""What remembers an answer about the device."""


class _Driver:
    """What Triton asks of a driver while it compiles."""

    def __init__(self, properties: SimpleNamespace) -> None:
        self._properties = properties

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._properties.major * 10 + self._properties.minor, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cuda


@contextmanager
def installed(devices: int = 1, **facts: Any) -> Iterator[SimpleNamespace]:
    """Pretend for the block that there are CUDA devices, and yield their properties.

    Args:
        devices: How many.
        facts: Properties other than those of an H100.
    """
    properties = SimpleNamespace(**(H100 | facts))
    with ExitStack() as stack:
        stack.callback(_clear)
        _clear()
        # The first kernel of a process writes its device's folder into this variable for good.
        stack.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("TRITON_CACHE_DIR", None)
        _answer(stack, properties, devices)
        _stay_off_the_device(stack)
        yield properties


def _answer(stack: ExitStack, properties: SimpleNamespace, devices: int) -> None:
    """Answer what is asked of the device."""
    from torch._dynamo import device_interface
    from triton.runtime import driver

    def fact(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    answers = {
        "get_device_properties": fact(properties),
        "get_device_capability": fact((properties.major, properties.minor)),
        "get_device_name": fact(properties.name),
        "current_device": fact(0),
        "device_count": fact(devices),
        "is_bf16_supported": fact(True),
        "is_tf32_supported": fact(True),
        "synchronize": fact(None),
    }
    interface: Any = device_interface.CudaInterface
    for name, answer in answers.items():
        stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        # Bound when the class was made, so it is no use to replace torch.cuda's alone.
        if name in vars(interface):
            stack.enter_context(mock.patch.object(interface, name, staticmethod(answer)))
    there = staticmethod(fact(True))
    stack.enter_context(mock.patch.object(interface, "is_available", there))
    properties_of: dict[str, Any] = device_interface.caching_worker_device_properties
    stack.enter_context(mock.patch.dict(properties_of, {"cuda": [properties] * devices}))
    stack.enter_context(mock.patch.object(driver, "_active", _Driver(properties)))


def _stay_off_the_device(stack: ExitStack) -> None:
    """Leave out what can only be done on a device: loading and measuring kernels."""
    from torch._inductor import config, scheduler
    from torch._inductor.runtime import triton_helpers, triton_heuristics

    def no_launchers(self: Any) -> None:
        self.launchers = []

    tuner: Any = triton_heuristics.CachingAutotuner
    stack.enter_context(mock.patch.object(tuner, "_make_launchers", no_launchers))
    stack.enter_context(mock.patch.object(triton_helpers, "set_driver_to_gpu"))
    # In this process: Inductor's own compile workers would ask a real driver.
    stack.enter_context(config.patch(compile_threads=1, fx_graph_cache=False))
    for name, milliseconds in (
        ("benchmark_fused_nodes", 0.001),
        ("benchmark_codegened_module", 0.001),
    ):
        measured = functools.partial(_measured, milliseconds)
        stack.enter_context(mock.patch.object(scheduler.Scheduler, name, measured))


def found(kernel: RequestKernel) -> bool:
    """Return True if a worker finds the compiled kernel of a request; what a launch does first."""
    from triton import knobs

    hits: list[bool] = []

    def compiled(*, cache_hit: bool, **others: Any) -> None:
        hits.append(cache_hit)

    with installed(), mock.patch.object(knobs.compilation, "listener", compiled):
        out = torch.empty(0)
        run: Any = lowering_runner.bind_request(kernel, [], out)
        # torch 2.11 binds the arguments with functools.partial, later ones in a closure.
        partial = isinstance(run, functools.partial)
        method: Any = run.func if partial else inspect.getclosurevars(run).nonlocals["run_method"]
        method.__self__.precompile(warm_cache_only=True)
    return bool(hits) and all(hits)


def _measured(milliseconds: float, *args: Any, **kwargs: Any) -> tuple[float, str]:
    return milliseconds, ""


def _clear() -> None:
    for path in _CACHES:
        module, _, name = path.partition(":")
        try:
            owner = importlib.import_module(module)
        except ImportError:
            continue
        found = functools.reduce(lambda one, part: getattr(one, part, None), name.split("."), owner)
        clear = getattr(found, "cache_clear", None)
        if clear is not None:
            clear()
