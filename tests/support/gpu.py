"""A simulated H100 for tests; see `inductor_plugin.aot.fake_device`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import functools
import inspect
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch

from inductor_plugin.aot.fake_device import as_target, replaced
from inductor_plugin.kernels.call import RequestKernel
from inductor_plugin.worker.child import inductor


def installed(devices: int = 1, **facts: Any) -> AbstractContextManager[SimpleNamespace]:
    """Simulate CUDA devices for the block, and yield their properties.

    Args:
        devices: Number of devices.
        facts: Properties other than those of an H100.
    """
    return as_target("H100", devices, facts)


def is_compiled(kernel: RequestKernel) -> bool:
    """Return True if a worker finds the compiled kernel of a request, as a launch does first."""
    from triton import knobs

    hits: list[bool] = []

    def compiled(*, cache_hit: bool, **others: Any) -> None:
        hits.append(cache_hit)

    with installed(), replaced(knobs.compilation, "listener", compiled):
        out = torch.empty(0)
        run: Any = inductor.bind_request(kernel, [], out)
        # torch 2.11 binds the arguments with functools.partial, later ones in a closure.
        partial = isinstance(run, functools.partial)
        method: Any = run.func if partial else inspect.getclosurevars(run).nonlocals["run_method"]
        method.__self__.precompile(warm_cache_only=True)
    return bool(hits) and all(hits)
