"""Classification of errors by class names and messages; torch is not needed."""

from __future__ import annotations

import re

from inductor_plugin.worker.jobs import Status

_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "memoryerror",
    "_status_alloc_failed",  # of cuBLAS, cuDNN and others
    "pch allocation failure",  # g++ with a precompiled header under a memory limit
)
_DEVICE_MEMORY_WORDS = ("out of memory", "outofmemoryerror", "_status_alloc_failed")
"""What torch's allocators of devices (``CUDA out of memory``, ``HIP``, ``XPU``, ``NPU`` ...) and libraries of kernels say; errors of the
host's memory have the other words."""
_STICKY_WORDS = (
    "CUDA error",
    "CUDA driver error",
    "HIP error",
    "Triton Error [CUDA]",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_EXECUTION_FAILED",
)


def says_no_memory(text: str) -> bool:
    """Return True if an error text of any library reports that memory ran out."""
    return any(words in text.lower() for words in _MEMORY_WORDS)


def says_no_device_memory(text: str) -> bool:
    """Return True if an error text, of a device of any type, reports that the device's own memory ran out."""
    return any(words in text.lower() for words in _DEVICE_MEMORY_WORDS)


def status_of(error: BaseException) -> Status:
    """Return the status of a candidate that raised an exception, by its class names and its message."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or says_no_memory(str(error)):
        return "out_of_memory"
    # Of a `KernelError`: the kernel did not start.
    if getattr(error, "cuda_error", None) is not None:
        return "sticky_error" if getattr(error, "is_sticky", False) else "raised"
    if "AcceleratorError" in names or any(words in str(error) for words in _STICKY_WORDS):
        return "sticky_error"
    return "raised"


_LONGEST_LINE = 300


def one_line(text: str) -> str:
    """Return the first non-empty line of a text, truncated to `_LONGEST_LINE` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


_FIGURES = re.compile(r"ptxas info\b|\s+\d+ bytes stack frame,")
"""Messages of ptxas about kernels that compile."""


_LAST_LINES = 12


def last_lines(output: str) -> str:
    """Return the last error lines of a compiler's output, or its last lines if there are none."""
    lines = [line for line in output.splitlines() if line.strip() and not _FIGURES.match(line)]
    # g++ and cudafe write "error:", nvcc "nvcc error   :", ptxas "ptxas fatal   :".
    errors = [line for line in lines if re.search(r"\b(error|fatal)\s*:", line)]
    return "\n".join((errors or lines)[-_LAST_LINES:])
