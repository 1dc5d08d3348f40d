"""Whether a candidate computes an attention: no fixed tolerance, but the library kernel's own error.

Three looks at every output, lse and gradients among them:

1. Sampled rows against float64 (`attention_sample`): at most twice as far off as the library kernel
   is on the same rows, and the rounding of the output.
2. The whole output against the library's: at most twice as far apart as the bounds of both together.
3. Rows that see no key: out and dq exactly 0, lse exactly +inf; keys that no query sees: dk and dv 0.

And once with NaN planted in the operands: what must become NaN is not hidden (`attention_poison`).

A library kernel that is wrong itself is reported, and no candidate is held to its numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inductor_plugin.attention.blockwise import ends_of
from inductor_plugin.attention.poison import NanSite, nan_leaks, nan_sites
from inductor_plugin.attention.sample import (
    Part,
    Sampler,
    exact_rows,
    fully_masked_rows,
    lines,
    sequences,
    unattended_keys,
)
from inductor_plugin.problem.attention import Attention
from inductor_plugin.problem.tolerance import Bound, attention_bound

_NEIGHBOURS = 16
"""Rows on each side whose size may stand for a row's own: a gradient may cancel to nothing in one row."""
_BEYOND_SAMPLE = 2.0
"""How much further the rows that are not sampled may be off than the worst of those that are: with heads of
8 and 37 080 rows, 7 of 250 right gradients had one number up to 1.5 times as far off."""
_CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class CheckResult:
    """What was found of the numbers of one kernel.

    Attributes:
        error: Largest error of the sampled rows against float64 relative to the row's scale; None if
            something is NaN or infinite that is a number.
        reason: Why they are wrong; empty if they are right.
    """

    error: float | None
    reason: str = ""


class Reference:
    """What all candidates of one attention are held against."""

    def __init__(self, facts: Attention, operands: Mapping[str, Tensor]) -> None:
        """Compute the sampled rows.

        Args:
            facts: The attention.
            operands: Its operands by name, without what kernels write; for gradients ``out``, ``lse``
                and ``delta`` are not read: `prepared` gives them.
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
        self._parts: dict[str, list[Part]] = {}
        for one in parts:
            self._parts.setdefault(one.output, []).append(one)
        self._library: dict[str, Tensor] = {}
        self._library_error: dict[str, float] = {}
        self._tf32 = operands["q"].device.type != "cpu" and _tf32()

    def take(self, outputs: Mapping[str, Tensor]) -> CheckResult:
        """Keep what the library kernel gave; a reason is what is wrong with it."""
        wrong: list[str] = []
        errors: list[float] = [0.0]
        self._library, self._library_error = {}, {}
        for name, tensor in outputs.items():
            unit = self._bound(name, tensor, None).unit
            found, where = self._excess(name, tensor, unit)
            errors.append(self._excess(name, tensor, 0.0)[0])
            fixed = self._bound(name, tensor, None).relative
            empty = self._not_empty(name, tensor)
            if found > fixed:
                wrong.append(f"{name} is off float64 by {found:.3g} of its row's scale{where}")
            elif empty:
                wrong.append(empty)
            if found <= fixed:
                self._library[name] = tensor.clone()
                self._library_error[name] = found
        worst = max(errors)
        reason = f"the library kernel's {'; '.join(wrong)}" if wrong else ""
        return CheckResult(worst if math.isfinite(worst) else None, reason)

    def judge(self, outputs: Mapping[str, Tensor]) -> CheckResult:
        """Return whether a candidate is right."""
        worst = 0.0
        for name, tensor in outputs.items():
            bound = self._bound(name, tensor, self._library_error.get(name))
            found, where = self._excess(name, tensor, bound.unit)
            worst = max(worst, self._excess(name, tensor, 0.0)[0])
            known = self._library_error.get(name)
            if not found <= bound.relative:
                theirs = "" if known is None else f", the library kernel's is {known:.3g}"
                reason = (
                    f"{name}: error {found:.3g} of its row's scale against float64{where}, "
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
            output_dtype=str(tensor.dtype).removeprefix("torch."),
            input_dtype=self.facts.dtype,
            reduction=self.facts.queries if name in ("dk", "dv") else self.facts.keys,
            tf32=self._tf32,
        )

    def _excess(self, name: str, tensor: Tensor, unit: float) -> tuple[float, str]:
        """Return the largest error beyond rounding in units of the row's scale, and where it is."""
        worst, place = 0.0, ""
        for part, off in self._off(name, tensor, unit):
            found, row = off.amax(-1).max(0)
            if float(found) > worst:
                worst = float(found)
                where = int(part.rows[row])
                place = f" (sequence {part.sequence}, head {part.head}, row {where})"
        return worst, place

    def _off(self, name: str, tensor: Tensor, unit: float) -> Iterator[tuple[Part, Tensor]]:
        """Yield how far each sampled part of an output is off beyond rounding (see `excess`)."""
        split = sequences(self.facts, name, tensor, self._cu)
        for part in self._parts.get(name, ()):
            got = split[part.sequence][part.head, part.rows].double()
            yield part, excess(got, part.values, part.scale, unit, _smallest(tensor.dtype))

    def _spread_out(self, name: str, tensor: Tensor, bound: Bound) -> str:
        """Return what is wrong with the errors of all sampled rows together."""
        if math.isinf(bound.spread):
            return ""
        errors = [off.flatten() for _, off in self._off(name, tensor, bound.unit)]
        found = float(torch.cat(errors).square().mean().sqrt()) if errors else 0.0
        if found <= bound.spread:
            return ""
        return (
            f"{name}: error {found:.3g} of its rows' scale against float64, root mean square, accepted is "
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
        """Where NaN is planted for the run that `nan_leaks` looks at."""
        return nan_sites(self.facts, self.lengths)

    def plant(self, operands: Mapping[str, Sequence[Tensor]]) -> Callable[[], None] | None:
        """Plant NaN in a kernel's operands.

        Args:
            operands: q, k, v, and do for gradients; each in every memory that holds a copy of it.

        Returns:
            What takes it out again; None if nothing was planted, since an operand lies in another's
            memory and would be changed with it.
        """
        spots = [
            sequences(self.facts, one.operand, copy, self._cu)[one.sequence][one.head, one.row, :1]
            for one in self.planted
            for copy in operands[one.operand]
        ]
        before = [spot.clone() for spot in spots]

        def restore() -> None:
            for spot, value in zip(spots, before, strict=True):
                spot.copy_(value)

        for spot in spots:
            spot.fill_(math.nan)
        wanted = {one.operand for one in self.planted}
        alone = all(
            int(_comparable(copy).isnan().sum()) == (name in wanted)
            for name, copies in operands.items()
            for copy in copies
        )
        if alone and spots:
            return restore
        restore()
        return None

    def nan_leaks(self, outputs: Mapping[str, Tensor]) -> str:
        """Return what a kernel has made of planted NaN that it must not."""
        found = (
            nan_leaks(
                self.facts,
                self.lengths,
                self.planted,
                name,
                sequences(self.facts, name, tensor, self._cu),
            )
            for name, tensor in outputs.items()
        )
        return next(filter(None, found), "")

    @functools.cached_property
    def _empty(self) -> dict[str, Tensor]:
        """Which rows of each output are empty, one batch's or all tokens'."""
        facts = self.facts
        device = next(iter(self._parts.values()))[0].rows.device if self._parts else None
        device = device or torch.device("cpu")
        lengths = self.lengths if facts.varlen else self.lengths[:1]
        rows = torch.cat([fully_masked_rows(facts, q, k, device) for q, k in lengths])
        keys = torch.cat([unattended_keys(facts, q, k, device) for q, k in lengths])
        by_query = dict.fromkeys(("out", "lse", "dq"), rows)
        return {**by_query, "dk": keys, "dv": keys}

    def _not_empty(self, name: str, tensor: Tensor) -> str:
        """Return what is wrong with the rows that see nothing."""
        empty = self._empty[name]
        if not bool(empty.any()):
            return ""
        convention = math.inf if name == "lse" else 0.0
        wrong = sum(
            int((one[:, : empty.numel()][:, empty] != convention).any(-1).sum())
            for one in lines(self.facts, name, tensor)
        )
        what = "keys that no query sees" if name in ("dk", "dv") else "rows that see no key"
        return f"{name}: {wrong} {what} are not {convention:g}" if wrong else ""

    def _apart(self, name: str, tensor: Tensor, bound: Bound) -> str:
        """Return where a candidate is too far from the library kernel, over the whole output."""
        library = self._library.get(name)
        if library is None:
            return ""
        both = bound + Bound(self._library_error[name], bound.unit)
        both = Bound(_BEYOND_SAMPLE * both.relative, both.unit)
        scales = torch.cat([one.scale.flatten() for one in self._parts[name]])
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
    """Return how far numbers are off beyond their rounding, relative to their row's scale.

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
    """Return which numbers of [heads, rows, width] are too far apart, where the other is finite."""
    wide = torch.float64 if other.dtype == torch.float64 else torch.float32
    got, want = mine.to(wide), other.to(wide)
    known = want.isfinite()
    if name == "lse":
        scale = want.abs().clamp_min(1.0)
    else:
        size = want.where(known, torch.zeros_like(want)).square().mean(-1).sqrt()
        window = 2 * _NEIGHBOURS + 1
        pooled = torch.nn.functional.max_pool1d(size, window, stride=1, padding=_NEIGHBOURS)
        scale = pooled.clamp_min(floor).unsqueeze(-1)
    limit = bound.relative * scale + bound.unit * want.abs() + 2 * _smallest(other.dtype)
    return known & ~((got - want).abs() <= limit)


def _comparable(tensor: Tensor) -> Tensor:
    """Return a tensor in a type whose numbers are compared on every device, which 8 bits are not."""
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
    """Return out, lse and delta as a forward leaves them: rounded as they are stored."""
    rounded = out.to(operands["do"].dtype)
    pairs = zip(
        sequences(facts, "out", rounded, cu),
        sequences(facts, "do", operands["do"], cu),
        strict=True,
    )
    delta = [(a.float() * b.float()).sum(-1) for a, b in pairs]
    join = functools.partial(torch.cat, dim=1) if facts.varlen else torch.stack
    return {"out": rounded, "lse": join(list(lse)).float(), "delta": join(delta)}
