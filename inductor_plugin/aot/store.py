"""The cache that work of minutes or hours is written to."""

from __future__ import annotations

from inductor_plugin.cache import Store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError
from inductor_plugin.tuning.runtime import RUNTIME


def store_to_write(config: Config) -> Store:
    """Return the cache of a configuration, which this process writes to.

    Raises:
        CacheError: It cannot be written to, or it is off: all work would be lost with the process.
    """
    if config.cache == "off":
        raise CacheError(
            "cache=off keeps nothing of what is done here; unset INDUCTOR_PLUGIN_CACHE"
        )
    store = RUNTIME.store(config)
    if store.degraded is not None:
        raise CacheError(
            f"the cache {config.cache_dir} cannot be written to: {store.degraded}; name another with --cache-dir"
        )
    return store
