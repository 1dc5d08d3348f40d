"""Makes torch.compile's max-autotune pick, measure and remember the fastest kernels.

Importing the package defines names and does nothing else: no torch, no device, no folder. What
needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inductor_plugin.activation import disable, enable, observe, options, record
    from inductor_plugin.attention.function import fmha
    from inductor_plugin.ops.epilogue_replay import replay
    from inductor_plugin.registry import Registry, register, unregister
    from inductor_plugin.tuning.counters import Stats, stats
    from inductor_plugin.tuning.ranks.verify import RankReport, verify_ranks
    from inductor_plugin.version import __version__


__all__ = [
    "RankReport",
    "Registry",
    "Stats",
    "__version__",
    "disable",
    "enable",
    "fmha",
    "observe",
    "options",
    "record",
    "register",
    "replay",
    "stats",
    "unregister",
    "verify_ranks",
]

_MODULES = {
    "RankReport": "inductor_plugin.tuning.ranks.verify",
    "Registry": "inductor_plugin.registry",
    "Stats": "inductor_plugin.tuning.counters",
    "__version__": "inductor_plugin.version",
    "disable": "inductor_plugin.activation",
    "enable": "inductor_plugin.activation",
    "fmha": "inductor_plugin.attention.function",
    "observe": "inductor_plugin.activation",
    "options": "inductor_plugin.activation",
    "record": "inductor_plugin.activation",
    "register": "inductor_plugin.registry",
    "replay": "inductor_plugin.ops.epilogue_replay",
    "stats": "inductor_plugin.tuning.counters",
    "unregister": "inductor_plugin.registry",
    "verify_ranks": "inductor_plugin.tuning.ranks.verify",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name, on first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, imported yet or not."""
    return sorted(__all__)
