"""What an error text means for a candidate. It goes by names and words: no torch is needed."""

from __future__ import annotations

import re

from inductor_plugin.worker.jobs import Status

_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")
_STICKY_WORDS = (
    "CUDA error",
    "CUDA driver error",
    "HIP error",
    "Triton Error [CUDA]",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_EXECUTION_FAILED",
)


def says_no_memory(text: str) -> bool:
    """Return True if an error text, of whatever library, says that memory ran out."""
    return any(words in text.lower() for words in _MEMORY_WORDS)


def status_of(error: BaseException) -> Status:
    """Return how a candidate fared that raised this; needs no torch, so it goes by name and text."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or says_no_memory(str(error)):
        return "out_of_memory"
    if "AcceleratorError" in names or any(words in str(error) for words in _STICKY_WORDS):
        return "sticky_error"
    return "raised"


def one_line(text: str, limit: int = 300) -> str:
    """Return the text's first line that says something, cut to a length people read."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


_FIGURES = re.compile(r"ptxas info\b|\s+\d+ bytes stack frame,")
"""What ptxas says of kernels that compile."""


_LAST_LINES = 12


def last_lines(output: str) -> str:
    """Return the lines of a compiler's output with an error in them, or simply the last ones."""
    lines = [line for line in output.splitlines() if line.strip() and not _FIGURES.match(line)]
    # g++ and cudafe write "error:", nvcc "nvcc error   :", ptxas "ptxas fatal   :".
    errors = [line for line in lines if re.search(r"\b(error|fatal)\s*:", line)]
    return "\n".join((errors or lines)[-_LAST_LINES:])
