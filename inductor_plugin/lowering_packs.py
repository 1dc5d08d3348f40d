"""Kernels compiled ahead of time, made ready before the first call for a GPU is lowered."""

from __future__ import annotations

import logging
from pathlib import Path

from inductor_plugin.config import Config
from inductor_plugin.installed import mismatch, take_installed
from inductor_plugin.lowering_cuda import cuda_major
from inductor_plugin.runtime import RUNTIME
from inductor_plugin.target import Target

logger = logging.getLogger(__name__)

_ready: set[tuple[Path, str]] = set()


def make_ready(config: Config, gpu: Target | None) -> None:
    """Take installed packs into the cache, and warn of packs that are of no use here; once each."""
    if gpu is None or (config.cache_dir, gpu.arch) in _ready:
        return
    _ready.add((config.cache_dir, gpu.arch))
    store = RUNTIME.store(config)
    problems = take_installed(store)
    if config.policy != "build":
        problems += filter(None, [mismatch(store.packs(), gpu.arch, cuda_major())])
    for one in problems:
        logger.warning("%s", one)
