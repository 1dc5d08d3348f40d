"""What `doctor` finds of one dependency."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "off", "broken"]


@dataclass(frozen=True)
class Finding:
    """The state of one dependency of the plugin.

    Attributes:
        name: Name of the dependency.
        state: ``ok``; ``off``: missing, and everything else works without it; ``broken``: needs repair.
        detail: Version, path or reason.
        remedy: What to do about it; empty if nothing needs to be done.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as plain JSON values."""
        return asdict(self)
