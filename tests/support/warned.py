"""Warnings that a process gives once."""

from __future__ import annotations

from inductor_plugin import errors


def forget() -> None:
    """Let every warning be given again."""
    errors._SAID.clear()  # pyright: ignore[reportPrivateUsage]
