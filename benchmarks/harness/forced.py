"""Forces candidates to win regardless of speed; everything else is as in a user's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any
from unittest import mock

from inductor_plugin.cost import shortlist
from inductor_plugin.tuning import decision, selection
from inductor_plugin.tuning.decision import Verdict

UNFUSED, FUSED = "unfused", "fused."
WAYS = {"triton": f"{FUSED}triton", "cutlass": f"{FUSED}cutlass", "apart": UNFUSED}
"""Ways to compute an epilogue, and the prefixes of their candidates' identities; ``triton`` includes
Inductor's own templates, whose fused candidates are ``fused.triton_mm``."""

Decide = Callable[..., Verdict]
Prefix = str | tuple[str, ...] | None


def is_named(identity: str, prefix: str | tuple[str, ...]) -> bool:
    """Return whether a candidate's identity, or that of the product in a fusion's, starts with ``prefix``."""
    product = identity.removeprefix(f"{UNFUSED}.").removeprefix(FUSED)
    return identity.startswith(prefix) or product.startswith(prefix)


def decision_for(
    prefix: Prefix, winners: list[str], order: Callable[[str, float], Any] | None = None
) -> Decide:
    """Return a decision that chooses a candidate whose identity starts with ``prefix``.

    Where an epilogue is decided, that is a fused kernel if there is one, else the product and a kernel after it.
    Without such a candidate, the library kernel is chosen.

    Args:
        prefix: One prefix or several; None for the library kernel.
        winners: Collects the chosen identity, or the list of available ones.
        order: Sort key of the matching candidates, of identity and milliseconds; None keeps their order. Fused ones are first.
    """

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        del limits
        library = next(iter(libraries), None)
        if prefix is None:
            winners.append(str(library))
            return Verdict(library, library, "forced")
        matching = [name for name in medians_ms if is_named(name, prefix)]
        if order is not None:
            ranks = {name: order(name, medians_ms[name]) for name in matching}
            matching.sort(key=ranks.__getitem__)
        matching.sort(key=lambda name: not name.startswith(FUSED))
        if not matching:
            winners.append(f"none of {sorted(medians_ms)}")
            return Verdict(library, library, f"no candidate begins with {prefix}")
        winners.append(matching[0])
        return Verdict(matching[0], library, "forced")

    return decide


def fusion_decision_for(prefix: str, winners: list[str]) -> Decide:
    """Return a decision that chooses, of fused candidates, the fastest whose identity starts with ``prefix``.

    A product without an epilogue is decided as usual.
    """
    forced_fused = decision_for(prefix, winners, lambda name, ms: (ms, name))

    def decide(
        medians_ms: Mapping[str, float], libraries: Collection[str], *limits: Any
    ) -> Verdict:
        fused = any(name.startswith((UNFUSED, FUSED)) for name in medians_ms)
        return (forced_fused if fused else decision.decide)(medians_ms, libraries, *limits)

    return decide


@contextlib.contextmanager
def forced(
    prefix: Prefix, order: Callable[[str, float], Any] | None = None
) -> Generator[list[str]]:
    """Force a candidate to win within the block; yield the winners. See `decision_for`."""
    winners: list[str] = []
    with _deciding(decision_for(prefix, winners, order)):
        yield winners


@contextlib.contextmanager
def forced_fusion(way: str) -> Generator[list[str]]:
    """Force one of `WAYS` to win within the block; yield the winners.

    Nothing is pruned, so that slow kernels can win too.
    """
    winners: list[str] = []
    with (
        _deciding(fusion_decision_for(WAYS[way], winners)),
        mock.patch.object(shortlist.FusionEstimate, "why_not", return_value=None),
        mock.patch.object(shortlist.FusionEstimate, "why_not_compiled", return_value=None),
    ):
        yield winners


@contextlib.contextmanager
def _deciding(decide: Decide) -> Generator[None]:
    """Let ``decide`` choose among all candidates with correct results, not only the finalists."""
    with (
        mock.patch.object(selection, "decide", decide),
        mock.patch.object(selection, "contending", selection.medians_of),
    ):
        yield
