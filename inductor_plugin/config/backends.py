"""The backends that an option lists: which kernels it admits."""

from __future__ import annotations

from collections.abc import Sequence


def backends_of(value: str) -> tuple[str, ...]:
    """Return the backends in the value of an option, ``gemm_backends`` or ``attention_backends``.

    Args:
        value: Names separated by commas, as `Config` has them; empty for all.
    """
    return tuple(filter(None, value.split(",")))


def why_not_listed(option: str, backends: Sequence[str], backend: str) -> str | None:
    """Return which option excludes a backend, None if it lists the backend or none at all.

    Args:
        option: Name of the option, for the sentence.
        backends: The backends it lists; empty for all.
        backend: The backend.
    """
    if not backends or backend in backends:
        return None
    return f"{option} is {','.join(backends)}, without {backend}"
