"""Whether a GPU may have no room for the benchmark worker: asked before anything is compiled for it."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_COMPUTE_MODE = 20
"""``CU_DEVICE_ATTRIBUTE_COMPUTE_MODE``."""
_CLOSED_MODES = {2: "prohibited", 3: "exclusive"}
"""``CUcomputemode``: of an exclusive GPU one process may have a context; under MPS that is MPS's own, which serves others."""
CONTEXT_BYTES = 640 << 20
"""Free memory below which no kernel is expected to run: a context with the modules of torch's libraries takes some 0.6 GiB."""


def why_scarce(device: str) -> str:
    """Return why a second process may not get to a GPU, in words; empty if it should, or if that is not known.

    It is known where this process uses CUDA already: asking creates no context.

    Args:
        device: ``cpu``, or a CUDA device such as ``cuda:0``.
    """
    if device == "cpu" or not torch.cuda.is_initialized():
        return ""
    mode = _CLOSED_MODES.get(_compute_mode(torch.device(device).index or 0))
    if mode is not None:
        return f"its compute mode is {mode}"
    cuda: Any = torch.cuda  # typed partly
    free_bytes = int(cuda.mem_get_info(device)[0])
    return "" if free_bytes >= CONTEXT_BYTES else f"only {free_bytes >> 20} MiB of it are free"


def _compute_mode(index: int) -> int:
    """Return the compute mode of a device by CUDA's number, as the driver says it; 0, the default, if it does not."""
    mode, handle = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    failed = driver.cuDeviceGet(ctypes.byref(handle), index)
    failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, handle)
    return 0 if failed else mode.value
