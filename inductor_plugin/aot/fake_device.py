"""Lower and compile for a named GPU on a machine that has none.

Queries of Inductor and Triton about the device, from tracing up to the launch, are answered from a `Target`,
for torch 2.11 to 2.15; tensors must be fake, and nothing is launched. `torch.cuda.is_available`
stays False: with True, Inductor asks the driver for the state of a random generator.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import threading
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import torch

from inductor_plugin.aot import targets
from inductor_plugin.config import process_environment, set_environment
from inductor_plugin.errors import TargetError
from inductor_plugin.problem.target import Target
from inductor_plugin.worker.child.inductor import TargetDriver
from inductor_plugin.worker.jobs import TritonTarget

_CACHES = (
    "torch.utils._triton:has_triton",
    "torch.utils._triton:has_triton_tma",
    "torch.utils._triton:has_triton_tma_device",
    "torch.utils._triton:has_triton_cuda_tma_device",
    "torch.utils._triton:has_datacenter_blackwell_tma_device",
    "torch.utils._triton:_device_supports_tma",
    "torch.utils._triton:_device_supports_tensor_descriptor",
    "torch.utils._triton:has_triton_experimental_host_tma",
    "torch.utils._triton:has_triton_tensor_descriptor_host_tma",
    "torch.utils._triton:has_triton_stable_tma_api",
    "torch.utils._triton:has_triton_reduction_ordering",
    "torch.utils._triton:triton_backend",
    "torch.utils._triton:triton_hash_with_backend",
    "torch._inductor.codecache:CacheBase.get_system",
    "torch._inductor.codegen.cuda.cuda_env:get_cuda_arch",
    "torch._inductor.codegen.cuda.cuda_env:is_datacenter_blackwell_arch",
    "torch._inductor.codegen.cutlass.cache:maybe_fetch_ops",
    "torch._inductor.codegen.cutlass.utils:_gen_ops_cached",
    "torch._inductor.codegen.cutlass.utils:cutlass_arch",
    "torch._inductor.kernel.mm:_is_sm7x_or_older_gpu",
    "torch._inductor.lookup_table.choices:LookupTableChoices._get_device_key",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.utils:get_max_num_sms",
    "torch._inductor.utils:get_num_sms",
    "torch._inductor.utils:is_big_gpu",
    "torch._inductor.utils:get_gpu_type",
    "torch._inductor.utils:get_gpu_dram_gbps",
    "torch._inductor.utils:get_device_tflops",
    "torch._inductor.utils:_get_device_tflops",
    "torch._inductor.utils:using_b200",
    "inductor_plugin.worker.devices.cuda:facts",
    "inductor_plugin.worker.devices.cuda:versions",
)
"""Functions that cache facts of the device, in any of the supported versions of torch."""

_GUARDED = (
    "torch.utils._triton:_device_supports_tma",
    "torch.utils._triton:_device_supports_tensor_descriptor",
    "torch.utils._triton:has_triton_tma_device",
    "torch.utils._triton:has_triton_cuda_tma_device",
    "torch.utils._triton:has_triton_stable_tma_api",
    "torch.utils._triton:has_datacenter_blackwell_tma_device",
    "torch._inductor.utils:using_b200",
)
"""Functions that check `torch.cuda.is_available` before the device, and cache the result."""

_ASKING = (
    "torch._inductor.kernel.mm_grouped:can_use_triton_kernel",
    "torch._meta_registrations:_grouped_mm_fp16_cublaslt_supported",
    "torch._inductor.heuristics.template.triton:BaseConfigHeuristic._get_exceeding_shared_memory_checker",
)
"""Functions that check `torch.cuda.is_available` in each call; only they see an available device."""

_PATCHING = threading.RLock()
"""Two threads that patch `is_available` at once would leave it patched."""


@contextmanager
def as_target(
    named: Target | str, devices: int = 1, facts: Mapping[str, Any] | None = None
) -> Generator[SimpleNamespace, None, None]:
    """Lower for a GPU that this machine lacks, within the block, and yield its properties.

    It affects all threads of the process: none may use a real device meanwhile.

    Args:
        named: The GPU, or its name.
        devices: Number of devices.
        facts: Properties to override, by the names of ``torch.cuda.get_device_properties``.

    Raises:
        TargetError: The name is not known, it is no GPU of this torch's kind, or this torch is built without CUDA.
    """
    gpu = targets.named(named) if isinstance(named, str) else named
    kind = "gfx" if torch.version.hip else "sm_"
    if not gpu.arch.startswith(kind):
        raise TargetError(
            f"{gpu.name} is of architecture {gpu.arch!r}, and this torch lowers for {kind}... where there is no device; "
            "tune on the machine that has it"
        )
    if torch.version.cuda is None:
        raise TargetError(
            f"torch {torch.__version__} is built without CUDA and cannot lower for {gpu.name}; "
            "install a CUDA build (it needs no GPU)"
        )
    properties = SimpleNamespace(**(gpu.properties() | dict(facts or {})))
    with ExitStack() as stack:
        stack.callback(_clear)
        _clear()
        # The first kernel of a process writes its device's folder into TRITON_CACHE_DIR for good.
        environment = process_environment()
        stack.callback(set_environment, environment)
        set_environment({k: v for k, v in environment.items() if k != "TRITON_CACHE_DIR"})
        _answer(stack, properties, devices)
        _stay_off_the_device(stack)
        _fill_guarded_caches()
        _show_device(stack)
        yield properties


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Generator[None, None, None]:
    """Replace an attribute of a module, class or object within the block.

    The original is restored exactly: static methods stay static, inherited attributes inherited.
    """
    own = cast("Mapping[str, object]", vars(owner))
    defined_here, original = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if defined_here:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@contextmanager
def updated(
    mapping: MutableMapping[str, Any], values: Mapping[str, Any]
) -> Generator[None, None, None]:
    """Update a mapping within the block."""
    original = dict(mapping)
    mapping.update(values)
    try:
        yield
    finally:
        mapping.clear()
        mapping.update(original)


class _Driver(TargetDriver):
    """The part of Triton's driver that Triton and Inductor query while they compile."""

    def __init__(self, properties: SimpleNamespace) -> None:
        super().__init__(_triton_target(properties))
        facts = {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
            "sm_clock_rate": properties.clock_rate,
            "mem_clock_rate": properties.memory_clock_rate,
            "mem_bus_width": properties.memory_bus_width,
        }
        self.utils = SimpleNamespace(get_device_properties=_always(facts))

    def get_device_interface(self) -> Any:
        """Return torch's module for the device."""
        return torch.cuda


def _triton_target(properties: SimpleNamespace) -> TritonTarget:
    """Return what Triton compiles for: an AMD GPU (one with ``gcnArchName``) by its name, with its own size of a warp."""
    amd = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    if amd:
        return TritonTarget("hip", amd, properties.warp_size)
    return TritonTarget("cuda", properties.major * 10 + properties.minor, 32)


def _answer(stack: ExitStack, properties: SimpleNamespace, devices: int) -> None:
    """Answer queries about the device."""
    device_interface = importlib.import_module("torch._dynamo.device_interface")
    driver = importlib.import_module("triton.runtime").driver
    answers = {
        "get_device_properties": properties,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_name": properties.name,
        "current_device": 0,
        "device_count": devices,
        "is_bf16_supported": True,
        "is_tf32_supported": True,
        "synchronize": None,
    }
    interface = device_interface.CudaInterface
    for name, answer in answers.items():
        stack.enter_context(replaced(torch.cuda, name, _always(answer)))
        # Bound when the class was created, so replacing torch.cuda's alone has no effect.
        if name in vars(interface):
            stack.enter_context(replaced(interface, name, staticmethod(_always(answer))))
    stack.enter_context(replaced(interface, "is_available", staticmethod(_yes)))
    cached = device_interface.caching_worker_device_properties
    stack.enter_context(updated(cached, {"cuda": [properties] * devices}))
    stack.enter_context(replaced(driver, "_active", _Driver(properties)))


def _stay_off_the_device(stack: ExitStack) -> None:
    """Disable steps that need a device: loading and measuring kernels."""
    config = importlib.import_module("torch._inductor.config")
    scheduler = importlib.import_module("torch._inductor.scheduler").Scheduler
    helpers = importlib.import_module("torch._inductor.runtime.triton_helpers")
    heuristics = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    stack.enter_context(replaced(heuristics.CachingAutotuner, "_make_launchers", _no_launchers))
    stack.enter_context(replaced(helpers, "set_driver_to_gpu", _always(None)))
    # In this process: Inductor's own compile workers would ask a real driver.
    stack.enter_context(
        config.patch(
            compile_threads=1,
            fx_graph_cache=False,
            # Folding computes on the device, and padding measures there.
            joint_graph_constant_folding=False,
            shape_padding=False,
        )
    )
    for name in ("benchmark_fused_nodes", "benchmark_codegened_module"):
        # Equal (milliseconds, path) for all: a fusion that would be measured is accepted.
        stack.enter_context(replaced(scheduler, name, _always((0.001, ""))))


def _no_launchers(tuner: Any) -> None:
    tuner.launchers = []


def _fill_guarded_caches() -> None:
    """Call the guarded functions once while the device seems available: they cache the result."""
    with replaced(torch.cuda, "is_available", _yes):
        for path in _GUARDED:
            importlib.import_module(path.partition(":")[0])
            guarded = _resolve(path)
            if guarded is not None:
                guarded()


def _show_device(stack: ExitStack) -> None:
    """Let the functions of `_ASKING` see an available device."""
    # Loads the modules of `torch._inductor.kernel`, which cannot be imported before it.
    importlib.import_module("torch._inductor.lowering")
    for path in _ASKING:
        function = _resolve(path)
        if function is not None:
            owner, name = re.split(r"[:.](?=\w+$)", path)
            stack.enter_context(replaced(_resolve(owner), name, _with_device(function)))


def _with_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs as if the device were available."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _PATCHING, replaced(torch.cuda, "is_available", _yes):
            return function(*args, **kwargs)

    return call


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _always(value: object) -> Callable[..., Any]:
    """Return a function of anything that returns ``value``."""

    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _resolve(path: str) -> Any:
    """Return the object at ``module:name``, or None where this torch lacks it or has not loaded it."""
    module, _, name = path.partition(":")

    def part(owner: Any, attribute: str) -> Any:
        return getattr(owner, attribute, None)

    return functools.reduce(part, name.split(".") if name else [], sys.modules.get(module))


def _clear() -> None:
    """Clear cached facts of the device."""
    for path in _CACHES:
        clear = getattr(_resolve(path), "cache_clear", None)
        if clear is not None:
            clear()
