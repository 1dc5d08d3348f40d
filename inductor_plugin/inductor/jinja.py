"""Caches Inductor's parsed kernel templates, so that each is parsed once per process.

A C++ GEMM candidate is rendered from a dozen Jinja templates, which Inductor parses again for each
candidate of each call: half of the time of lowering a frozen linear layer.
"""

from __future__ import annotations

import functools
from typing import Any, cast

from torch._inductor.codegen.common import KernelTemplate

_KEPT = 256
"""Cached templates: Inductor has about a hundred."""
_NAME = "_template_from_string"


def install() -> None:
    """Cache Inductor's parsed templates; does nothing if this torch parses them elsewhere."""
    stock: Any = vars(KernelTemplate).get(_NAME)
    if isinstance(stock, staticmethod) and not installed():
        parsed: Any = functools.lru_cache(maxsize=_KEPT)(cast("Any", stock).__func__)
        setattr(KernelTemplate, _NAME, staticmethod(parsed))


def uninstall() -> None:
    """Restore Inductor's own function."""
    if installed():
        cached: Any = vars(KernelTemplate)[_NAME]
        setattr(KernelTemplate, _NAME, staticmethod(cached.__func__.__wrapped__))


def installed() -> bool:
    """Return True if parsed templates are cached."""
    own: Any = vars(KernelTemplate).get(_NAME)
    return hasattr(getattr(own, "__func__", None), "cache_info")
