"""Shows what was tuned to the user, where the option ``table`` says so."""

from __future__ import annotations

import sys

from inductor_plugin.config import Config


def show(text: str, config: Config, *, measured: bool) -> None:
    """Write text to standard error.

    Args:
        text: The text.
        config: The options; with ``table=auto`` only what was measured is shown, on a terminal.
        measured: Whether the text is about something that was measured in this process.
    """
    if config.table == "on" or (config.table == "auto" and measured and sys.stderr.isatty()):
        sys.stderr.write(f"{text}\n")
