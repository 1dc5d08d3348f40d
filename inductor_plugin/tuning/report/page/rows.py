"""Records and pins as rows of the page's tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.cache import Record
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.problem.definition import problem_in
from inductor_plugin.problem.description import described
from inductor_plugin.problem.epilogue_text import load
from inductor_plugin.problem.product import own_count
from inductor_plugin.repro.call import NotReproducible, call_of
from inductor_plugin.repro.operand import ODD, OperandText, operands
from inductor_plugin.tuning.pins.pin import Pin
from inductor_plugin.tuning.report.page.candidates import (
    Detail,
    Forms,
    candidate_row,
    digits,
    in_page,
)
from inductor_plugin.tuning.report.page.texts import Shared, Texts
from inductor_plugin.tuning.report.page.work import Peak, work_of

RECORD = (
    *("key", "op", "text", "environment", "source", "winner", "library", "gain", "why", "updated"),
    *("flags", "flops", "bytes", "bound", "dtype", "refused", "call", "operands", "total"),
    *("only", "candidates"),
)
"""The columns of a record. ``winner`` and ``library`` are indices in ``candidates``, or -1. ``only`` is what runs without being
a candidate, since there was nothing to compare it with. ``updated`` in seconds since 1970, ``bound`` in milliseconds. ``total`` counts all candidates, those included that are not in the page."""
PINNED, NOISY, STAYS = 1, 2, 4
"""Flags: protected from eviction; the comparison is noisy; the library kernel runs."""
_NO_WORK = (0, 0, 0, -1)
_KEY = 16
_DIGEST = re.compile(r"-[0-9a-f]{12}\Z")
"""The digest at the end of a candidate's identity, which a pin knows a candidate by."""


@dataclass(frozen=True)
class Tables:
    """The lists whose values rows name by their index."""

    texts: Texts
    forms: Forms
    environments: Shared[str]
    refusals: Shared[tuple[int, int]]

    @staticmethod
    def empty() -> Tables:
        """Return tables without content."""
        texts = Texts()
        return Tables(texts, Forms(texts), Shared(), Shared())


def record_row(
    record: Record, source: int, tables: Tables, peaks: Mapping[str, Peak], detail: Detail
) -> list[Any]:
    """Return a record in the order of `RECORD`.

    Args:
        record: The record.
        source: Index of its source.
        tables: The lists whose values the row names by their index.
        peaks: Peaks of the devices that are known, by environment.
        detail: How much of each candidate the page has.
    """
    place = tables.texts.place
    rows, decision = in_page(record, detail), record.valid_decision
    names = [measured.candidate for measured in rows]
    winner, library = (decision.winner, decision.library) if decision else (None, None)
    stays = winner is not None and winner == library
    call, read = _call(record)
    flags = PINNED * record.pinned | NOISY * record.noisy | STAYS * stays
    return [
        record.digest[:_KEY],
        place(record.op),
        place(described(record.problem, record.describe)),
        tables.environments.place(record.environment),
        source,
        names.index(winner) if winner in names else -1,
        names.index(library) if library in names else -1,
        1 if stays else digits(decision.speedup if decision else None, 4),
        place(decision.reason if decision else "nothing is decided"),
        int(record.updated),
        flags,
        *_work(record, tables, peaks),
        [tables.refusals.place((place(n), place(why))) for n, why in sorted(record.rejected.items())],
        place(call),
        place(read),
        len(record.candidates),
        place(winner) if winner is not None and winner not in names else -1,
        [candidate_row(measured, tables.forms, detail) for measured in rows],
    ]  # fmt: skip


def pin_row(pin: Pin, source: int, tables: Tables, peaks: Mapping[str, Peak]) -> list[Any]:
    """Return a pin in the order of `RECORD`: the winner and the library kernel, with their medians.

    Work and call are those of the problem's fields, which a pin has where a template has won.

    Args:
        pin: The pin.
        source: Index of its source.
        tables: The lists whose values the row names by their index.
        peaks: Peaks of the devices that are known, by environment.
    """
    place, forms = tables.texts.place, tables.forms
    known = _record_of(pin)
    call, read = _call(known) if known else ("", "")
    stays = pin.library == pin.winner
    measured = [(pin.winner, pin.winner_ms, pin.template)]
    if pin.library is not None and not stays:
        measured.append((pin.library, pin.library_ms, ""))
    gain = pin.library_ms / pin.winner_ms if pin.library_ms and pin.winner_ms else None
    return [
        pin.digest[:_KEY],
        place(pin.op),
        place(pin.describe),
        tables.environments.place(pin.environment),
        source,
        0,
        0 if stays else len(measured) - 1 if pin.library is not None else -1,
        1 if stays else digits(gain, 4),
        place(pin.reason),
        0,
        PINNED | STAYS * stays,
        *(_work(known, tables, peaks) if known else _NO_WORK),
        [],
        place(call),
        place(read),
        len(measured),
        -1,
        [
            [
                forms.form(
                    name,
                    _DIGEST.sub("", name),
                    template or ("extern" if name == pin.library else ""),
                    "",
                ),
                forms.outcome("ok", ""),
                digits(median),
                *(0, 0, 0, 0),
                0,
                None,
                0,
            ]
            for name, median, template in measured
        ],
    ]


def _record_of(pin: Pin) -> Record | None:
    """Return a record of a pin's problem, without candidates; None if the pin does not have the problem's fields."""
    problem = problem_in(pin.fields)
    if problem is None:
        return None
    # The pin's own text has layouts and types, too; that of a record has the sizes alone.
    return Record(pin.environment, pin.op, pin.digest, pin.fields, problem.describe(), {})


def _work(
    record: Record, tables: Tables, peaks: Mapping[str, Peak]
) -> tuple[float | None, float | None, float | None, int]:
    """Return the columns ``flops``, ``bytes``, ``bound`` and ``dtype``."""
    work, peak = work_of(record.problem, record.describe), peaks.get(record.environment)
    if work is None:
        return _NO_WORK
    bound = digits(peak.bound_ms(work), 4) if peak else 0
    return digits(work.flops, 6), digits(work.bytes, 6), bound, tables.texts.place(work.dtype)


def _call(record: Record) -> tuple[str, str]:
    """Return the call of a record in Python, and its operands, a line each; why there is none instead of the call."""
    if record.op == GRAPH:
        return "", ""
    try:
        inputs = operands(record.problem, record.describe)
    except ODD as error:
        return f"# its fields are not those of {record.op}: {error}", ""
    try:
        bare = len(inputs) if not record.problem.get("epilogue") else None
        call = call_of(record.problem, inputs[: bare or _operands_of(record, inputs)])
    except (NotReproducible, *ODD) as error:
        return f"# {error}", _lines(inputs, ())
    epilogue = str(record.problem.get("epilogue") or "").partition("-")[0]
    behind = f"  # then {epilogue}" if epilogue else ""
    return f"{call.body}{behind}", _lines(inputs, call.names)


def _operands_of(record: Record, inputs: Sequence[OperandText]) -> int:
    """Return how many operands a product with an epilogue has without those of the epilogue.

    Raises:
        NotReproducible: The record does not keep it: nothing was measured, or an earlier version wrote it.
        ValueError: The text of its epilogue is damaged.
    """
    reads = len(load(record.epilogue).epilogue.operands) if record.epilogue else None
    own = own_count(record.op, len(inputs), reads)
    if own is None:
        raise NotReproducible("its record does not keep which operands its epilogue reads")
    return own


def _lines(inputs: Sequence[OperandText], names: Sequence[str]) -> str:
    named = (*names, *(f"input {index}" for index in range(len(names), len(inputs))))
    return "\n".join(f"{name}\t{_operand(each)}" for name, each in zip(named, inputs, strict=False))


def _operand(operand: OperandText) -> str:
    if operand.opaque:
        return f"{operand.dtype}\t{operand.opaque} layout\t\t{_marks(operand)}"
    size = "x".join(map(str, operand.size)) or "scalar"
    stride = ", ".join(map(str, operand.stride))
    return f"{operand.dtype}\t{size}\t{stride}\t{_marks(operand)}"


def _marks(operand: OperandText) -> str:
    marks = [operand.device]
    if operand.constant:
        marks.append("frozen weight")
    if operand.offset:
        marks.append(f"offset {operand.offset}")
    sizes = operand.stands_for
    if ".." in sizes:
        marks.append(f"stands for {sizes}")
    return ", ".join(marks)
