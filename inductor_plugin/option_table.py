"""The table of options in markdown, from the fields that declare them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field
from typing import Any


def table(options: Iterable[Field[Any]], prefix: str) -> str:
    """Return one row for each option.

    Args:
        options: The fields of `inductor_plugin.config.Config`.
        prefix: Of their variables.
    """
    rows = ["| Option and variable | Values | Default | What it does |", "|---|---|---|---|"]
    for one in options:
        how = one.metadata
        shown = "~/.cache/inductor_plugin" if how["kind"] == "folder" else _show(one.default)
        values = ", ".join(how["choices"]) or _VALUES.get(how["kind"], how["kind"])
        unit = f" ({how['unit']})" if how["unit"] else ""
        rows.append(
            f"| `{one.name}`<br>`{prefix}{one.name.upper()}` | {values}{unit} "
            f"| {shown and f'`{shown}`'} | {how['sentence']} |"
        )
    return "\n".join(rows) + "\n"


_VALUES = {"limits": "whole number, or `cuda=24,cpu=64`"}


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 2**30:
        return f"{value / 2**30:g}GiB"
    return f"{value:g}" if isinstance(value, float) else str(value)
