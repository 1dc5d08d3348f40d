"""Each of Inductor's kernel templates is parsed once a process.

A C++ GEMM candidate is put together from a dozen Jinja texts, which Inductor parses anew for each
candidate of each call: half the time of lowering a frozen linear layer.
"""

from __future__ import annotations

import functools
from typing import Any, cast

from torch._inductor.codegen.common import KernelTemplate

_KEPT = 256
"""Parsed texts: Inductor has about a hundred."""
_NAME = "_template_from_string"


def install() -> None:
    """Let Inductor keep what it has parsed; a torch that parses elsewhere stays as it is."""
    stock: Any = vars(KernelTemplate).get(_NAME)
    if isinstance(stock, staticmethod) and not installed():
        parsed: Any = functools.lru_cache(maxsize=_KEPT)(cast("Any", stock).__func__)
        setattr(KernelTemplate, _NAME, staticmethod(parsed))


def uninstall() -> None:
    """Put Inductor's own function back."""
    if installed():
        kept: Any = vars(KernelTemplate)[_NAME]
        setattr(KernelTemplate, _NAME, staticmethod(kept.__func__.__wrapped__))


def installed() -> bool:
    """Return True if parsed templates are kept."""
    own: Any = vars(KernelTemplate).get(_NAME)
    return hasattr(getattr(own, "__func__", None), "cache_info")
