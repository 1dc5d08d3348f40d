"""What a step finds, in a JSON file that is rewritten after each figure."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TOOL_S = 30


class Report:
    """Figures by name, in a file.

    Attributes:
        figures: The figures.
        failed: Names of those that could not be found.
    """

    def __init__(self, path: Path) -> None:
        """Write to ``path``."""
        self._path = path
        self.figures: dict[str, Any] = {}
        self.failed: list[str] = []

    def put(self, name: str, value: Any) -> None:
        """Add a figure, print it, and write the file atomically."""
        self.figures[name] = value
        print(f"{name}: {value}", flush=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        private = self._path.with_suffix(f".{os.getpid()}")
        private.write_text(json.dumps(self.figures, indent=1) + "\n", encoding="utf-8")
        private.replace(self._path)

    def attempt(self, name: str, find: Callable[[], Any]) -> None:
        """Add a figure, or why it could not be found: the others are worth their time."""
        try:
            self.put(name, find())
        except Exception as error:  # noqa: BLE001  a figure that cannot be found costs itself alone
            self.failed.append(name)
            self.put(name, {"failed": f"{type(error).__name__}: {error}"[:1000]})


def output_of(command: Sequence[str]) -> str:
    """Return what a tool prints, or why it printed nothing."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, check=False, timeout=TOOL_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"
    return done.stdout.strip() or done.stderr.strip()
