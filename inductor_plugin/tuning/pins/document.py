"""The pin file as text: a few lines for each problem, in a fixed order, without times of day.

Format 2 is written, 1 is read, too: a list of environment, operator, digest, description and winner.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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
_ENVIRONMENT = ("name", "digest", "pins")
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
    environments = [
        _environment(digest, file.environments.get(digest, {}), _ordered(file, digest))
        for digest in sorted({pin.environment for pin in file.pins.values()})
    ]
    environments.sort()
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
    pins: dict[str, Pin] = {}
    known: dict[str, Fields] = {}
    for digest, own, rows in values["environments"]:
        pins |= {pin.place: pin for pin in rows}
        known |= {digest: own} if own else {}
    return PinFile(pins, known, values["templates"])


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


def _ordered(file: PinFile, environment: str) -> list[Pin]:
    """Return the pins of an environment in the order of the file: by operator and problem."""
    pins = (pin for pin in file.pins.values() if pin.environment == environment)
    return sorted(pins, key=lambda pin: (pin.op, pin.describe, pin.digest))


def _environment(digest: str, fields: Fields, pins: Iterable[Pin]) -> str:
    named = {name: fields[name] for name in sorted(fields) if name not in _ENVIRONMENT}
    head = {"name": environment_name(digest, fields), "digest": digest, **named}
    lines = [f"      {json.dumps(name)}: {_value(value)}" for name, value in head.items()]
    listed = ",\n".join(map(_pin_text, pins))
    lines.append(f'      "pins": [{_block(listed, "      ")}]')
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


def _parsed_environment(value: Any) -> tuple[str, Fields, tuple[Pin, ...]]:
    fields = table(value)
    digest = typed(fields, {"digest": as_text})["digest"]
    rows = typed(fields, {"pins": list_of(lambda row: _pin(digest, row))})["pins"]
    own = {name: inner for name, inner in fields.items() if name not in _ENVIRONMENT}
    return digest, own, rows


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
