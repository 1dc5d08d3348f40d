"""torch's switches that choose among library kernels on a GPU: read in the user's process, set in a worker.

Sources: torch.backends (https://docs.pytorch.org/docs/stable/backends.html), torch.nn.attention. Which of torch's there are
besides, and why they do not matter, is written in tests/worker/test_switches_of_torch.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import attention


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


def _priority() -> str:
    """Return the order of attention's backends, as text, since a key has no lists of numbers.

    The first attention of a process puts cuDNN first on a GPU of compute capability 9.0 or 10.0 (``priority_order`` in
    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). That is torch's own default there, not a change by the user: records from
    before that attention and from after it have one key.
    """
    order = " ".join(map(str, _C._get_sdp_priority_order()))
    return _SDPA_ORDER if order == _CUDNN_FIRST else order


def _set_priority(order: str) -> None:
    _C._set_sdp_priority_order([int(backend) for backend in order.split()])


def _carveout() -> int:
    return _C._get_sm_carveout_experimental() or 0


def _carve_out(count: int) -> None:
    _C._set_sm_carveout_experimental(count or None)


def _flash_implementation() -> str:
    return attention.current_flash_attention_impl() or ""


def _use_flash_implementation(name: str) -> None:
    """Let another package compute flash attention (FlashAttention 3, 4 ...); empty for torch's own.

    Raises:
        ValueError: This process does not know it: then no worker can measure what the user has.
    """
    if name:
        attention.activate_flash_attention_impl(name)
    elif attention.current_flash_attention_impl() is not None:
        attention.restore_flash_attention_impl()


def _workspace(library: str) -> tuple[Callable[[], object], Callable[[Any], object]]:
    """Return what reads and what sets the bytes of a library's workspace; 0 for the default, which is used where none are set.

    Those depend on the GPU and on environment variables, which a worker has, too.
    """
    read, write, reset = (
        getattr(_C, f"_cuda_{verb}{library}WorkspaceSize") for verb in ("get", "set", "reset")
    )

    @functools.cache
    def default() -> int:
        """Return the default: torch reports it only after a reset, which is taken back, once a process."""
        now = int(read())
        reset()
        try:
            known = int(read())
        except RuntimeError:  # asks for the GPU, and there is none
            known = -1
        if known != now:
            write(now)
        return known

    def bytes_set() -> int:
        try:
            now = int(read())
        except RuntimeError:
            return 0
        return 0 if now == default() else now

    return bytes_set, lambda count: write(count) if count else reset()


def _newer() -> tuple[Switch, ...]:
    """Return the switches that not every supported torch has."""
    switches: list[Switch] = []
    if hasattr(_C, "_get_cublaslt_prefer_grouped_gemm"):  # torch 2.14
        grouped = _of(_CUDA.matmul, "prefer_cublaslt_grouped_gemm")
        switches.append(Switch("cublaslt_grouped", False, *grouped))  # noqa: FBT003
    if hasattr(_C, "_get_cudnn_depthwise_kernel"):  # torch 2.14
        kernel = _C._get_cudnn_depthwise_kernel, _C._set_cudnn_depthwise_kernel
        switches.append(Switch("cudnn_depthwise_kernel", "auto", *kernel))
    switches += [
        Switch(f"{library.lower()}_workspace", 0, *_workspace(library))
        for library in ("Cublas", "CublasLt")
        if hasattr(_C, f"_cuda_reset{library}WorkspaceSize")  # torch 2.14
    ]
    if hasattr(_C, "_set_native_aot_enabled"):  # torch 2.15
        native = _C._get_native_aot_enabled, _C._set_native_aot_enabled
        switches.append(Switch("native_aot", True, *native))  # noqa: FBT003
    return tuple(switches)


_C: Any = getattr(torch, "_C")  # noqa: B009 - private: some switches have no public name
_CUDA: Any = torch.backends.cuda  # typed partly
_CUDNN: Any = torch.backends.cudnn
_BENCHMARK_LIMIT = 10
_SDPA_ORDER, _CUDNN_FIRST = "1 2 0 3 4", "3 1 2 0 4"
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
    Switch("sdpa_priority", _SDPA_ORDER, _priority, _set_priority),
    Switch(
        "sdpa_math_reduction",
        False,  # noqa: FBT003
        _CUDA.fp16_bf16_reduction_math_sdp_allowed,
        _CUDA.allow_fp16_bf16_reduction_math_sdp,
    ),
    Switch("flash_attention", "", _flash_implementation, _use_flash_implementation),
    Switch("sm_carveout", 0, _carveout, _carve_out),
    *_newer(),
)
"""All of them; those of float32 and of reduced precision have fields of their own (`WorkerSettings`)."""
