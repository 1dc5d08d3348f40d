"""Loaded artifacts on their way into the cache of this process."""

from __future__ import annotations

import logging

from torch._inductor import config as inductor_config

from inductor_plugin.cache.transfer.archive import import_bytes
from inductor_plugin.cache.transfer.parcel import take_record
from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.ops import launch
from inductor_plugin.ops.native import library
from inductor_plugin.tuning.runtime import RUNTIME

logger = logging.getLogger(__name__)


def take(key: str, data: bytes, config: Config | None, *, is_record: bool) -> None:
    """Put an artifact into the cache of this process, with at most one warning a process.

    Args:
        key: The artifact's.
        data: Its content.
        config: The options; None for those of the environment variables.
        is_record: Whether it is a record.
    """
    try:
        config = (config or Config.load()).with_cache(
            disabled=bool(inductor_config.force_disable_caches)
        )
        if config.cache == "off":
            return
        store = RUNTIME.store(config)
        if is_record:
            take_record(store, data, key)
        elif import_bytes(store, data, key).kernels:
            launch.add_kernel_store(store)  # what was missing until now is searched again
            library.search_again()
    except Exception as error:  # noqa: BLE001  the border: the artifacts of others are still to be loaded
        text = f"{key} is not loaded from the artifacts: {type(error).__name__}: {error}"
        warn_once(logger, text, "an artifact that was not loaded")
