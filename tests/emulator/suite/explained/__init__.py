"""Why mutants are missed or not run, by family and opcode: the reason for each place that the table has."""

from __future__ import annotations

from collections.abc import Mapping

from tests.emulator.suite.explained import attention, gemm, triton
from tests.emulator.suite.explained.reasons import THIS_CASE, Places

__all__ = ["EXPLAINED"]


def _whole(places: Places, unseen: Mapping[tuple[str, str], tuple[int, ...]]) -> Places:
    """Return the reasons with those of mutants that are right in the representative's case alone, which overrule others."""
    return {
        key: {**places.get(key, {}), **dict.fromkeys(unseen.get(key, ()), THIS_CASE)}
        for key in (*places, *unseen)
    }


EXPLAINED: Places = {
    **_whole(gemm.PLACES, gemm.UNSEEN),
    **_whole(attention.PLACES, attention.UNSEEN),
    **triton.PLACES,
}
"""Places of mutants, each with its reason."""
