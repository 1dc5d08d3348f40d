"""A progress bar on a terminal while a compile waits for tuning; nothing is shown elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


_BAR, _NAME = 15, 18
"""Columns of the bar and of a candidate's name, so that a line has no more than 80. A CUTLASS kernel's name has 80."""


class Progress:
    """Counts how many candidates have been measured."""

    def __init__(self, mode: str, what: str = "tuning") -> None:
        """Show by mode: ``on``, ``off``, or ``auto`` for terminals only; ``what`` is what the user waits for."""
        self._mode = mode
        self._what = what
        self._began_s: float | None = None
        self._bar: RichProgress | None = None
        self._task: object | None = None
        self._total = 0
        self._done = 0

    @property
    def visible(self) -> bool:
        """True if the bar is shown."""
        return self._mode == "on" or (self._mode == "auto" and sys.stderr.isatty())

    def expect(self, candidates: int) -> None:
        """Add candidates that will be measured."""
        self._total += candidates
        self._show()

    def step(self, name: str) -> None:
        """Count one more measured candidate."""
        self._done += 1
        self._show(name)

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show the bar while the block waits."""
        if not self.visible or self._bar is not None or self._total == self._done:
            yield
            return
        with _bar(self._what) as bar:
            task = bar.add_task("", total=self._total, completed=self._done)
            if self._began_s is None:
                self._began_s = bar.get_time()
            # The clock goes on where a graph is waited for again.
            bar.tasks[0].start_time = self._began_s
            self._bar, self._task = bar, task
            try:
                yield
            finally:
                self._bar, self._task = None, None

    def _show(self, name: str = "") -> None:
        bar, task = self._bar, self._task
        if bar is not None and task is not None:
            short = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
            bar.update(task, total=self._total, completed=self._done, description=short)  # type: ignore[arg-type]


def _bar(what: str) -> RichProgress:
    # Half of the plugin's import time (50 ms), and a warm compile shows no bar.
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    return progress.Progress(
        progress.TextColumn(f"inductor-plugin: {what}"),
        progress.BarColumn(bar_width=_BAR),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}"),
        console=console,
        transient=console.is_terminal,  # elsewhere the last state stays, as one line of a log
    )
