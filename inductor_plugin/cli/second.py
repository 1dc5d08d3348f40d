"""What ``stats`` says of the second cache."""

from __future__ import annotations

from typing import Any

from inductor_plugin.cache import open_second
from inductor_plugin.config import default_cache_read


def counts() -> dict[str, Any]:
    """Return what is in the second cache; empty if the variables name none, or it cannot be read."""
    second = open_second(default_cache_read() or "")
    if second is None:
        return {}
    usage = second.usage()
    return {
        "cache_read": str(second.root),
        "read_records": usage.records,
        "read_kernels": usage.kernels,
    }
