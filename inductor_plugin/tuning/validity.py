"""Whether a recorded measurement is still valid under the current options."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from inductor_plugin.cache import Measured, Quarantined
from inductor_plugin.cache.quarantine import CONDEMNING, MISHAPS
from inductor_plugin.cache.record import DISTURBED_FIELD, NO_REFERENCE, UNCHECKED
from inductor_plugin.config import Config
from inductor_plugin.problem.number_check import REVISION, NumberCheck
from inductor_plugin.worker.jobs import CHANGED, COMPARED_ONCE

LIMITING: dict[str, tuple[str, ...]] = {
    "hung": ("compile_timeout_s", "bench_timeout_s"),
    "out_of_memory": ("worker_memory_bytes",),
    "crashed": ("worker_memory_bytes",),  # an allocation that fails may be answered by a crash
}
"""Options that may have ended a candidate, by its status; 0 means no limit, for memory the default one."""
_ADVISED = frozenset({"hung", "out_of_memory"})

_NUMBERS, _LIMITS, _CHECK = "numbers", "limits", "check"

_UNMEASURED = {"pruned": "", "skipped": "skipped, not measured"}
"""Why a candidate without samples is measured: one that was pruned need not be, whatever the options."""
REFUSED = "refused by an earlier check of numbers"
"""Reason not to use a measurement: an earlier revision of the check called its numbers wrong, or an operand changed."""
NOT_CHECKED = "numbers not checked"
"""Reason not to use a measurement: its numbers were not compared."""
DISTURBED = "measured beside other work"
"""Reason to repeat a measurement: other work on the machine has prolonged every sample."""
UNDECIDED = "the tuning budget ended before its finals"
"""Reason to repeat a measurement: it could have won, and was not measured in enough turns."""
UNPROVEN = "its gain was less than its samples varied"
"""Reason to repeat a measurement: in turns with the library kernel it was faster, but not in enough of them."""
_UNDECIDED_FIELD, _UNPROVEN_VALUE = "undecided", "unproven"
"""Field of the provenance that is True of a measurement cut short, and its value of an unproven one."""
MOST_PROOFS = 3
"""Races after which a gain that is still not proven is none."""
_ATTEMPTS = "attempts"
_MOST_ATTEMPTS = 6
AGAIN_S, _LATER = 10.0, 6.0
"""Seconds after which such a measurement is repeated, and how many times as long after each further attempt: 10 s, a minute, 6
and 36 minutes, 4 hours, then once a day. A machine that is always busy pays for few of them, and one that was busy for a day
does not keep what it chose then for months."""


def is_valid(measured: Measured, config: Config, *, library: bool, reference: bool = True) -> bool:
    """Return True if a measurement need not be repeated; the arguments are those of `why_void`."""
    return not why_void(measured, config, library=library, reference=reference)


def why_void(measured: Measured, config: Config, *, library: bool, reference: bool = True) -> str:
    """Return why a measurement has to be repeated, in a few words; empty if it need not be.

    Args:
        measured: The measurement.
        config: The current options.
        library: True for a library kernel; if it took too long, it is tried again, since without it
            there is no reference and no guard.
        reference: Whether there is a library kernel to compare numbers with.
    """
    if measured.status in _UNMEASURED:
        return _UNMEASURED[measured.status]
    if library and measured.status in LIMITING:
        return f"a library kernel that is {measured.status} is tried again"
    if config.verify_numerics and not library and is_unchecked(measured, reference=reference):
        return NOT_CHECKED
    if not library and was_refused_earlier(measured.status, measured.reason, measured.provenance):
        return REFUSED
    if was_limited(measured.status, measured.provenance.get(_LIMITS), config):
        return f"{measured.status} at a limit that has been raised since"
    # Where nothing is measured, a disturbed measurement is better than none.
    again = config.policy == "tune" and is_provisional(measured) and time.time() >= due_at(measured)
    why = DISTURBED if measured.noisy else UNPROVEN if is_unproven(measured) else UNDECIDED
    return why if again else ""


def unused(
    recorded: Mapping[str, Measured],
    libraries: Collection[str],
    config: Config,
    *,
    library_may_win: bool = True,
) -> dict[str, str]:
    """Return which of a record's measurements are not used under the current options, and why.

    Where a disturbed library kernel is measured again, so are the finalists that it was compared with.

    Args:
        recorded: The measurements by candidate.
        libraries: The library kernels.
        config: The options.
        library_may_win: False if the user has excluded the library kernels.
    """
    void = {
        name: why
        for name, row in recorded.items()
        if (why := why_unused(row, config, library=name in libraries, reference=bool(libraries)))
    }
    if any(void.get(name) == DISTURBED for name in libraries):
        void |= {
            name: DISTURBED
            for name, row in recorded.items()
            if row.status == "ok" and row.provenance.get("race") == "final" and name not in void
        }
    behind = {name: row for name, row in recorded.items() if is_compared_once(row)}
    if not behind:
        return void
    rivals_ms = [
        row.median_ms
        for name, row in recorded.items()
        if row.median_ms is not None
        and name not in (void | behind)
        and (library_may_win or name not in libraries)
    ]
    fastest_ms = min(rivals_ms, default=math.inf)
    return void | {
        name: NOT_CHECKED
        for name, row in behind.items()
        if name not in void and min(row.samples_ms, default=0.0) <= fastest_ms
    }


def is_compared_once(measured: Measured) -> bool:
    """Return True if a candidate was too slow to win, so that its numbers were compared on the operands as they are alone."""
    return measured.status == "ok" and measured.provenance.get(COMPARED_ONCE) is True


def why_unused(measured: Measured, config: Config, *, library: bool, reference: bool = True) -> str:
    """Return why a record's measurement is not used: that of `why_void`, or it was a mishap.

    The quarantine counts mishaps, and says which candidates are tried again.
    """
    mishap = f"{measured.status} once" if measured.status in MISHAPS else ""
    return why_void(measured, config, library=library, reference=reference) or mishap


def is_provisional(measured: Measured) -> bool:
    """Return True if a later compile repeats a measurement: it is not calm, or not decided."""
    return measured.status == "ok" and (measured.noisy or is_undecided(measured))


def is_undecided(measured: Measured) -> bool:
    """Return True if a candidate may win yet: the tuning budget ended before its finals, or its gain is unproven."""
    cut_short = measured.status == "ok" and measured.provenance.get(_UNDECIDED_FIELD) is True
    return cut_short or is_unproven(measured)


def is_unproven(measured: Measured) -> bool:
    """Return True if a candidate was faster than the library kernel by less than the samples vary, and is measured again."""
    value = measured.provenance.get(_UNDECIDED_FIELD)
    return measured.status == "ok" and value == _UNPROVEN_VALUE


def is_calm(measured: Measured) -> bool:
    """Return True if there are undisturbed samples, which vary by less than their median."""
    return measured.status == "ok" and not measured.noisy


def attempts(measured: Measured) -> int:
    """Return how often a provisional measurement has been tried; 0 for another one."""
    count = measured.provenance.get(_ATTEMPTS)
    known = count if isinstance(count, int) else 1
    return min(max(known, 1), _MOST_ATTEMPTS) if is_provisional(measured) else 0


def disturbance(before: Measured | None) -> dict[str, Any]:
    """Return the provenance of a disturbed measurement; ``before`` is the one in the record, if any."""
    return {DISTURBED_FIELD: True, **_tried(before)}


def indecision(before: Measured | None) -> dict[str, Any]:
    """Return the provenance of an undecided measurement; ``before`` is the one in the record, if any."""
    return {_UNDECIDED_FIELD: True, **_tried(before)}


def unproven(before: Measured | None) -> dict[str, Any]:
    """Return the provenance of a measurement whose gain is not proven; nothing after so many that it never will be."""
    tried = _tried(before)
    return {} if tried[_ATTEMPTS] > MOST_PROOFS else {_UNDECIDED_FIELD: _UNPROVEN_VALUE, **tried}


def _tried(before: Measured | None) -> dict[str, int]:
    return {_ATTEMPTS: 1 + (attempts(before) if before is not None else 0)}


def due_at(measured: Measured) -> float:
    """Return when a provisional measurement is repeated, in seconds since 1970."""
    return measured.measured_at + wait_s(attempts(measured))


def wait_s(tries: int) -> float:
    """Return the seconds after which something is measured again that other work has disturbed so often in a row."""
    return AGAIN_S * _LATER ** (min(tries, _MOST_ATTEMPTS) - 1)


def again_at(rows: Iterable[Measured]) -> float:
    """Return when the first of provisional measurements is repeated, in seconds since 1970; 0 if none is provisional."""
    return min((due_at(row) for row in rows if is_provisional(row)), default=0.0)


def is_unchecked(measured: Measured, *, reference: bool = True) -> bool:
    """Return True if a candidate's numbers were not compared, although there is a library kernel.

    Earlier versions did not mark such a measurement; it has no error.
    """
    numbers = measured.provenance.get(_NUMBERS)
    silent = measured.status == "ok" and measured.error is None and numbers is None
    return numbers == UNCHECKED or silent or (reference and numbers == NO_REFERENCE)


def keeps_out(entry: Quarantined, config: Config) -> bool:
    """Return True if a candidate in quarantine is not tried again under the current options.

    A fault of its own keeps it out at once. A mishap may be the machine's fault (a process that was killed,
    memory that others had taken), so it takes two. A mishap under limits stricter than the default does not
    count for other limits (`Quarantined.condemned`). Numbers that an earlier check refused are compared again.
    """
    if was_limited(entry.status, entry.fields.get(_LIMITS), config):
        return False
    if was_crowded(entry):
        return False
    if was_refused_earlier(entry.status, entry.reason, entry.fields):
        return False
    return entry.condemned or entry.count >= CONDEMNING


def is_strict(status: str, config: Config) -> bool:
    """Return True if a limit that may end a candidate so is stricter than the default."""
    usual = Config(cache_dir=config.cache_dir)  # there may be no default one
    return any(
        _raised(getattr(config, name), getattr(usual, name)) for name in LIMITING.get(status, ())
    )


def was_limited(status: str, then: object, config: Config) -> bool:
    """Return True if a candidate failed at limits, recorded by `limits`, that have been raised since."""
    before = cast("dict[str, Any]", then) if isinstance(then, dict) else {}
    return any(
        _raised(before.get(name), getattr(config, name)) for name in LIMITING.get(status, ())
    )


def was_crowded(entry: Quarantined) -> bool:
    """Return True if a GPU's memory ran out, for which earlier versions blamed the candidate.

    This one skips a candidate where others hold the memory, and leaves it out where the GPU is too small for it.
    """
    named = any(name in entry.reason for name in ("CUDA", "HIP"))
    return entry.status == "out_of_memory" and named


def was_refused_earlier(status: str, reason: str, details: Mapping[str, Any]) -> bool:
    """Return True if an earlier revision of the check has refused numbers, or a changed operand; ``details`` as of `checked`."""
    revision = details.get(_CHECK)
    by_check = status == "wrong" or (status == "red_zone" and reason.startswith(CHANGED))
    return by_check and not (isinstance(revision, int) and revision >= REVISION)


def refused_earlier(entries: Mapping[str, Quarantined]) -> dict[str, str]:
    """Return the candidates in quarantine that an earlier revision of the check refused, and that as reason."""
    return {
        name: REFUSED
        for name, entry in entries.items()
        if was_refused_earlier(entry.status, entry.reason, entry.fields)
    }


def limits(status: str, config: Config) -> dict[str, dict[str, float]]:
    """Return the provenance of a candidate that may have exceeded a limit: the limits; empty without any."""
    values: dict[str, float] = {name: getattr(config, name) for name in LIMITING.get(status, ())}
    return {_LIMITS: values} if any(values.values()) else {}


def checked(check: NumberCheck | None, *, verify: bool) -> dict[str, Any]:
    """Return the provenance of measurements: the revision of the check of results, or why there was none.

    Args:
        check: How results were checked.
        verify: Whether the options ask for the check: then there was no library kernel among the candidates.
    """
    if check is not None:
        return {_CHECK: REVISION}
    return {_NUMBERS: NO_REFERENCE if verify else UNCHECKED}


def advice(status: str) -> str:
    """Return a hint at the options that have ended a candidate, to append to the reason."""
    names = LIMITING[status] if status in _ADVISED else ()
    return f" (option {' or '.join(names)})" if names else ""


def _raised(then: Any, now: float) -> bool:
    return isinstance(then, int | float) and then != 0 and (now == 0 or now > then)
