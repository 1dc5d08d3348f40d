"""Generated code of two ranks, compared: the same but for what tells the ranks apart. Pure."""

from __future__ import annotations

import itertools
import re

_OWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bcuda:\d+"), "cuda"),
    (re.compile(r"\b(_DeviceGuard|set_device|get_raw_stream|synchronize)\(\d+\)"), r"\1(N)"),
    (re.compile(r"\bstream\d+\b"), "streamN"),
    (re.compile(r"\bindex=\d+"), "index=N"),
    (re.compile(r"[^\s'\"]*/(\w{2}/\w{8,}\.(?:h|py|so|cpp))"), r"\1"),
    # The name of a process group: subgroups of one mesh have other names on other ranks.
    (re.compile(r"(torch\.ops\._c10d_functional\w*\.[\w.]+\(.*)'\d+'\)"), r"\1'GROUP')"),
)
"""What ranks that run the same kernels may write differently: device, folders, process groups."""
_SHOWN = 120


def normalized(code: str) -> str:
    """Return generated code without comments, and without what is a rank's own."""
    lines = (line.rstrip() for line in code.splitlines())
    text = "\n".join(line for line in lines if line and not line.lstrip().startswith("# "))
    for pattern, replacement in _OWN:
        text = pattern.sub(replacement, text)
    return text


def first_difference(own: str, other: str) -> str:
    """Return the first line in which two texts differ, empty if they do not."""
    pairs = itertools.zip_longest(own.splitlines(), other.splitlines(), fillvalue="(nothing)")
    for number, (mine, theirs) in enumerate(pairs, start=1):
        if mine != theirs:
            return (
                f"line {number}: {mine.strip()[:_SHOWN]!r} instead of {theirs.strip()[:_SHOWN]!r}"
            )
    return ""
