"""The pin file as text: a few lines for each problem, in a fixed order, without times of day.

A file with failures, or with decisions that are not used, is of format 3, any other of 2. Format 1 is read, too: a list of
environment, operator, digest, description and winner.

``templates`` has class and version of each template. A pin that was not tuned with all of these has its own ``identities``, which
earlier versions do not read: they take any of those of the file, as they did when it had none.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from inductor_plugin.cache.document import (
    amount,
    finite,
    list_of,
    optional,
    refuse_constant,
    table,
    table_of,
    typed,
    whole,
)
from inductor_plugin.cache.document import text as as_text
from inductor_plugin.cache.guard import read
from inductor_plugin.errors import OptionError, expanded, warn_once
from inductor_plugin.tuning.pins.merge import all_but, best_of, by_winner
from inductor_plugin.tuning.pins.pin import Fields, Pin, PinFile, Tried, environment_name

logger = logging.getLogger(__name__)

_PINS, _ALL = 2, 3
"""Formats. A version that knows 2 alone would merge a file of 3 without its failures, so it has to refuse it."""
_ENVIRONMENT = ("name", "digest", "pins", "spare", "failed", "own")
"""Fields of an environment in the file that are not its own; its own ones of such a name are in the last."""
_LINES = (
    ("problem",),
    ("winner", "template", "identities", "winner_ms", "samples"),
    ("library", "library_ms"),
    ("reason",),
    ("op", "digest"),
    ("fields",),
)
"""Which fields of a pin share a line."""

_Templates = Mapping[str, tuple[str, ...]]
"""As `PinFile.templates`."""


def dump(file: PinFile) -> str:
    """Return the text of a pin file; equal files give equal text."""
    known = file.templates
    environments = sorted(_environment(file, digest, known) for digest in _digests(file))
    number = _ALL if file.failed or any(file.spare.values()) else _PINS
    templates = json.dumps(known, indent=2, sort_keys=True).replace("\n", "\n  ")
    listed = ",\n".join(environments)
    return (
        f'{{\n  "format": {number},\n  "templates": {templates},\n'
        f'  "environments": [{_block(listed, "  ")}]\n}}\n'
    )


def parse(text: str) -> PinFile:
    """Return the content of a pin file from its text; of several pins of a problem the better one decides.

    Raises:
        ValueError: It is not a pin file.
    """
    return _parsed(text)[0]


def _parsed(text: str) -> tuple[PinFile, list[Pin]]:
    """Return the content of a pin file, and a pin of each problem that it decides differently in two places."""
    try:
        fields: Any = json.loads(text, parse_constant=refuse_constant, parse_float=finite)
    except RecursionError:
        raise ValueError("its fields are nested too deeply") from None
    if not isinstance(fields, dict) or not {"pins", "environments"} & fields.keys():
        raise ValueError("it has no list 'pins'")
    if "environments" not in fields:
        first: tuple[Pin, ...] = typed(fields, {"pins": list_of(_first_pin)})["pins"]
        pins, doubled = _decided(first)
        return PinFile(pins, spare=_spare(doubled)), doubled
    number = typed(fields, {"format": whole})["format"]
    if number not in (_PINS, _ALL):
        raise ValueError(f"its format is {number}, and this version reads 1 to {_ALL}")
    known: _Templates = typed(
        {"templates": {}, **fields}, {"templates": table_of(list_of(as_text))}
    )["templates"]
    parts: tuple[_OfEnvironment, ...] = typed(
        fields, {"environments": list_of(functools.partial(_parsed_environment, known))}
    )["environments"]
    failed = {run: status for part in parts for run, status in part.failed.items()}
    pins = [pin for part in parts for pin in part.pins]
    # After an edit a winner may be among what failed: it is no decision. Nothing takes its place before a merge.
    decided, doubled = _decided(pin for pin in pins if pin.tried not in failed)
    lost = [pin for pin in pins if pin.tried in failed]
    file = PinFile(
        decided,
        {part.digest: part.own for part in parts if part.own},
        failed,
        _spare(chain(*(part.spare for part in parts), lost, doubled)),
    )
    return file, doubled


def _decided(pins: Iterable[Pin]) -> tuple[dict[str, Pin], list[Pin]]:
    """Return the better pin of each problem, and those of other winners: git leaves both sides of a conflict that nobody has resolved."""
    places = by_winner(pins)
    best = {place: best_of(winners.values()) for place, winners in places.items()}
    others = chain(*(all_but(best[place], winners) for place, winners in places.items()))
    return {place: pin for place, pin in best.items() if pin is not None}, [*others]


def _spare(pins: Iterable[Pin]) -> dict[str, tuple[Pin, ...]]:
    """Return `PinFile.spare` of pins that are not used."""
    return {place: all_but(None, winners) for place, winners in by_winner(pins).items()}


def read_file(path: Path) -> PinFile:
    """Return the content of a pin file; warn if it decides a problem differently in two places.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a pin file.
    """
    file, doubled = _parsed(read(path).decode("utf-8"))
    if doubled:
        other, places = doubled[0], {pin.place for pin in doubled}
        kept = file.pins[other.place]
        warn_once(
            logger,
            f"{path} decides {len(places)} problems differently in two places, {kept.describe} for {kept.winner} ({kept.samples} samples) "
            f"and {other.winner} ({other.samples}): the pin with more samples is used; take the other one out, or "
            "write the file anew with `inductor-plugin merge FILE FILE`",
            f"twice in {path}",
        )
    return file


def read_named(path: str) -> PinFile:
    """Return the content of the file that the option ``pin_file`` names.

    Raises:
        OptionError: There is no such file, or it is not a pin file.
    """
    file = expanded(path, "option pin_file", OptionError)
    try:
        return read_file(file)
    except FileNotFoundError:
        raise OptionError(
            f"policy='pinned' needs pin_file, and {path!r} does not exist; write one with "
            "inductor_plugin.record(FILE) or `inductor-plugin pin FILE`"
        ) from None
    except OSError as error:
        raise OptionError(f"pin_file {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{path!r} is not a pin file: {error}; write one again") from error


def _digests(file: PinFile) -> set[str]:
    """Return the environments of which a file says anything."""
    pins = chain(file.pins.values(), *file.spare.values())
    return {
        *(pin.environment for pin in pins),
        *file.environments,
        *(run[0] for run in file.failed),
    }


def _ordered(pins: Iterable[Pin], environment: str) -> list[Pin]:
    """Return the pins of an environment in the order of the file: by operator and problem."""
    own = (pin for pin in pins if pin.environment == environment)
    return sorted(own, key=lambda pin: (pin.op, pin.describe, pin.digest, pin.winner))


def _environment(file: PinFile, digest: str, templates: _Templates) -> str:
    fields = file.environments.get(digest, {})
    named = {name: fields[name] for name in sorted(fields) if name not in _ENVIRONMENT}
    own = {name: fields[name] for name in fields if name in _ENVIRONMENT}
    named |= {"own": own} if own else {}
    head = {"name": environment_name(digest, fields), "digest": digest, **named}
    lines = [f"      {json.dumps(name)}: {_value(value)}" for name, value in head.items()]
    lines.append(_list_text("pins", _ordered(file.pins.values(), digest), templates))
    spare = _ordered(chain(*file.spare.values()), digest)
    lines += [_list_text("spare", spare, templates)] if spare else []
    failed = {name: status for (own, name), status in file.failed.items() if own == digest}
    listed = ",\n".join(f"        {json.dumps(n)}: {json.dumps(failed[n])}" for n in sorted(failed))
    lines += [f'      "failed": {{{_block(listed, "      ")}}}'] if failed else []
    return "    {\n" + ",\n".join(lines) + "\n    }"


def _list_text(name: str, pins: Iterable[Pin], templates: _Templates) -> str:
    listed = ",\n".join(_pin_text(pin, templates) for pin in pins)
    return f'      "{name}": [{_block(listed, "      ")}]'


def _value(value: Any) -> str:
    """Return a value as text; out of a compile the fields of a table have another order than out of a merge."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _block(listed: str, indent: str) -> str:
    """Return the elements of a list, already indented, with the line breaks around them."""
    return f"\n{listed}\n{indent}" if listed else ""


def _pin_text(pin: Pin, templates: _Templates) -> str:
    fields = {
        "problem": pin.describe,
        **{name: getattr(pin, name) for line in _LINES[1:] for name in line},
    }
    if pin.identities == templates.get(pin.template, ()):
        fields["identities"] = None
    lines = [
        ", ".join(
            f"{json.dumps(name)}: {_value(fields[name])}"
            for name in names
            if fields[name] not in (None, "", {}) and (name != "samples" or fields[name])
        )
        for names in _LINES
    ]
    return "        {" + ",\n         ".join(filter(None, lines)) + "}"


class _OfEnvironment(NamedTuple):
    """What a file says of one environment: its digest and fields, and the rest as in `PinFile`."""

    digest: str
    own: Fields
    pins: tuple[Pin, ...]
    spare: tuple[Pin, ...]
    failed: Mapping[Tried, str]


def _parsed_environment(templates: _Templates, value: Any) -> _OfEnvironment:
    fields = table(value)
    digest: str = typed(fields, {"digest": as_text})["digest"]
    rows = list_of(lambda row: _pin(digest, templates, row))
    values = typed(
        {"spare": [], "failed": {}, "own": {}, **fields},
        {"pins": rows, "spare": rows, "failed": table_of(as_text), "own": table},
    )
    own = {name: inner for name, inner in fields.items() if name not in _ENVIRONMENT}
    own |= values["own"]
    failed = {(digest, name): status for name, status in values["failed"].items()}
    return _OfEnvironment(digest, own, values["pins"], values["spare"], failed)


_REQUIRED: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(("op", "digest", "winner"), as_text)
_OPTIONAL: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "template": (as_text, ""),
    "winner_ms": (optional(amount), None),
    "samples": (whole, 0),
    "library": (optional(as_text), None),
    "library_ms": (optional(amount), None),
    "reason": (as_text, ""),
    "fields": (table, {}),
    "identities": (optional(list_of(as_text)), None),
}


def _pin(environment: str, templates: _Templates, row: Any) -> Pin:
    values = typed(row, _REQUIRED)
    defaults = {name: default for name, (_, default) in _OPTIONAL.items()}
    readers = {name: reader for name, (reader, _) in _OPTIONAL.items()}
    more = typed({"problem": values["digest"], **defaults, **row}, {"problem": as_text, **readers})
    describe = more.pop("problem")
    if more["identities"] is None:
        more["identities"] = templates.get(more["template"], ())
    return Pin(environment=environment, describe=describe, **values, **more)


def _first_pin(row: Any) -> Pin:
    """Return a pin of format 1."""
    values = typed(row, {"environment": as_text, **_REQUIRED})
    described = typed({"describe": values["digest"], **row}, {"describe": as_text})
    return Pin(**values, **described)
