"""Fixtures of all kernel templates."""

from __future__ import annotations

from tests.support.cutlass.toolkit import a_toolkit

__all__ = ["a_toolkit"]
