"""What generated code calls around a chosen kernel when ``check_outputs`` is on.

Before the kernel runs its inputs are looked at, because an epilogue may write over one of them;
behind it, its outputs. The answers about inputs stay on their device until an output is bad, so that
a kernel costs one wait for its device.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence

import torch

from inductor_plugin.errors import OutputError

logger = logging.getLogger(__name__)

_WIDE_FLOAT_BYTES = 2
"""Elements of one byte (float8) have no `isfinite` of their own."""
_EXCUSED: set[str] = set()
"""Records of which it was said that their kernel is not judged: a network has one in many layers."""


def finite(**inputs: object) -> dict[str, torch.Tensor]:
    """Return one answer for each input that can hold NaN or Inf: True if it holds none.

    Args:
        inputs: What a kernel reads, before it runs, by its name in the generated code; what is no
            plain floating-point tensor is left out.
    """
    if _capturing():
        return {}
    return {
        name: torch.isfinite(_comparable(one)).all()
        for name, one in inputs.items()
        if _can_be_bad(one)
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
    """Look at what a kernel has written.

    Inf-Inf and 0*Inf are NaN in a right kernel, too: where an input holds one, the kernel is not judged,
    which a warning says once for each record.

    Args:
        outputs: Names in the generated code and tensors.
        inputs: What `finite` said before the kernel ran.
        mode: ``nan`` looks for NaN, ``nonfinite`` for Inf too.
        kernel: The kernel, as tables name it.
        problem: The problem in one line.
        key: Of the problem's record.

    Raises:
        OutputError: An output holds such a value, and no input does.
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
    index = [int(one) for one in bad.nonzero()[0]]
    value = float(output[tuple(index)])
    extents = "x".join(map(str, output.size())) or "scalar"
    return (
        f"{kernel} wrote {value} at {index} of {name} ({output.dtype}, {extents}; {int(bad.sum())} of "
        f"{output.numel()} elements) for {problem}, though every input is finite; see "
        f"`inductor-plugin explain {key}`, run it alone with `inductor-plugin repro {key}`, or go on "
        "with check_outputs=off"
    )


def _can_be_bad(one: object) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and one.layout is torch.strided
        and (one.is_floating_point() or one.is_complex())
    )


def _comparable(one: object) -> torch.Tensor:
    assert isinstance(one, torch.Tensor)
    return one if one.element_size() >= _WIDE_FLOAT_BYTES else one.float()


def _capturing() -> bool:
    """Return whether a CUDA graph is being captured, which may not wait for the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@functools.cache
def _warn_of_capture() -> None:
    logger.warning("outputs are not checked inside a CUDA graph; run without one to check them")
