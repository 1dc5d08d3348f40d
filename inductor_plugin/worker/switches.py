"""torch's switches that choose among library kernels on a GPU: read in the user's process, set in a worker.

Sources: torch.backends (https://docs.pytorch.org/docs/stable/backends.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Switch:
    """One switch.

    Attributes:
        name: Its field in the key of an environment.
        default: Its value where the user has not set it.
        read: Returns its value in this process, a plain one.
        write: Sets it in this process.
    """

    name: str
    default: object
    read: Callable[[], object]
    write: Callable[[Any], object]


def differing() -> tuple[tuple[str, object], ...]:
    """Return the switches that are not at their default in this process, by name, with their values."""
    values = ((switch, switch.read()) for switch in SWITCHES)
    return tuple((switch.name, value) for switch, value in values if value != switch.default)


def apply(values: Iterable[tuple[str, object]]) -> None:
    """Set switches of this process; arguments as `differing` returns them, the others stay.

    Raises:
        KeyError: There is no such switch.
    """
    by_name = {switch.name: switch for switch in SWITCHES}
    for name, value in values:
        by_name[name].write(value)


def _of(owner: Any, attribute: str) -> tuple[Callable[[], object], Callable[[Any], object]]:
    """Return what reads and what sets a truth value that is an attribute."""
    return lambda: bool(getattr(owner, attribute)), lambda value: setattr(owner, attribute, value)


def _benchmark_limit() -> int:
    limit = getattr(_CUDNN, "benchmark_limit", None)  # None without cuDNN
    return _BENCHMARK_LIMIT if limit is None else int(limit)


def _limit_benchmark(limit: int) -> None:
    _CUDNN.benchmark_limit = limit


def _blas_library() -> str:
    return str(_CUDA.preferred_blas_library().name).lower()


_CUDA: Any = torch.backends.cuda  # typed partly
_CUDNN: Any = torch.backends.cudnn
_BENCHMARK_LIMIT = 10
_SDPA = {
    "flash": ("flash_sdp_enabled", "enable_flash_sdp"),
    "efficient": ("mem_efficient_sdp_enabled", "enable_mem_efficient_sdp"),
    "math": ("math_sdp_enabled", "enable_math_sdp"),
    "cudnn": ("cudnn_sdp_enabled", "enable_cudnn_sdp"),
}
SWITCHES = (
    Switch("cudnn_enabled", True, *_of(_CUDNN, "enabled")),  # noqa: FBT003
    Switch("cudnn_benchmark", False, *_of(_CUDNN, "benchmark")),  # noqa: FBT003
    Switch("cudnn_benchmark_limit", _BENCHMARK_LIMIT, _benchmark_limit, _limit_benchmark),
    Switch("cudnn_deterministic", False, *_of(_CUDNN, "deterministic")),  # noqa: FBT003
    Switch("fp16_accumulation", False, *_of(_CUDA.matmul, "allow_fp16_accumulation")),  # noqa: FBT003
    Switch("blas_library", "cublas", _blas_library, _CUDA.preferred_blas_library),
    *(
        Switch(f"sdpa_{name}", True, getattr(_CUDA, read), getattr(_CUDA, write))  # noqa: FBT003
        for name, (read, write) in _SDPA.items()
    ),
)
"""All of them; those of float32 and of reduced precision have fields of their own (`WorkerSettings`)."""
