"""Forces candidates to win, however fast the others are; all else is what a user's process does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any
from unittest import mock

from inductor_plugin.cost import shortlist
from inductor_plugin.tuning import decision, selection
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.selection import Selection

UNFUSED = "unfused"
WAYS = {"triton": "fused.triton", "cutlass": "fused.cutlass", "apart": UNFUSED}
"""Ways to compute an epilogue, and how the identities of their candidates begin; ``triton`` includes
Inductor's own templates, whose fused candidates are ``fused.triton_mm``."""

Decide = Callable[..., Verdict]
Prefix = str | tuple[str, ...] | None


def decision_for(
    prefix: Prefix, taken: list[str], order: Callable[[str, float], Any] | None = None
) -> Decide:
    """Return a decision that takes a candidate whose identity begins with ``prefix``.

    The library kernel is taken where there is none.

    Args:
        prefix: One beginning or several; None for the library kernel.
        taken: Gets the identity that is taken, or which ones there are instead.
        order: Sorts the fitting candidates by identity and milliseconds; as they are offered if None.
    """

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        del limits
        library = next(iter(libraries), None)
        if prefix is None:
            taken.append(str(library))
            return Verdict(library, library, "forced")
        fitting = [name for name in medians_ms if name.startswith(prefix)]
        if order is not None:
            ranks = {name: order(name, medians_ms[name]) for name in fitting}
            fitting.sort(key=ranks.__getitem__)
        if not fitting:
            taken.append(f"none of {sorted(medians_ms)}")
            return Verdict(library, library, f"no candidate begins with {prefix}")
        taken.append(fitting[0])
        return Verdict(fitting[0], library, "forced")

    return decide


def fusion_decision_for(prefix: str, taken: list[str]) -> Decide:
    """Return a decision that takes, of the ways to fuse, the fastest whose identity begins with ``prefix``.

    A product alone is decided as always.
    """
    forced_fused = decision_for(prefix, taken, lambda name, ms: (ms, name))

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        fused = any(name.startswith((UNFUSED, "fused.")) for name in medians_ms)
        return (forced_fused if fused else decision.decide)(medians_ms, libraries, *limits)

    return decide


@contextlib.contextmanager
def forced(
    prefix: Prefix, order: Callable[[str, float], Any] | None = None
) -> Generator[list[str]]:
    """Force a candidate to win within the block; give what was taken. See `decision_for`."""
    taken: list[str] = []
    with _deciding(decision_for(prefix, taken, order)):
        yield taken


@contextlib.contextmanager
def forced_fusion(way: str) -> Generator[list[str]]:
    """Force one of `WAYS` to win within the block; give what was taken.

    Nothing is pruned, so that a slow kernel can be taken too.
    """
    taken: list[str] = []
    with (
        _deciding(fusion_decision_for(WAYS[way], taken)),
        mock.patch.object(shortlist.FusionEstimate, "why_not", return_value=None),
        mock.patch.object(shortlist.FusionEstimate, "why_not_compiled", return_value=None),
    ):
        yield taken


@contextlib.contextmanager
def _deciding(decide: Decide) -> Generator[None]:
    """Let ``decide`` choose among all candidates that ran and are right, not the finalists alone."""
    with (
        mock.patch.object(selection, "decide", decide),
        mock.patch.object(Selection, "_contending", Selection.medians),
    ):
        yield
