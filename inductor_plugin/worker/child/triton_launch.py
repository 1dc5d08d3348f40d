"""Launches of Triton kernels as generated code makes them, so that their host time can be compared.

Inductor's benchmark requests keep Triton's launcher from its fast path (3.6 us a launch instead of 0.8, torch 2.14), and its
modules for benchmarks make the device the current one before each kernel.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class BoundLaunch:
    """A launch on the stream that is current when it is called.

    Attributes:
        run: ``CachingAutotuner.run`` of the kernel.
        arguments: Its positional arguments, in which generated code has tensors and numbers.
        device: Index of the GPU, which is the current device.
        raw_stream: Returns the handle of the current stream of a device.
    """

    run: Callable[..., object]
    arguments: tuple[Any, ...]
    device: int
    raw_stream: Callable[[int], int]

    def __call__(self) -> None:
        """Launch the kernel."""
        self.run(*self.arguments, stream=self.raw_stream(self.device))


def of_request(call: Any, out: torch.Tensor) -> BoundLaunch | None:
    """Return the launch of a call that a benchmark request has bound; None where it does more, or is not on a GPU.

    Args:
        call: What ``TritonBenchmarkRequest.make_run_fn`` has returned: in torch 2.11 a partial, later a closure.
        out: The kernel's output.
    """
    if isinstance(call, functools.partial):
        partial: functools.partial[object] = call  # pyright: ignore[reportUnknownVariableType]
        known = "benchmark_run" in partial.keywords
        return _launch(partial.func, partial.args, out.device) if known else None
    if getattr(call, "__name__", "") != "run_fn":
        return None
    bound = inspect.getclosurevars(call).nonlocals
    if not {"run_method", "input_tensors", "extra_args"} <= set(bound):
        return None
    if bound.get("is_debug_autotuner", True):  # it times itself
        return None
    arguments = (*bound["input_tensors"], out, *bound["extra_args"])
    return _launch(bound["run_method"], arguments, out.device)


def of_module(module: Any, arguments: Sequence[Any], device: torch.device) -> BoundLaunch | None:
    """Return the launch of a module that Inductor has written to benchmark a fusion; None where it has another form."""
    names: dict[str, Any] = module.__dict__
    kernels = [value for value in names.values() if hasattr(value, "launchers")]
    return _launch(kernels[0].run, arguments, device) if len(kernels) == 1 else None


def _launch(run: Any, arguments: Sequence[Any], device: torch.device) -> BoundLaunch | None:
    tuner = getattr(run, "__self__", None)
    # Where cubins are stored for AOTInductor, a run that is no benchmark stores its kernel.
    if device.type != "cuda" or tuner is None or tuner.inductor_meta.get("store_cubin"):
        return None
    # Dynamo takes a second to import, which a worker for a CPU saves.
    interfaces: Any = importlib.import_module("torch._dynamo.device_interface")
    raw_stream = interfaces.get_interface_for_device("cuda").get_raw_stream
    return BoundLaunch(run, tuple(arguments), device.index or 0, raw_stream)
