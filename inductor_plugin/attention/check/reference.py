"""Checks a candidate's numbers: the tolerance is derived from the error of the library kernel.

Three checks of every output, including lse and gradients:

1. Sampled rows against float64 (`inductor_plugin.attention.check.sample`): at most twice the error of the
   library kernel on the same rows, plus the rounding of the output.
2. The whole output against the library's: the difference is at most twice the sum of both bounds.
3. Rows that see no key: out and dq exactly 0, lse exactly +inf; keys that no query sees: dk and dv 0.

Two more runs: with NaN planted in the operands, which must propagate (`inductor_plugin.attention.check.poison`), and with large
scores and small values (`inductor_plugin.attention.check.steep`).

A library kernel that is wrong itself is reported, and candidates are not compared with it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inductor_plugin.attention.blockwise import ends_of
from inductor_plugin.attention.check.poison import NanSite, nan_leaks, nan_sites
from inductor_plugin.attention.check.sample import (
    SampledRows,
    Sampler,
    exact_rows,
    fully_masked_rows,
    lines,
    sequences,
    unattended_keys,
)
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.attention import Attention
from inductor_plugin.problem.tolerance import Bound, attention_bound

_NEIGHBOURS = 16
"""Rows on each side that a row's scale is pooled over: a gradient may cancel out in a single row."""
_BEYOND_SAMPLE = 2.0
"""How much larger the error of rows that are not sampled may be than that of the worst sampled row: with heads
of 8 and 37 080 rows, 7 of 250 right gradients had one number with up to 1.5 times the error."""
_CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one kernel's numbers.

    Attributes:
        error: Largest error of the sampled rows against float64 relative to the row's scale; None if
            the kernel wrote NaN or infinity where a finite number is right.
        reason: Why they are wrong; empty if they are right.
    """

    error: float | None
    reason: str = ""


class Reference:
    """The reference that all candidates of one attention are compared with."""

    def __init__(self, facts: Attention, operands: Mapping[str, Tensor]) -> None:
        """Compute the sampled rows.

        Args:
            facts: The attention.
            operands: Its operands by name, without the outputs; for gradients ``out``, ``lse`` and
                ``delta`` are not read: `prepared` has them.
        """
        self.facts = facts
        self._cu = {name: operands[name] for name in ("cu_q", "cu_k") if name in operands}
        sampler = Sampler(facts, operands)
        self.prepared: dict[str, Tensor] = {}
        parts = list(sampler.queries())
        if facts.backward:
            out, exact = exact_rows(facts, operands)
            parts += sampler.keys(exact)
            self.prepared = _prepared(facts, operands, out, exact.lse, self._cu)
        self._parts: dict[str, list[SampledRows]] = {}
        for part in parts:
            self._parts.setdefault(part.output, []).append(part)
        self._library: dict[str, Tensor] = {}
        self._library_error: dict[str, float] = {}
        self._tf32 = operands["q"].device.type != "cpu" and _tf32()

    def take(self, outputs: Mapping[str, Tensor]) -> CheckResult:
        """Keep the library kernel's outputs; the reason says what is wrong with them."""
        wrong: list[str] = []
        errors: list[float] = [0.0]
        self._library, self._library_error = {}, {}
        for name, tensor in outputs.items():
            unit = self._bound(name, tensor, None).unit
            error, where = self._excess(name, tensor, unit)
            errors.append(self._excess(name, tensor, 0.0)[0])
            limit = self._bound(name, tensor, None).relative
            empty = self._not_empty(name, tensor)
            if error > limit:
                wrong.append(f"{name} is off float64 by {error:.3g} of its row's scale{where}")
            elif empty:
                wrong.append(empty)
            if error <= limit:
                self._library[name] = tensor.clone()
                self._library_error[name] = error
        worst = max(errors)
        reason = f"the library kernel's {'; '.join(wrong)}" if wrong else ""
        return CheckResult(worst if math.isfinite(worst) else None, reason)

    @property
    def trusted(self) -> frozenset[str]:
        """The library kernel's outputs that are right."""
        return frozenset(self._library)

    def judge(self, outputs: Mapping[str, Tensor]) -> CheckResult:
        """Return whether a candidate is right."""
        worst = 0.0
        for name, tensor in outputs.items():
            bound = self._bound(name, tensor, self._library_error.get(name))
            error, where = self._excess(name, tensor, bound.unit)
            worst = max(worst, self._excess(name, tensor, 0.0)[0])
            library_error = self._library_error.get(name)
            if not error <= bound.relative:
                theirs = (
                    ""
                    if library_error is None
                    else f", the library kernel's is {library_error:.3g}"
                )
                reason = (
                    f"{name}: error {error:.3g} of its row's scale against float64{where}, "
                    f"accepted is {bound.relative:.3g}{theirs}"
                )
                return CheckResult(worst if math.isfinite(worst) else None, reason)
            reason = self._not_empty(name, tensor) or self._spread_out(name, tensor, bound)
            reason = reason or self._apart(name, tensor, bound)
            if reason:
                return CheckResult(worst, reason)
        return CheckResult(worst)

    def _bound(self, name: str, tensor: Tensor, library_error: float | None) -> Bound:
        return attention_bound(
            library_error,
            output_dtype=dtype_name(tensor.dtype),
            input_dtype=self.facts.dtype,
            reduction=self.facts.queries if name in ("dk", "dv") else self.facts.keys,
            tf32=self._tf32,
        )

    def _excess(self, name: str, tensor: Tensor, unit: float) -> tuple[float, str]:
        """Return the largest error beyond rounding in units of the row's scale, and where it is."""
        worst, place = 0.0, ""
        for part, errors in self._errors(name, tensor, unit):
            error, row = errors.amax(-1).max(0)
            if float(error) > worst:
                worst = float(error)
                where = int(part.rows[row])
                place = f" (sequence {part.sequence}, head {part.head}, row {where})"
        return worst, place

    def _errors(
        self, name: str, tensor: Tensor, unit: float
    ) -> Iterator[tuple[SampledRows, Tensor]]:
        """Yield the errors beyond rounding of each sampled part of an output (see `excess`)."""
        split = sequences(self.facts, name, tensor, self._cu)
        for part in self._parts.get(name, ()):
            got = split[part.sequence][part.head, part.rows].double()
            yield part, excess(got, part.values, part.scale, unit, _smallest(tensor.dtype))

    def _spread_out(self, name: str, tensor: Tensor, bound: Bound) -> str:
        """Return why the root mean square of all sampled errors is too large, empty if it is not."""
        if math.isinf(bound.spread):
            return ""
        errors = [errors.flatten() for _, errors in self._errors(name, tensor, bound.unit)]
        error = float(torch.cat(errors).square().mean().sqrt()) if errors else 0.0
        if error <= bound.spread:
            return ""
        return (
            f"{name}: error {error:.3g} of its rows' scale against float64, root mean square, accepted is "
            f"{bound.spread:.3g}"
        )

    @functools.cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """(Sq, Sk) of each sequence."""
        facts = self.facts
        if not facts.varlen:
            return [(facts.queries, facts.keys)] * facts.batch
        ends = [ends_of(self._cu[name]) for name in ("cu_q", "cu_k")]
        return [(b - a, d - c) for (a, b), (c, d) in zip(*ends, strict=True)]

    @functools.cached_property
    def planted(self) -> tuple[NanSite, ...]:
        """Where NaN is planted for the run that `nan_leaks` checks."""
        return nan_sites(self.facts, self.lengths)

    def plant(self, operands: Mapping[str, Sequence[Tensor]]) -> Callable[[], None] | None:
        """Plant NaN in a kernel's operands.

        Args:
            operands: q, k, v, and do for gradients; all copies of each.

        Returns:
            A function that removes it again; None if nothing was planted, because operands share memory
            and would be changed together.
        """
        spots = [
            sequences(self.facts, at.operand, copy, self._cu)[at.sequence][at.head, at.row, :1]
            for at in self.planted
            for copy in operands[at.operand]
        ]
        before = [spot.clone() for spot in spots]

        def restore() -> None:
            for spot, value in zip(spots, before, strict=True):
                spot.copy_(value)

        for spot in spots:
            spot.fill_(math.nan)
        changed = {site.operand for site in self.planted}
        alone = all(
            int(_comparable(copy).isnan().sum()) == (name in changed)
            for name, copies in operands.items()
            for copy in copies
        )
        if alone and spots:
            return restore
        restore()
        return None

    def nan_leaks(self, outputs: Mapping[str, Tensor], *, library: bool) -> str:
        """Return how a kernel treats planted NaN wrongly, empty if it does not; ``library`` if it is a library kernel."""
        leaks = (
            nan_leaks(
                self.facts,
                self.lengths,
                self.planted,
                name,
                sequences(self.facts, name, tensor, self._cu),
                library=library,
            )
            for name, tensor in outputs.items()
        )
        return next(filter(None, leaks), "")

    @functools.cached_property
    def _empty(self) -> dict[str, Tensor]:
        """Which rows of each output see nothing: of a batch element, varlen of all tokens."""
        facts = self.facts
        device = next(iter(self._parts.values()))[0].rows.device if self._parts else None
        device = device or torch.device("cpu")
        lengths = self.lengths if facts.varlen else self.lengths[:1]
        rows = torch.cat([fully_masked_rows(facts, q, k, device) for q, k in lengths])
        keys = torch.cat([unattended_keys(facts, q, k, device) for q, k in lengths])
        by_query = dict.fromkeys(("out", "lse", "dq"), rows)
        return {**by_query, "dk": keys, "dv": keys}

    def _not_empty(self, name: str, tensor: Tensor) -> str:
        """Return how rows that see nothing are wrong, empty if they are not."""
        empty = self._empty[name]
        if not bool(empty.any()):
            return ""
        convention = math.inf if name == "lse" else 0.0
        wrong = sum(
            int((rows[:, : empty.numel()][:, empty] != convention).any(-1).sum())
            for rows in lines(self.facts, name, tensor)
        )
        what = "keys that no query sees" if name in ("dk", "dv") else "rows that see no key"
        return f"{name}: {wrong} {what} are not {convention:g}" if wrong else ""

    def _apart(self, name: str, tensor: Tensor, bound: Bound) -> str:
        """Return where a candidate differs too much from the library kernel, over the whole output."""
        library = self._library.get(name)
        if library is None:
            return ""
        both = bound + Bound(self._library_error[name], bound.unit)
        both = Bound(_BEYOND_SAMPLE * both.relative, both.unit)
        scales = torch.cat([part.scale.flatten() for part in self._parts[name]])
        scales = scales[scales > 0]
        floor = float(scales.min()) if scales.numel() else 0.0
        pairs = zip(lines(self.facts, name, tensor), lines(self.facts, name, library), strict=True)
        for batch, (ours, theirs) in enumerate(pairs):
            heads = max(_CHUNK_ELEMENTS // max(ours[0].numel(), 1), 1)
            for start in range(0, ours.size(0), heads):
                part = slice(start, start + heads)
                far = _far(ours[part], theirs[part], name, both, floor)
                count = int(far.sum())
                if count:
                    head, row = (int(i) for i in far.any(-1).nonzero()[0])
                    return (
                        f"{name}: {count} numbers are further from the library kernel's than the "
                        f"bounds of both allow (batch {batch}, head {start + head}, row {row})"
                    )
        return ""


def excess(got: Tensor, want: Tensor, scale: Tensor, unit: float, smallest: float) -> Tensor:
    """Return the errors of numbers beyond their rounding, relative to their row's scale.

    Args:
        got: [n, width] in float64.
        want: The same.
        scale: [n, 1]; 0 for a row that must be exact.
        unit: Rounding of a number, relative to it.
        smallest: Rounding of the smallest numbers.
    """
    difference = (got - want).abs()
    spare = want.abs() * unit + torch.where(scale > 0, smallest, 0.0)
    same = (got == want) | (got.isnan() & want.isnan()) | (difference <= spare)
    return torch.where(same, 0.0, (difference - spare) / scale).nan_to_num(math.inf, math.inf)


def _far(mine: Tensor, other: Tensor, name: str, bound: Bound, floor: float) -> Tensor:
    """Return which numbers of [heads, rows, width] differ too much, where the other is finite."""
    wide = torch.float64 if other.dtype == torch.float64 else torch.float32
    got, want = mine.to(wide), other.to(wide)
    finite = want.isfinite()
    if name == "lse":
        scale = want.abs().clamp_min(1.0)
    else:
        size = want.where(finite, torch.zeros_like(want)).square().mean(-1).sqrt()
        window = 2 * _NEIGHBOURS + 1
        pooled = torch.nn.functional.max_pool1d(size, window, stride=1, padding=_NEIGHBOURS)
        scale = pooled.clamp_min(floor).unsqueeze(-1)
    limit = bound.relative * scale + bound.unit * want.abs() + 2 * _smallest(other.dtype)
    return finite & ~((got - want).abs() <= limit)


def _comparable(tensor: Tensor) -> Tensor:
    """Return a tensor in a type that every device can compare; 8-bit types become bfloat16."""
    return tensor.to(torch.bfloat16) if tensor.dtype.itemsize == 1 else tensor


def _smallest(dtype: torch.dtype) -> float:
    info = torch.finfo(dtype)
    return info.tiny * info.eps


def _tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def _prepared(
    facts: Attention,
    operands: Mapping[str, Tensor],
    out: Tensor,
    lse: Sequence[Tensor],
    cu: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return out, lse and delta as a forward pass stores them, rounded."""
    rounded = out.to(operands["do"].dtype)
    pairs = zip(
        sequences(facts, "out", rounded, cu),
        sequences(facts, "do", operands["do"], cu),
        strict=True,
    )
    delta = [(a.float() * b.float()).sum(-1) for a, b in pairs]
    join = functools.partial(torch.cat, dim=1) if facts.varlen else torch.stack
    return {"out": rounded, "lse": join(list(lse)).float(), "delta": join(delta)}
