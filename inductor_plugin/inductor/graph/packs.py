"""Kernels compiled ahead of time, imported before the first call for a GPU is lowered."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from inductor_plugin.config import Config
from inductor_plugin.errors import printable
from inductor_plugin.inductor.candidates.cuda import cuda_major
from inductor_plugin.problem.target import Target
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.version import installed_version

if TYPE_CHECKING:
    from inductor_plugin.cache.transfer.installed import Host

logger = logging.getLogger(__name__)

_ready: set[tuple[Path, str, str]] = set()


def make_ready(config: Config, gpu: Target | None) -> None:
    """Import installed packs into the cache, and warn about packs that do not fit; once per process.

    Never raises: a failure becomes a warning, and the kernels are compiled here.
    """
    if gpu is None or (place := (config.cache_dir, config.cache, gpu.arch)) in _ready:
        return
    _ready.add(place)
    try:
        problems = _problems(config, gpu)
    except Exception as error:  # noqa: BLE001  the border: no compile fails for a pack's sake
        problems = [f"installed packs cannot be used: {type(error).__name__}: {error}"]
    for problem in problems:
        logger.warning("inductor-plugin: %s", printable(problem))


def host_of(gpu: Target) -> Host:
    """Return what a pack has to match in this process and on this machine."""
    from inductor_plugin.cache.transfer.installed import Host  # noqa: PLC0415  8 ms that a compile for a CPU does not need

    triton = installed_version("triton") or ""
    python = ".".join(platform.python_version_tuple()[:2])
    return Host(gpu.arch, cuda_major(), platform.machine(), str(torch.__version__), triton, python)


def _problems(config: Config, gpu: Target) -> list[str]:
    from inductor_plugin.cache.transfer.installed import mismatch, take_installed  # noqa: PLC0415  the same

    store = RUNTIME.store(config)
    problems = take_installed(store)
    if config.policy != "build":
        conflict = mismatch(store.packs(), host_of(gpu))
        problems += [str(conflict)] if conflict is not None else []
    return problems
