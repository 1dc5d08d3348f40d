"""Faults around any kernel: each calls it, and spoils its operands, its output, or both.

Unlike those of `wrong_numbers`, which compute ``a @ b`` themselves, they serve every operator.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Kernel = Callable[[Sequence[Tensor], Tensor], None]
"""Computes an output from its operands."""
Spoiled = Callable[[Kernel, Sequence[Tensor], Tensor], None]

_CALLS: Counter[str] = Counter()
_FIRST: dict[str, tuple[Tensor, ...]] = {}


def reset() -> None:
    """Forget all calls, as a new process would."""
    _CALLS.clear()
    _FIRST.clear()


def second_call(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    _CALLS["second_call"] += 1
    if _CALLS["second_call"] > 1:
        _times(out, 1.5)


def every_8th_call(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    _CALLS["every_8th_call"] += 1
    if _CALLS["every_8th_call"] % 8 == 0:
        _times(out, 1.5)


def a_call_without_writing(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    _CALLS["a_call_without_writing"] += 1
    if _CALLS["a_call_without_writing"] % 6:
        kernel(inputs, out)


def keeps_operands(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(_FIRST.setdefault("keeps_operands", tuple(inputs)), out)


def packs_by_address(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """Keep the numbers of the last matrix for its address, as a weight that is packed once."""
    operands = list(inputs)
    last = max(index for index, operand in enumerate(operands) if operand.dim() > 1)
    weight = operands[last]
    (operands[last],) = _FIRST.setdefault(f"packed {weight.data_ptr()}", (weight.clone(),))
    kernel(operands, out)


def writes_an_operand(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    first = next(each for each in inputs if each.numel() > 1)
    data = torch.empty(0, dtype=torch.uint8).set_(first.untyped_storage())
    data[:1].add_(1)


def overruns(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    behind = out.storage_offset() + out.numel()
    torch.as_strided(out, (16,), (1,), behind).view(torch.uint8).zero_()


def last_row_missing(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    before = out[..., -1:, :].clone()
    kernel(inputs, out)
    out[..., -1:, :] = before


def a_tile_twice(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """The first 4 columns are those of the next tile."""
    kernel(inputs, out)
    out[..., :4] = out[..., 4:8].clone()


def first_batch_for_all(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    out[1:] = out[:1].clone()


def five_percent(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    _times(out, 1.05)


def one_percent(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    _times(out, 1.01)


def needs_aligned_operands(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    if any(each.data_ptr() % 64 for each in inputs):
        _times(out, 1.5)


def main_thread_only(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    if threading.current_thread() is not threading.main_thread():
        _times(out, 1.5)


def product_one_percent(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel([inputs[0], inputs[1].double().mul(1.01).to(inputs[1].dtype), *inputs[2:]], out)


def added_one_percent(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel([inputs[0].double().mul(1.01).to(inputs[0].dtype), *inputs[1:]], out)


def reads_new_memory(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    scratch = torch.empty_like(out)
    kernel(inputs, out)
    out.add_(scratch)


def adds_to_what_was_there(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """As split-K with atomics, without clearing: NaN are taken for zeros, so that fresh outputs look right."""
    before = out.clone().nan_to_num_(0.0) if out.is_floating_point() else out.clone()
    kernel(inputs, out)
    out.add_(before)


def hides_nan(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    out.nan_to_num_(0.0, float("inf"), float("-inf"))


def saturates(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)
    if out.element_size() > 1:  # 8 bits saturate as they are
        out.clamp_(-4096, 4096)


def small_is_zero(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """Numbers below 2^-14, as where a product is kept in float16."""
    kernel(inputs, out)
    out[out.abs() < 2.0**-14] = 0


def last_term_missing(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """The last of the terms that A's rows, or an image's channels, contribute."""
    a = _factor(inputs).clone()
    # Of an image [N, C, H, W] the last channel, of a matrix the last column.
    (a[:, -1] if a.dim() == 4 else a[..., -1]).zero_()
    kernel([a if each is _factor(inputs) else each for each in inputs], out)


def exact(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    kernel(inputs, out)


def in_two_passes(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """Through scratch memory of its own, rounded once more."""
    scratch = torch.empty_like(out)
    kernel(inputs, scratch)
    out.copy_(scratch.double().to(out.dtype) if out.is_floating_point() else scratch)


def in_float64(kernel: Kernel, inputs: Sequence[Tensor], out: Tensor) -> None:
    """The most exact kernel there is: nothing is rounded but the output."""
    kernel([each.double() if each.is_floating_point() else each for each in inputs], out)


HONEST: tuple[Spoiled, ...] = (exact, in_two_passes)
OF_ALL: tuple[Spoiled, ...] = (
    second_call,
    every_8th_call,
    a_call_without_writing,
    keeps_operands,
    packs_by_address,
    writes_an_operand,
    overruns,
    last_row_missing,
    a_tile_twice,
    five_percent,
    needs_aligned_operands,
    main_thread_only,
    reads_new_memory,
    adds_to_what_was_there,
    last_term_missing,
    saturates,
)
OF_FLOATS: tuple[Spoiled, ...] = (one_percent, hides_nan, small_is_zero)
OF_SUMS: tuple[Spoiled, ...] = (product_one_percent, added_one_percent)
"""Of one of the two terms of ``alpha * (a @ b) + beta * c``."""
OF_BATCHES: tuple[Spoiled, ...] = (first_batch_for_all,)


def _times(out: Tensor, factor: float) -> None:
    out.copy_(out.double() * factor)


def _factor(inputs: Sequence[Tensor]) -> Tensor:
    """Return A: the first operand, behind a C that is broadcast or as large as the output."""
    added = len(inputs) == 3 and inputs[0].dim() == inputs[1].dim() == inputs[2].dim()
    return inputs[1] if added else inputs[0]
