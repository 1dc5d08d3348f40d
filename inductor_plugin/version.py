"""The version of the plugin, and of the packages around it."""

from __future__ import annotations

from contextlib import suppress

__version__ = "0.2.0"


def installed_version(*names: str) -> str | None:
    """Return the version of the first of these packages that is installed; None if none is.

    Args:
        names: Names of distributions: a package may have several, one for each CUDA.
    """
    # importlib.metadata takes 40 ms to import, which most verbs and CPUs do not need.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    for name in names:
        with suppress(PackageNotFoundError):
            return version(name)
    return None
