"""The cache: compiled kernels, timings and decisions in one directory that can be read and shipped.

It knows neither torch nor templates: it keeps files and records under digests.
"""

from __future__ import annotations

from inductor_plugin.cache import report
from inductor_plugin.cache.archive import Imported, export_archive, import_archive, merge_stores
from inductor_plugin.cache.entry import BuiltFiles, KernelEntry, Resources
from inductor_plugin.cache.evict import Pruned
from inductor_plugin.cache.folder import Counts
from inductor_plugin.cache.key import SCHEMA, Difference, KernelKey, differences, digest_of
from inductor_plugin.cache.quarantine import Quarantined
from inductor_plugin.cache.record import Decision, Measured, Record
from inductor_plugin.cache.store import Store, open_store
from inductor_plugin.cache.usage import Usage
from inductor_plugin.cache.verify import Finding

# From the top of a checkout, `import cache` would load everything a second time.
if __name__ != "inductor_plugin.cache":
    raise ImportError(f"import this package as inductor_plugin.cache, not as {__name__}")

__all__ = [
    "SCHEMA",
    "BuiltFiles",
    "Counts",
    "Decision",
    "Difference",
    "Finding",
    "Imported",
    "KernelEntry",
    "KernelKey",
    "Measured",
    "Pruned",
    "Quarantined",
    "Record",
    "Resources",
    "Store",
    "Usage",
    "differences",
    "digest_of",
    "export_archive",
    "import_archive",
    "merge_stores",
    "open_store",
    "report",
]
