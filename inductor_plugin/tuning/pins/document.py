"""The pin file as text: a few lines for each problem, in a fixed order, without times of day.

Format 2 is written, 1 is read, too: a list of environment, operator, digest, description and winner. What a merge has to know
of its sources (`PinFile.spare`, `PinFile.failed`) follows the pins of an environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from inductor_plugin.cache.document import (
    amount,
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
from inductor_plugin.errors import OptionError, expanded
from inductor_plugin.tuning.pins.pin import Fields, Pin, PinFile, environment_name

FORMAT = 2
_ENVIRONMENT = ("name", "digest", "pins", "spare", "failed")
"""Fields of an environment in the file that are not its own."""
_LINES = (
    ("problem",),
    ("winner", "template", "winner_ms", "samples"),
    ("library", "library_ms"),
    ("reason",),
    ("op", "digest"),
    ("fields",),
)
"""Which fields of a pin share a line."""


def dump(file: PinFile) -> str:
    """Return the text of a pin file; equal files give equal text."""
    environments = sorted(_environment(digest, file) for digest in _digests(file))
    templates = json.dumps(
        {name: list(file.templates[name]) for name in sorted(file.templates)}, indent=2
    ).replace("\n", "\n  ")
    listed = ",\n".join(environments)
    return (
        f'{{\n  "format": {FORMAT},\n  "templates": {templates},\n'
        f'  "environments": [{_block(listed, "  ")}]\n}}\n'
    )


def parse(text: str) -> PinFile:
    """Return the content of a pin file from its text.

    Raises:
        ValueError: It is not a pin file.
    """
    try:
        fields: Any = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("its fields are nested too deeply") from None
    if not isinstance(fields, dict) or not {"pins", "environments"} & fields.keys():
        raise ValueError("it has no list 'pins'")
    if "environments" not in fields:
        first: tuple[Pin, ...] = typed(fields, {"pins": list_of(_first_pin)})["pins"]
        return PinFile({pin.place: pin for pin in first})
    number = typed(fields, {"format": whole})["format"]
    if number != FORMAT:
        raise ValueError(f"its format is {number}, and this version reads 1 and {FORMAT}")
    values = typed(
        {"templates": {}, **fields},
        {"templates": table_of(list_of(as_text)), "environments": list_of(_parsed_environment)},
    )
    read: list[_Environment] = values["environments"]
    return PinFile(
        {pin.place: pin for each in read for pin in each.pins},
        {each.digest: each.fields for each in read if each.fields},
        values["templates"],
        {(each.digest, name): status for each in read for name, status in each.failed.items()},
        _by_place(pin for each in read for pin in each.spare),
    )


def read_file(path: Path) -> PinFile:
    """Return the content of a pin file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a pin file.
    """
    return parse(read(path).decode("utf-8"))


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


@dataclass(frozen=True)
class _Environment:
    """What a file says of one environment: ``failed`` has statuses by the names of the quarantine."""

    digest: str
    fields: Fields
    pins: Sequence[Pin]
    spare: Sequence[Pin]
    failed: Mapping[str, str]


def _digests(file: PinFile) -> set[str]:
    """Return the environments that a file says something of."""
    pins = chain(file.pins.values(), *file.spare.values())
    failed = (environment for environment, _ in file.failed)
    return {*file.environments, *failed, *(pin.environment for pin in pins)}


def _by_place(pins: Iterable[Pin]) -> dict[str, tuple[Pin, ...]]:
    """Return pins by what they decide, in the order of their winners, as a merge has them."""
    result: dict[str, tuple[Pin, ...]] = {}
    for pin in sorted(pins, key=lambda pin: pin.winner):
        result[pin.place] = (*result.get(pin.place, ()), pin)
    return result


def _listed(pins: Iterable[Pin], environment: str) -> str:
    """Return the pins of an environment in the order of the file: by operator, problem and winner."""
    its = (pin for pin in pins if pin.environment == environment)
    ordered = sorted(its, key=lambda pin: (pin.op, pin.describe, pin.digest, pin.winner))
    listed = ",\n".join(map(_pin_text, ordered))
    return f"[{_block(listed, '      ')}]"


def _environment(digest: str, file: PinFile) -> str:
    fields = file.environments.get(digest, {})
    named = {name: fields[name] for name in sorted(fields) if name not in _ENVIRONMENT}
    head = {"name": environment_name(digest, fields), "digest": digest, **named}
    lines = [f"      {json.dumps(name)}: {_value(value)}" for name, value in head.items()]
    lines.append(f'      "pins": {_listed(file.pins.values(), digest)}')
    spare = [pin for pins in file.spare.values() for pin in pins if pin.environment == digest]
    if spare:
        lines.append(f'      "spare": {_listed(spare, digest)}')
    failed = {name: file.failed[where, name] for where, name in file.failed if where == digest}
    if failed:
        text = json.dumps(failed, sort_keys=True, indent=2).replace("\n", "\n      ")
        lines.append(f'      "failed": {text}')
    return "    {\n" + ",\n".join(lines) + "\n    }"


def _value(value: Any) -> str:
    """Return a value as text; out of a compile the fields of a table have another order than out of a merge."""
    return json.dumps(value, sort_keys=True)


def _block(listed: str, indent: str) -> str:
    """Return the elements of a list, already indented, with the line breaks around them."""
    return f"\n{listed}\n{indent}" if listed else ""


def _pin_text(pin: Pin) -> str:
    fields = {
        "problem": pin.describe,
        **{name: getattr(pin, name) for line in _LINES[1:] for name in line},
    }
    lines = [
        ", ".join(
            f"{json.dumps(name)}: {_value(fields[name])}"
            for name in names
            if fields[name] not in (None, "", {}) and (name != "samples" or fields[name])
        )
        for names in _LINES
    ]
    return "        {" + ",\n         ".join(filter(None, lines)) + "}"


def _parsed_environment(value: Any) -> _Environment:
    fields = table(value)
    digest = typed(fields, {"digest": as_text})["digest"]
    rows = list_of(lambda row: _pin(digest, row))
    said = typed(
        {"spare": [], "failed": {}, **fields},
        {"pins": rows, "spare": rows, "failed": table_of(as_text)},
    )
    own = {name: inner for name, inner in fields.items() if name not in _ENVIRONMENT}
    return _Environment(digest, own, **said)


_REQUIRED: Mapping[str, Callable[[Any], Any]] = dict.fromkeys(("op", "digest", "winner"), as_text)
_OPTIONAL: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "template": (as_text, ""),
    "winner_ms": (optional(amount), None),
    "samples": (whole, 0),
    "library": (optional(as_text), None),
    "library_ms": (optional(amount), None),
    "reason": (as_text, ""),
    "fields": (table, {}),
}


def _pin(environment: str, row: Any) -> Pin:
    values = typed(row, _REQUIRED)
    defaults = {name: default for name, (_, default) in _OPTIONAL.items()}
    readers = {name: reader for name, (reader, _) in _OPTIONAL.items()}
    more = typed({"problem": values["digest"], **defaults, **row}, {"problem": as_text, **readers})
    describe = more.pop("problem")
    return Pin(environment=environment, describe=describe, **values, **more)


def _first_pin(row: Any) -> Pin:
    """Return a pin of format 1."""
    values = typed(row, {"environment": as_text, **_REQUIRED})
    described = typed({"describe": values["digest"], **row}, {"describe": as_text})
    return Pin(**values, **described)
