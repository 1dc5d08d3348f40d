"""The names of all options: which of a call's options are ours, and which variables have a name that no option has."""

from __future__ import annotations

from collections.abc import Mapping

from inductor_plugin.config.options import METADATA
from inductor_plugin.config.variables import unknown, warn_of_unknown


def option_names() -> tuple[str, ...]:
    """Return the names of all options, in the order of their declaration."""
    return tuple(METADATA)


def split(options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return (options of the plugin, options of Inductor)."""
    ours = {name: value for name, value in options.items() if name in METADATA}
    return ours, {name: value for name, value in options.items() if name not in METADATA}


def unknown_variables() -> tuple[str, ...]:
    """Return one sentence for each variable with the plugin's prefix that it does not know."""
    return unknown(METADATA)


def warn_of_unknown_variables() -> None:
    """Warn of variables with the plugin's prefix that it does not know, once a process."""
    warn_of_unknown(METADATA)
