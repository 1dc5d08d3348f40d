"""Generated code of two ranks, compared: the same but for what distinguishes the ranks. Pure."""

from __future__ import annotations

import itertools
import re

_OWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bcuda:\d+"), "cuda"),
    # Of any other type only where a device is meant: an operator's argument may be a text such as 'layer:3'.
    (re.compile(r"(device[=(])(['\"])([a-z]\w*):\d+\2"), r"\1\2\3\2"),
    (
        re.compile(
            r"\b(_DeviceGuard|device|set_device|set_index|get_raw_stream|synchronize)\(\d+\)"
        ),
        r"\1(N)",
    ),
    # In C++ the device is an argument, after its type or before its stream: of the functions that call Triton's kernels alone.
    (re.compile(r"(\bcall_\w+\(.*, )(\d+)(?=, stream\2\b)"), r"\1N"),
    (re.compile(r"\b(raw_)?stream\d+\b"), r"\1streamN"),
    (re.compile(r"\b(cached_torch_device_type_\w+,)\s*\d+"), r"\1 N"),
    (re.compile(r"(aoti_torch_get_current_\w+_stream)\(\d+,"), r"\1(N,"),
    (re.compile(r"\b(\w+Guard \w+)\(\d+\)"), r"\1(N)"),
    (re.compile(r"\b((?:DeviceProperties|device)\(type='\w+', index=)\d+"), r"\1N"),
    (re.compile(r"[^\s'\"]*/(\w{2}/\w{8,}\.(?:h|py|so|cpp))"), r"\1"),
    # The name of a process group: subgroups of one mesh have other names on other ranks.
    (
        re.compile(
            r"(torch\.ops\.(?:_c10d_functional\w*|symm_mem|_dtensor)\.[\w.]+\(.*)"
            r"'(?:\d+|[0-9a-f]{16,}(?:_\d+)?)'(?=\)|, out=)"
        ),
        r"\1'GROUP'",
    ),
)
"""What ranks that run the same kernels may write differently: device, folders, process groups."""
_INPUT = re.compile(r"\bassert_size_stride\((?!buf)\w+, (.*)\)")
_KERNEL = re.compile(r"fused_([a-z0-9_]*[a-z0-9])_\d+\b")
_SHOWN = 120


def normalized(code: str) -> str:
    """Return generated code without comments, and without what is a rank's own."""
    lines = (line.rstrip() for line in code.splitlines())
    text = "\n".join(line for line in lines if line and not line.lstrip().startswith("# "))
    for pattern, replacement in _OWN:
        text = pattern.sub(replacement, text)
    return text


def input_sizes(code: str) -> list[str]:
    """Return sizes and strides of a graph's inputs, in their order; empty where its code does not check them."""
    return _INPUT.findall(code)


def operators(code: str) -> list[str]:
    """Return the names of the operators in a graph's own kernels, whatever is fused with what."""
    return sorted({name for names in _KERNEL.findall(code) for name in names.split("_")})


def first_difference(own: str, other: str) -> str:
    """Return the first line in which two texts differ, empty if they do not."""
    pairs = itertools.zip_longest(own.splitlines(), other.splitlines(), fillvalue="(nothing)")
    for number, (mine, theirs) in enumerate(pairs, start=1):
        if mine != theirs:
            return (
                f"line {number}: {mine.strip()[:_SHOWN]!r} instead of {theirs.strip()[:_SHOWN]!r}"
            )
    return ""
