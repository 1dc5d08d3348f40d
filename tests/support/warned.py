"""Warnings that a process gives once."""

from __future__ import annotations

import logging

import pytest

from inductor_plugin import errors


def forget() -> None:
    """Let every warning be given again."""
    errors._SAID.clear()  # pyright: ignore[reportPrivateUsage]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the plugin among what was logged."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("inductor_plugin")
    ]
