"""Shows what was tuned to the user, where the option ``table`` says so."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from inductor_plugin.config import Config


def show(texts: Iterable[str], config: Config, *, measured: bool) -> None:
    """Write texts to standard error, each on lines of its own.

    Args:
        texts: The texts, which are not computed unless they are shown.
        config: The options; with ``table=auto`` only what was measured is shown, on a terminal.
        measured: Whether the texts are about something that was measured in this process.
    """
    if config.table == "on" or (config.table == "auto" and measured and sys.stderr.isatty()):
        sys.stderr.write("".join(f"{text}\n" for text in texts))
