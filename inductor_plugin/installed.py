"""Packs that were installed with pip: taken into the cache at the first compile for a GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterable
from pathlib import Path

from inductor_plugin.cache import Pack, Store
from inductor_plugin.cache.archive import import_archive
from inductor_plugin.errors import InductorPluginError
from inductor_plugin.wheel import ENTRY_POINTS, PACK_FILE

logger = logging.getLogger(__name__)

_MARK = "packs-installed"


def installed_packs() -> dict[str, Path]:
    """Return the files of installed packs by the name of their entry point."""
    found: dict[str, Path] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        spec = importlib.util.find_spec(point.value)
        folders = spec.submodule_search_locations if spec else None
        if folders:
            found[point.name] = Path(next(iter(folders))) / PACK_FILE
    return found


def take_installed(store: Store) -> list[str]:
    """Take installed packs into a cache that has not seen them; return what went wrong.

    Which have been taken is noted with size and time of the file, so that the next process looks at
    one file each.
    """
    problems: list[str] = []
    for name, file in installed_packs().items():
        try:
            facts = file.stat()
            stamp = f"{facts.st_size}-{facts.st_mtime_ns}"
            mark = store.layout.root / _MARK / f"{name}-{stamp}"
            if mark.exists():
                continue
            with store.lock_kernel(_MARK, timeout_s=600):
                if not mark.exists():
                    import_archive(store, file)
                    mark.parent.mkdir(mode=0o700, exist_ok=True)
                    mark.touch(mode=0o600)
        except (InductorPluginError, OSError) as error:
            problems.append(f"the installed pack {name} cannot be used: {error}")
    return problems


def mismatch(packs: Iterable[Pack], arch: str, cuda: int) -> str | None:
    """Return why none of the packs is of use for a GPU, None if one is or there are none.

    Args:
        packs: The packs of a cache.
        arch: The GPU's architecture: ``sm_90a``.
        cuda: Major version of torch's CUDA.
    """
    known = list(packs)
    fitting = [one for one in known if one.arch == arch]
    if not known or any(
        one.software.get("nvcc", "").startswith(f"nvcc {cuda}.") for one in fitting
    ):
        return None
    if not fitting:
        made = ", ".join(sorted({f"{one.target} ({one.arch})" for one in known}))
        return (
            f"the packs in the cache are for {made}, this GPU is {arch}; make one with "
            "`inductor-plugin precompile --target` and its name"
        )
    if all(one.software.get("nvcc", "none") == "none" for one in fitting):
        return None
    made = ", ".join(sorted({one.software["nvcc"] for one in fitting}))
    return (
        f"the packs in the cache were compiled by {made}, this torch is built for CUDA {cuda}; make "
        "one with a toolkit of that version"
    )
