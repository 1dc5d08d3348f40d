"""Checks that generated code runs around a chosen kernel when ``check_outputs`` is on.

Inputs are checked before the kernel runs, because an epilogue may overwrite one of them; outputs after
it. The results for inputs stay on their device until an output is bad, so that a kernel costs one
synchronization.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence

import torch

from inductor_plugin.errors import OutputError

logger = logging.getLogger(__name__)

_WIDE_FLOAT_BYTES = 2
"""`torch.isfinite` does not support elements of one byte (float8)."""
_EXCUSED: set[str] = set()
"""Records already warned about, so that a kernel used by many layers warns once."""


def finite(**inputs: object) -> dict[str, torch.Tensor]:
    """Return for each input that can hold NaN or Inf whether all of it is finite, on its device.

    Args:
        inputs: The kernel's inputs, by their names in the generated code; values that are not strided
            floating-point tensors are left out.
    """
    if _capturing():
        return {}
    return {
        name: torch.isfinite(_comparable(value)).all()
        for name, value in inputs.items()
        if _can_be_bad(value)
    }


def check(
    outputs: Sequence[tuple[str, torch.Tensor]],
    inputs: Mapping[str, torch.Tensor],
    *,
    mode: str,
    kernel: str,
    problem: str,
    key: str,
) -> None:
    """Check the outputs of a kernel for NaN or Inf.

    Inf-Inf and 0*Inf are NaN in a correct kernel, too: where an input holds NaN or Inf, the kernel is
    not judged, with one warning for each record.

    Args:
        outputs: Names in the generated code and tensors.
        inputs: Result of `finite` before the kernel ran.
        mode: ``nan`` checks for NaN, ``nonfinite`` for Inf too.
        kernel: The kernel, as tables name it.
        problem: The problem in one line.
        key: Key of the problem's record.

    Raises:
        OutputError: An output holds NaN (or Inf), though every input is finite.
    """
    if _capturing():
        _warn_of_capture()
        return
    for name, output in outputs:
        if not _can_be_bad(output):
            continue
        value = _comparable(output)
        bad = torch.isnan(value) if mode == "nan" else ~torch.isfinite(value)
        if not bool(bad.any()):
            continue
        culprits = [read for read, is_finite in inputs.items() if not bool(is_finite)]
        if not culprits:
            raise OutputError(_message(name, output, bad, kernel, problem, key))
        logger.log(
            logging.DEBUG if key in _EXCUSED else logging.WARNING,
            "%s is not judged for %s of %s: there is NaN or Inf in it, and in what it read (%s)",
            *(kernel, name, problem, ", ".join(culprits)),
        )
        _EXCUSED.add(key)


def _message(
    name: str, output: torch.Tensor, bad: torch.Tensor, kernel: str, problem: str, key: str
) -> str:
    index = [int(position) for position in bad.nonzero()[0]]
    value = output[tuple(index)].item()
    extents = "x".join(map(str, output.size())) or "scalar"
    return (
        f"{kernel} wrote {value} at {index} of {name} ({output.dtype}, {extents}; {int(bad.sum())} of "
        f"{output.numel()} elements) for {problem}, though every input is finite; see "
        f"`inductor-plugin explain {key}`, run it alone with `inductor-plugin repro {key}`, or go on "
        "with check_outputs=off"
    )


def _can_be_bad(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and (value.is_floating_point() or value.is_complex())
    )


def _comparable(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value if value.element_size() >= _WIDE_FLOAT_BYTES else value.float()


def _capturing() -> bool:
    """Return whether a CUDA graph is being captured, which allows no synchronization."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@functools.cache
def _warn_of_capture() -> None:
    logger.warning(
        "inductor-plugin: outputs are not checked inside a CUDA graph; run without one to check them"
    )
