"""What the user is told: each warning names the plugin, and comes once a process."""

from __future__ import annotations

import logging
import threading

NAME = "inductor-plugin: "
"""Beginning of every warning: in the log of a training nobody knows otherwise who speaks."""

_GUARD = threading.Lock()
_SAID: set[str] = set()


def warn_once(logger: logging.Logger, text: str, topic: str = "") -> None:
    """Log a warning that names the plugin, unless this process has given it already.

    Args:
        logger: The logger of the module that warns.
        text: What happened and what to do, without the plugin's name.
        topic: What is warned of once, where texts differ; by default the text.
    """
    with _GUARD:
        if (topic or text) in _SAID:
            return
        _SAID.add(topic or text)
    logger.warning("%s%s", NAME, text, stacklevel=2)


def forget() -> None:
    """Let every warning be given again; for tests."""
    with _GUARD:
        _SAID.clear()
