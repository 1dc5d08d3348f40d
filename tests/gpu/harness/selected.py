"""Which parameters of a session's tests are going to run, so that fixtures prepare no others."""

from __future__ import annotations

from typing import Any

import pytest


def selected(session: pytest.Session, parameter: str) -> list[str]:
    """Return the values of a parameter over all tests that are collected and not skipped."""
    result: dict[str, None] = {}
    for item in session.items:
        parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if parameter in parameters and item.get_closest_marker("skip") is None:
            result[str(parameters[parameter])] = None
    return list(result)
