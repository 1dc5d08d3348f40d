"""The cache: compiled kernels, timings and decisions in one directory that can be read and shipped.

It depends on neither torch nor templates: it stores files and records under digests. Modules that only
the command line needs (`archive`, `report`: 27 ms of imports) are not imported here.
"""

from __future__ import annotations

from inductor_plugin.cache.entry import KernelEntry, Resources
from inductor_plugin.cache.key import KernelKey, differences, digest_of
from inductor_plugin.cache.lookup.second import SecondCache, open_second
from inductor_plugin.cache.pack import Pack
from inductor_plugin.cache.quarantine import Quarantined
from inductor_plugin.cache.record import Decision, Measured, Record
from inductor_plugin.cache.size.evict import Pruned
from inductor_plugin.cache.store import Store, open_store

# From the top of a checkout, `import cache` would load everything a second time.
if __name__ != "inductor_plugin.cache":
    raise ImportError(f"import this package as inductor_plugin.cache, not as {__name__}")

__all__ = [
    "Decision",
    "KernelEntry",
    "KernelKey",
    "Measured",
    "Pack",
    "Pruned",
    "Quarantined",
    "Record",
    "Resources",
    "SecondCache",
    "Store",
    "differences",
    "digest_of",
    "open_second",
    "open_store",
]
