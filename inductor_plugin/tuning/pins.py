"""Pinned decisions: a file that says which candidate wins each problem."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.errors import OptionError


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


def read_pins(path: str) -> Pins:
    """Return the pins in a file written by ``inductor-plugin pin``.

    Raises:
        OptionError: There is no such file, or it is not a pin file.
    """
    try:
        content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        winners = {
            f"{one['environment']}/{one['op']}/{one['digest']}": str(one["winner"])
            for one in content["pins"]
        }
    except FileNotFoundError:
        raise OptionError(
            f"policy='pinned' needs pin_file, and {path!r} does not exist; "
            "write one with `inductor-plugin pin FILE`"
        ) from None
    except OSError as error:
        raise OptionError(f"pin_file {path!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{path!r} is not a pin file: {error}; write one again") from error
    return Pins(path, winners)
