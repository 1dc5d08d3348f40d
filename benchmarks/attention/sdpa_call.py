"""`scaled_dot_product_attention` as PyTorch's tests call it, compiled once for each kind of call."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.overrides import handle_torch_function, has_torch_function

import inductor_plugin

ORIGINAL: Any = torch.nn.functional.scaled_dot_product_attention
BACKENDS = ("flash", "mem_efficient", "math", "cudnn")


def _attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    return ORIGINAL(*args, **kwargs)


class Calls:
    """Compiles calls and counts how each was run."""

    def __init__(self, arm: str, cache: Path) -> None:
        """Compile with the plugin (``plugin``), Inductor alone (``stock``) or nothing (``plain``).

        Timings are kept in ``cache``.
        """
        self._arm = arm
        self._cache = cache
        self._compiled: dict[Any, Callable[..., torch.Tensor]] = {}
        self.counts: Counter[str] = Counter()

        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        self.function = scaled_dot_product_attention

    def install(self, module: Any) -> None:
        """Replace the function, also in a module that imported it by name."""
        if self._arm == "plain":
            return
        # Dynamo looks functions up by name once, and has to find the original.
        torch.compile(_attention, backend="eager")(*[torch.zeros(1, 1, 1, 1)] * 3)
        # Each kind of call is a separate function; the limit applies to the variants of one.
        torch._dynamo.config.recompile_limit = 1024
        functional: Any = torch.nn.functional
        for owner in (functional, module):
            if getattr(owner, "scaled_dot_product_attention", None) is ORIGINAL:
                owner.scaled_dot_product_attention = self.function

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, compiled if it can become an attention operator."""
        if torch.compiler.is_compiling():
            return ORIGINAL(*args, **kwargs)
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
        if has_torch_function(tensors):
            return handle_torch_function(self.function, tensors, *args, **kwargs)
        reason = eager(tensors)
        if reason:
            self.counts[f"eager: {reason}"] += 1
            return ORIGINAL(*args, **kwargs)
        self.counts["compiled"] += 1
        key = signature(args, kwargs)
        if key not in self._compiled:
            self.counts["kinds of call"] += 1
            self._compiled[key] = self._compile(len(self._compiled))
        return self._compiled[key](*args, **kwargs)

    def summary(self) -> dict[str, int]:
        """Return the counts, including those of the plugin."""
        stats = inductor_plugin.stats()
        counts = dict(self.counts)
        if self._arm == "plugin":
            counts |= {"plugin: problems": stats.problems, "plugin: measured": stats.benchmarked}
            counts["plugin: failed"] = stats.failed
        return counts

    def _compile(self, number: int) -> Callable[..., torch.Tensor]:
        """Return a compiled function with a separate code object, for which Dynamo keeps variants."""
        code = _attention.__code__.replace(co_name=f"attention_{number}")
        function: Any = types.FunctionType(code, globals(), f"attention_{number}")
        options: Any = None
        backend = "inductor"
        if self._arm == "plugin":
            options = {"table": "off", "progress": "off", "cache_dir": str(self._cache)}
            backend = "inductor_plugin"
        return torch.compile(function, backend=backend, options=options, dynamic=False)


def eager(tensors: list[torch.Tensor]) -> str:
    """Return why a call stays eager; empty if it does not."""
    if any(tensor.is_nested for tensor in tensors):
        return "nested tensor"
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "not on a CPU"
    if enabled() == ("math",):
        return "the backend is forced to MATH"
    return ""


def enabled() -> tuple[str, ...]:
    """Return the backends that may be chosen."""
    state: Any = torch.backends.cuda
    return tuple(name for name in BACKENDS if getattr(state, f"{name}_sdp_enabled")())


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a compiled call depends on: kinds of operands, numbers, and torch's state."""
    state = (
        enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    return tuple(map(_kind, args)), tuple((n, _kind(v)) for n, v in sorted(kwargs.items())), state


def _kind(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return (
        tuple(value.shape),
        value.stride(),
        value.dtype,
        value.requires_grad,
        value.storage_offset(),
    )
