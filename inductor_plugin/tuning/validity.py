"""Whether what was measured once still says what it would say under the options of today."""

from __future__ import annotations

from typing import Any, cast

from inductor_plugin.cache import Measured
from inductor_plugin.config import Config

LIMITING: dict[str, tuple[str, ...]] = {
    "hung": ("compile_timeout_s", "bench_timeout_s"),
    "out_of_memory": ("worker_memory_bytes",),
}
"""The options that may have ended a candidate, by how it fared; 0 stands for no limit."""

_NUMBERS, _UNCHECKED, _LIMITS = "numbers", "unchecked", "limits"


def is_valid(one: Measured, config: Config, *, library: bool) -> bool:
    """Return True if a measurement need not be made again.

    Args:
        one: The measurement.
        config: The options of today.
        library: True for a library kernel; one that took too long once is tried again, since
            without it there is no reference and no guard.
    """
    if one.status == "pruned":  # neither numbers nor limits have a part in it
        return True
    if one.status == "skipped" or (library and one.status in LIMITING):
        return False
    if config.verify_numerics and one.provenance.get(_NUMBERS) == _UNCHECKED:
        return False
    return not was_limited(one.status, one.provenance.get(_LIMITS), config)


def was_limited(status: str, then: object, config: Config) -> bool:
    """Return True if a candidate failed at limits, noted by `limits`, that have been raised since."""
    noted = cast("dict[str, Any]", then) if isinstance(then, dict) else {}
    return any(_raised(noted.get(name), getattr(config, name)) for name in LIMITING.get(status, ()))


def limits(status: str, config: Config) -> dict[str, dict[str, float]]:
    """Return what is noted beside a candidate that took too long or too much; nothing otherwise."""
    found: dict[str, float] = {name: getattr(config, name) for name in LIMITING.get(status, ())}
    return {_LIMITS: found} if found else {}


def checked(tolerance: float | None) -> dict[str, str]:
    """Return what is noted beside measurements whose numbers nobody looked at; nothing otherwise."""
    return {_NUMBERS: _UNCHECKED} if tolerance is None else {}


def advice(status: str) -> str:
    """Return what a user may do about a candidate that was ended, to be put behind the reason."""
    names = LIMITING.get(status, ())
    return f" (option {' or '.join(names)})" if names else ""


def _raised(then: Any, now: float) -> bool:
    return isinstance(then, int | float) and then != 0 and (now == 0 or now > then)
