"""Pinned decisions: a file with the winning candidate of each problem."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from inductor_plugin.errors import OptionError


@dataclass(frozen=True)
class Pin:
    """The pinned winner of one problem.

    Attributes:
        environment: Digest of the environment.
        op: Operator.
        digest: Digest of the problem.
        describe: The problem in one line; not part of the key.
        winner: The candidate.
    """

    environment: str
    op: str
    digest: str
    describe: str = field(compare=False)
    winner: str


@dataclass(frozen=True)
class Pins:
    """Winners by environment, operator and problem.

    Attributes:
        path: The file they came from.
        winners: ``environment/op/digest`` to candidate.
    """

    path: str
    winners: Mapping[str, str]

    def winner(self, environment: str, op: str, digest: str) -> str | None:
        """Return the pinned winner of a problem, or None."""
        return self.winners.get(f"{environment}/{op}/{digest}")


def dump_pins(pins: Iterable[Pin]) -> str:
    """Return the text of a pin file."""
    return json.dumps({"format": 1, "pins": [asdict(pin) for pin in pins]}, indent=2) + "\n"


def parse_pins(text: str) -> list[Pin]:
    """Return the pins in the text of a pin file.

    Raises:
        ValueError: It is not a pin file.
    """
    try:
        return [
            Pin(
                environment=_text(row["environment"]),
                op=_text(row["op"]),
                digest=_text(row["digest"]),
                describe=str(row.get("describe", row["digest"])),
                winner=str(row["winner"]),
            )
            for row in json.loads(text)["pins"]
        ]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _text(value: object) -> str:
    """Return a name, which becomes part of a path; raise TypeError or ValueError if it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    value.encode()  # half of a surrogate pair is no text either
    return value


def read_pins(path: str) -> Pins:
    """Return the pins in a file written by ``inductor-plugin pin``.

    Raises:
        OptionError: There is no such file, or it is not a pin file.
    """
    try:
        pins = parse_pins(Path(path).expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError(
            f"policy='pinned' needs pin_file, and {path!r} does not exist; "
            "write one with `inductor-plugin pin FILE`"
        ) from None
    except OSError as error:
        raise OptionError(f"pin_file {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"{path!r} is not a pin file: {error}; write one again") from error
    return Pins(path, {f"{pin.environment}/{pin.op}/{pin.digest}": pin.winner for pin in pins})
