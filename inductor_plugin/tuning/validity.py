"""Whether a recorded measurement is still valid under the current options."""

from __future__ import annotations

from typing import Any, cast

from inductor_plugin.cache import Measured
from inductor_plugin.config import Config
from inductor_plugin.problem.number_check import NumberCheck

LIMITING: dict[str, tuple[str, ...]] = {
    "hung": ("compile_timeout_s", "bench_timeout_s"),
    "out_of_memory": ("worker_memory_bytes",),
}
"""Options that may have ended a candidate, by its status; 0 means no limit."""

_NUMBERS, _UNCHECKED, _LIMITS = "numbers", "unchecked", "limits"
_NO_REFERENCE = "no reference"


def is_valid(measured: Measured, config: Config, *, library: bool) -> bool:
    """Return True if a measurement need not be repeated.

    Args:
        measured: The measurement.
        config: The current options.
        library: True for a library kernel; if it took too long, it is tried again, since without it
            there is no reference and no guard.
    """
    if measured.status == "pruned":  # depends neither on results nor on limits
        return True
    if measured.status == "skipped" or (library and measured.status in LIMITING):
        return False
    if config.verify_numerics and measured.provenance.get(_NUMBERS) == _UNCHECKED:
        return False
    return not was_limited(measured.status, measured.provenance.get(_LIMITS), config)


def was_limited(status: str, then: object, config: Config) -> bool:
    """Return True if a candidate failed at limits, recorded by `limits`, that have been raised since."""
    before = cast("dict[str, Any]", then) if isinstance(then, dict) else {}
    return any(
        _raised(before.get(name), getattr(config, name)) for name in LIMITING.get(status, ())
    )


def limits(status: str, config: Config) -> dict[str, dict[str, float]]:
    """Return the provenance of a candidate that exceeded a limit: the limits; empty otherwise."""
    values: dict[str, float] = {name: getattr(config, name) for name in LIMITING.get(status, ())}
    return {_LIMITS: values} if values else {}


def checked(check: NumberCheck | None, *, verify: bool) -> dict[str, str]:
    """Return the provenance of measurements without a check of results; empty otherwise.

    Args:
        check: How results were checked.
        verify: Whether the options ask for the check: then there was no library kernel among the candidates.
    """
    if check is not None:
        return {}
    return {_NUMBERS: _NO_REFERENCE if verify else _UNCHECKED}


def advice(status: str) -> str:
    """Return a hint at the options that may have ended a candidate, to append to the reason."""
    names = LIMITING.get(status, ())
    return f" (option {' or '.join(names)})" if names else ""


def _raised(then: Any, now: float) -> bool:
    return isinstance(then, int | float) and then != 0 and (now == 0 or now > then)
