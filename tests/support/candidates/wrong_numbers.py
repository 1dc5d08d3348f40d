"""Candidates whose numbers are wrong in ways that one comparison after one call does not show, and honest ones.

Operators of the namespace ``numbers``; all are to compute ``out = a @ b``, or with three operands ``out = c + a @ b``,
in any floating type. A worker imports this module because an `OpKernel` names it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Fault = Callable[[Tensor, Sequence[Tensor]], None]
Returned = Callable[[Sequence[Tensor]], Tensor]

_CALLS: Counter[str] = Counter()
_SCRATCH: dict[str, Tensor] = {}
_FIRST: dict[str, tuple[Tensor, ...]] = {}
LATE: list[threading.Timer] = []
"""Timers that `finishes_later` has started."""


def reset() -> None:
    """Forget all calls, as a new process would."""
    wait_for_threads(0)
    LATE.clear()
    _CALLS.clear()
    _SCRATCH.clear()
    _FIRST.clear()


def right(operands: Sequence[Tensor]) -> Tensor:
    """Return the exact result in float64, or in float32 where that is enough."""
    *added, a, b = operands
    result = a.double() @ b.double()
    return result + added[0].double() if added else result


def exact(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands))


def float32_sums(out: Tensor, operands: Sequence[Tensor]) -> None:
    *added, a, b = operands
    result = a.float() @ b.float()
    out.copy_(result + added[0].float() if added else result)


def split_k(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Add four partial sums that are rounded to the type of the output."""
    *added, a, b = operands
    parts = [
        (x.float() @ y.float()).to(out.dtype)
        for x, y in zip(a.chunk(4, 1), b.chunk(4, 0), strict=True)
    ]
    result = sum(parts[1:], parts[0])
    out.copy_(result + added[0] if added else result)


def uses_scratch(out: Tensor, operands: Sequence[Tensor]) -> None:
    scratch = torch.empty_like(out, dtype=torch.float32)
    scratch.zero_()
    scratch += right(operands).float()
    out.copy_(scratch)


HONEST: tuple[Fault, ...] = (exact, float32_sums, split_k, uses_scratch)


def every_10th_call(out: Tensor, operands: Sequence[Tensor]) -> None:
    _CALLS["every_10th_call"] += 1
    wrong = _CALLS["every_10th_call"] >= 10
    out.copy_(right(operands) * (1.5 if wrong else 1.0))


def every_10th_call_only(out: Tensor, operands: Sequence[Tensor]) -> None:
    _CALLS["every_10th_call_only"] += 1
    wrong = _CALLS["every_10th_call_only"] % 10 == 0
    out.copy_(right(operands) * (1.5 if wrong else 1.0))


def writes_nothing_now_and_then(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Leave out every eleventh call, as with a counter that nobody clears."""
    _CALLS["writes_nothing"] += 1
    if _CALLS["writes_nothing"] % 11:
        out.copy_(right(operands))


def flushes_factors(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Take small numbers of the product's factors for zeros, not of what is added."""
    least = 2e-3 if out.dtype == torch.float16 else 1e-5
    *added, a, b = operands
    small = [torch.where(each.abs() < least, 0.0, each.double()) for each in (a, b)]
    out.copy_(right([*added, *small]))


def clamps_c(out: Tensor, operands: Sequence[Tensor]) -> None:
    *added, a, b = operands
    out.copy_(right([*(each.double().clamp(-100, 100) for each in added), a, b]))


def spoils_all(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Write NaN everywhere if a single number overflows."""
    result = right(operands)
    largest = result.nan_to_num(0.0, 0.0, 0.0).abs().max()
    out.copy_(result if largest < 65520 else torch.full_like(result, float("nan")))


def calls_3_to_13(out: Tensor, operands: Sequence[Tensor]) -> None:
    _CALLS["calls_3_to_13"] += 1
    wrong = 3 <= _CALLS["calls_3_to_13"] <= 13
    out.copy_(right(operands) * (1.5 if wrong else 1.0))


def keeps_addresses(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Read the operands of the first call, as a descriptor or a captured graph does."""
    out.copy_(right(_FIRST.setdefault("operands", tuple(operands))))


def packs_by_address(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Keep the numbers of ``b`` for its address, as a weight that is packed once."""
    *others, b = operands
    (kept,) = _FIRST.setdefault(f"packed {b.data_ptr()}", (b.clone(),))
    out.copy_(right([*others, kept]))


def permutes_b(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Let the rows of ``b`` change places, and remember them."""
    *others, b = operands
    saved = _FIRST.setdefault(str(b.data_ptr()), (b.clone(),))
    b.copy_(saved[0].flip(0))
    out.copy_(right([*others, saved[0]]))


def clamps_operands(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right([operand.double().clamp(-30000, 30000) for operand in operands]))


def second_call(out: Tensor, operands: Sequence[Tensor]) -> None:
    _CALLS["second_call"] += 1
    if _CALLS["second_call"] == 1:
        out.copy_(right(operands))


def scratch_not_cleared(out: Tensor, operands: Sequence[Tensor]) -> None:
    result = right(operands)
    out.copy_(_SCRATCH.setdefault("sum", torch.zeros_like(result)).add_(result))


def adds_to_numbers(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(torch.where(out.isnan(), 0.0, out.double()) + right(operands))


def finishes_later(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands))
    LATE.append(threading.Timer(0.001, lambda: out.mul_(3)))
    LATE[-1].start()


def wait_for_threads(_seconds: float) -> None:
    for timer in LATE:
        timer.join()


def writes_a(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands))
    operands[-2].view(-1)[-1] += 1


def clears_b(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands))
    operands[-1].zero_()


def fills_gaps(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands))
    if out.stride(0) > out.size(1):
        torch.as_strided(out, (1,), (1,), out.storage_offset() + out.size(1)).fill_(7.0)
    else:
        out.mul_(1.5)


def saturates(out: Tensor, operands: Sequence[Tensor]) -> None:
    *added, a, b = operands
    out.copy_(right([*added, a.clamp(-6, 6), b.clamp(-6, 6)]))


def reads_new_memory(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands) + torch.empty(1 << 22, dtype=torch.float32)[:1])


def hides_nan(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right([operand.nan_to_num() for operand in operands]))


def reads_padding(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Multiply what follows a row of ``a`` by zero."""
    a = operands[-2]
    behind = torch.as_strided(a, (a.size(0), 1), a.stride(), a.storage_offset() + a.size(1))
    out.copy_(right(operands) + 0.0 * behind.double())


def last_tile_missing(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Leave out the rows after the last multiple of 8."""
    out.copy_(right(operands))
    out[out.size(0) // 8 * 8 :] = 0.0


def last_tile_overruns(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Write whole tiles of 8 rows."""
    out.copy_(right(operands))
    rows = -(-out.size(0) // 8) * 8
    torch.as_strided(out, (rows, out.size(1)), out.stride(), out.storage_offset())[-1].zero_()
    out.copy_(right(operands))


def too_large(out: Tensor, operands: Sequence[Tensor]) -> None:
    factor = 1.1 if out.dtype.itemsize == 1 else 1.01
    out.copy_(right(operands) * factor)


def drops_a_term(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Leave out the term with which the second half of the sum begins."""
    *added, a, b = operands
    kept = torch.arange(a.size(1)) != a.size(1) // 2
    out.copy_(right([*added, a[:, kept], b[kept]]))


def clamps_result(out: Tensor, operands: Sequence[Tensor]) -> None:
    out.copy_(right(operands).clamp(-60000, 60000))


def zeroes_small_numbers(out: Tensor, operands: Sequence[Tensor]) -> None:
    result = right(operands)
    out.copy_(torch.where(result.abs() < 0.5 * result.square().mean().sqrt(), 0.0, result))


def only_c(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Right where the weight is zero; NaN of A are seen."""
    c, a, _ = operands
    out.copy_(c + 0 * a.sum(-1, keepdim=True))


def forgets_c(out: Tensor, operands: Sequence[Tensor]) -> None:
    *_, a, b = operands
    out.copy_(right([a, b]))


def halves_c(out: Tensor, operands: Sequence[Tensor]) -> None:
    c, a, b = operands
    out.copy_(right([a, b]) + 0.5 * c.double())


def times_0(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Add 0 times ``c``, which is not to be read."""
    c, a, b = operands
    out.copy_(right([a, b]) + 0.0 * c.double())


def overflows_early(out: Tensor, operands: Sequence[Tensor]) -> None:
    """Compute in between what overflows float32 at some hundreds, as a naive tanh does."""
    result = right(operands).float()
    out.copy_(result * (result.exp() / result.exp()))


def returns_the_same_memory(operands: Sequence[Tensor]) -> Tensor:
    result = right(operands).to(operands[-1].dtype)
    return _SCRATCH.setdefault("result", torch.empty_like(result)).copy_(result)


def returns_transposed(operands: Sequence[Tensor]) -> Tensor:
    return right(operands).to(operands[-1].dtype).t().contiguous().t()


WRONG: tuple[Fault, ...] = (
    every_10th_call,
    every_10th_call_only,
    calls_3_to_13,
    writes_nothing_now_and_then,
    second_call,
    keeps_addresses,
    packs_by_address,
    permutes_b,
    scratch_not_cleared,
    adds_to_numbers,
    writes_a,
    clears_b,
    saturates,
    reads_new_memory,
    hides_nan,
    too_large,
    zeroes_small_numbers,
    flushes_factors,
    drops_a_term,
)
OF_LAYOUTS: tuple[Fault, ...] = (fills_gaps, reads_padding)
OF_C: tuple[Fault, ...] = (forgets_c, only_c, halves_c, clamps_c)
OF_TYPES: tuple[Fault, ...] = (clamps_operands,)
"""Wrong in types with float32's range."""
OF_SIZES: tuple[Fault, ...] = (last_tile_missing, last_tile_overruns)
"""Right where the rows are a multiple of 8."""
OF_FLOAT16: tuple[Fault, ...] = (clamps_result, spoils_all)


def float32_for_float64(out: Tensor, operands: Sequence[Tensor]) -> None:
    a, b = operands
    out.copy_(a.float() @ b.float())


def reads_int8(out: Tensor, operands: Sequence[Tensor]) -> None:
    a, b = operands
    out.copy_(a.to(torch.int8).long() @ b.to(torch.int8).long())


def int_in_float32(out: Tensor, operands: Sequence[Tensor]) -> None:
    a, b = operands
    out.copy_(a.float() @ b.float())


def whole(out: Tensor, operands: Sequence[Tensor]) -> None:
    a, b = operands
    out.copy_(a.long() @ b.long())


OTHERS: tuple[Fault, ...] = (float32_for_float64, reads_int8, int_in_float32, whole)
"""Of types other than those of `WRONG`."""

library: Any = torch.library.Library("numbers", "FRAGMENT")


def _define(fault: Fault) -> None:
    def two(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        fault(out, (a, b))
        return out

    def three(c: Tensor, a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        fault(out, (c, a, b))
        return out

    name = fault.__name__
    library.define(f"{name}(Tensor(y!) a, Tensor(z!) b, *, Tensor(x!) out) -> Tensor(x!)")
    library.define(
        f"{name}.c(Tensor c, Tensor(y!) a, Tensor(z!) b, *, Tensor(x!) out) -> Tensor(x!)"
    )
    library.impl(name, two, "CPU")
    library.impl(f"{name}.c", three, "CPU")


for each in (
    *HONEST,
    *WRONG,
    *OF_LAYOUTS,
    *OF_C,
    *OF_TYPES,
    *OF_SIZES,
    *OF_FLOAT16,
    *OTHERS,
    overflows_early,
    times_0,
    finishes_later,
):
    _define(each)
