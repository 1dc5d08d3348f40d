"""What `doctor` finds of one dependency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from inductor_plugin.errors import printable

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


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as text, each detail on one line: it may quote a pack that is not trusted."""
    width = max(len(finding.name) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        detail, remedy = printable(finding.detail), printable(finding.remedy)
        lines.append(f"{finding.state:6}  {finding.name:{width}}  {detail}")
        if remedy:
            lines.append(f"{'':6}  {'':{width}}  -> {remedy}")
    return "\n".join(lines)
