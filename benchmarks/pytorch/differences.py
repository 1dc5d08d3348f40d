"""How the results of two arms differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.pytorch.journal import Result


@dataclass(frozen=True)
class Difference:
    """A test with another outcome in the plugin's arm.

    Attributes:
        test: Its id.
        stock: What became of it without the plugin.
        plugin: What became of it with the plugin.
        why: Why it differs though the plugin is right; empty for a fault of the plugin.
        is_confirmed: Whether it has differed again when both arms ran it once more; False if there was no time for that.
    """

    test: str
    stock: Result
    plugin: Result
    why: str = ""
    is_confirmed: bool = True

    @property
    def is_fault(self) -> bool:
        """Whether the plugin is at fault: the test passed without it, and does not with it."""
        return self.stock.outcome == "passed" and not self.why

    def to_fields(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        message = (self.plugin if self.stock.outcome == "passed" else self.stock).message
        return {
            "test": self.test,
            "stock": self.stock.outcome,
            "plugin": self.plugin.outcome,
            "fault": self.is_fault,
            "confirmed": self.is_confirmed,
            "why": self.why,
            "message": message[-600:],
        }


def differences(
    stock: Mapping[str, Result], plugin: Mapping[str, Result], known: Mapping[str, str]
) -> list[Difference]:
    """Return the tests that have a result in both arms, and not the same.

    Args:
        stock: Results without the plugin, by test.
        plugin: Results with it.
        known: Why a test differs though the plugin is right.
    """
    return [
        Difference(test, result, plugin[test], known.get(test, ""))
        for test, result in stock.items()
        if test in plugin and plugin[test].outcome != result.outcome
    ]


def counts(stock: Mapping[str, Result], plugin: Mapping[str, Result]) -> dict[str, int]:
    """Return how many tests have a result in both arms, were skipped in neither, have the same result, and passed in both."""
    both = [
        (result.outcome, plugin[test].outcome) for test, result in stock.items() if test in plugin
    ]
    return {
        "in_both": len(both),
        "run_in_both": sum("skipped" not in outcomes for outcomes in both),
        "same": sum(first == second for first, second in both),
        "passed_in_both": sum(first == second == "passed" for first, second in both),
        "stock_s": round(sum(result.seconds for result in stock.values())),
        "plugin_s": round(sum(result.seconds for result in plugin.values())),
    }
