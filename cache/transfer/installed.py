"""Packs installed with pip: imported into the cache at the first compile for a GPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inductor_plugin.cache import Pack, Store, atomic
from inductor_plugin.cache.layout import part
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.wheel import ENTRY_POINTS, PACK_FILE
from inductor_plugin.errors import InductorPluginError

_MARK = "packs-installed"


@dataclass(frozen=True)
class Installed:
    """The packs that pip has installed.

    Attributes:
        files: The packs by the name of their entry point.
        problems: Entry points that cannot be resolved, each in one line.
    """

    files: dict[str, Path] = field(default_factory=dict[str, Path])
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """The machine a pack has to fit.

    Attributes:
        arch: The GPU's architecture: ``sm_90a``.
        cuda: Major version of torch's CUDA.
        machine: The processor, as `platform.machine` names it: ``x86_64``.
        torch: Version of torch.
        triton: Version of Triton; empty if it is not installed.
        python: Minor version of Python: ``3.12``. Triton's key has a digest of its ``libtriton.so``, which
            differs from one to the next; CUTLASS kernels do not depend on it.
    """

    arch: str
    cuda: int
    machine: str
    torch: str
    triton: str
    python: str


@dataclass(frozen=True)
class Mismatch:
    """Why packs cannot be used here, or only in part.

    Attributes:
        what: The mismatch and its consequence.
        remedy: How to fix it.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def installed_packs() -> Installed:
    """Return installed pack files, and the entry points that cannot be resolved."""
    files: dict[str, Path] = {}
    problems: list[str] = []
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        file = _file_of(point.value)
        if isinstance(file, Path):
            files[point.name] = file
        else:
            problems.append(f"the installed pack {point.name} cannot be used: {file}")
    return Installed(files, tuple(problems))


def take_installed(store: Store) -> list[str]:
    """Import installed packs that the cache lacks, in whole or in part; return the problems.

    pip does not ask whom to trust: a pack that no trusted key has signed is taken only after `import --trust` with its file.

    A marker named by size and time of the file contains the names of its packs, so that the next
    process need not open the file. Damaged kernels are detected when they are loaded, and are removed.
    """
    installed = installed_packs()
    problems = list(installed.problems)
    for name, file in installed.files.items():
        try:
            status = file.stat()
            stamp = f"{name}-{status.st_size}-{status.st_mtime_ns}"
            marker = store.layout.installed / part(stamp)
            if _is_whole(store, marker):
                continue
            with store.lock_kernel(_MARK, timeout_s=600):
                if not _is_whole(store, marker):
                    imported = import_archive(store, file)
                    names = "\n".join(pack.name for pack in imported.packs)
                    atomic.write(marker, names.encode(), store.layout.private)
        except (InductorPluginError, OSError) as error:
            problems.append(f"the installed pack {name} cannot be used: {error}")
    return problems


def mismatch(packs: Iterable[Pack], host: Host) -> Mismatch | None:
    """Return why no pack fits this machine in full; None if one does, or there are no packs.

    Args:
        packs: The packs of a cache.
        host: The machine they have to fit.
    """
    available = list(packs)
    fitting = [pack for pack in available if pack.arch == host.arch]
    if not available:
        return None
    if not fitting:
        listed = _listed(f"{pack.target} ({pack.arch})" for pack in available)
        return Mismatch(
            f"the packs in the cache are for {listed}, this GPU is {host.arch}",
            "make one with `inductor-plugin precompile --target` and its name",
        )
    loadable = [pack for pack in fitting if pack.machine == host.machine]
    if not loadable:
        listed = _listed(pack.machine for pack in fitting)
        return Mismatch(
            f"the packs in the cache were made on {listed}, this machine is {host.machine}",
            "make one on a machine with this processor",
        )
    serving = [pack for pack in loadable if f"nvcc {host.cuda}." in pack.software.get("nvcc", "")]
    nvcc = [pack.software.get("nvcc", "none") for pack in loadable]
    if not serving and set(nvcc) != {"none"}:
        return Mismatch(
            f"the packs in the cache were compiled by {_listed(nvcc)}, this torch is built for CUDA "
            f"{host.cuda}",
            "make one with a toolkit of that version",
        )
    return _triton_mismatch(loadable, host, others="its CUTLASS kernels serve" if serving else "")


def _triton_mismatch(packs: Sequence[Pack], host: Host, *, others: str) -> Mismatch | None:
    """Return why no pack's Triton kernels are reused here: their key has these versions."""
    # Models are named MODULE:FUNCTION; the standard sets have no Triton kernels.
    with_triton = [pack for pack in packs if any(":" in model for model in pack.models)]
    here = {"torch": host.torch, "triton": host.triton, "python": host.python}
    compiled_with = [
        {name: pack.software.get(name, here[name]) for name in here} for pack in with_triton
    ]
    if not compiled_with or here in compiled_with:
        return None
    versions = _listed(
        f"torch {versions['torch']}, Triton {versions['triton'] or 'none'}, Python {versions['python']}"
        for versions in compiled_with
    )
    compiled = "Triton's are compiled anew" if others else "its Triton kernels are compiled anew"
    return Mismatch(
        f"the pack in the cache was made with {versions}; here are torch {host.torch}, Triton "
        f"{host.triton or 'none'}, Python {host.python}: {', '.join(filter(None, (others, compiled)))}",
        "make one with these versions",
    )


def _file_of(package: str) -> Path | str:
    """Return the file of a pack in a package, or why there is none."""
    advice = "install its wheel again, or uninstall it"
    # To find `a.b` imports `a`: code of the wheel would run before anybody has vouched for it.
    if not package.isidentifier():
        return f"{package[:80]!r} is no package at the top, as a wheel of `inductor-plugin wheel` has; {advice}"
    try:
        spec = importlib.util.find_spec(package)
    except Exception as error:  # noqa: BLE001  finders of other packages may raise anything
        return f"{type(error).__name__}: {error}; {advice}"
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return f"there is no package {package}; {advice}"
    return Path(next(iter(folders))) / PACK_FILE


def _is_whole(store: Store, marker: Path) -> bool:
    """Return True if the cache has all kernels of the packs that a marker names."""
    try:
        names = marker.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False
    packs = {pack.name: pack for pack in store.packs()}
    return bool(names) and all(
        name in packs
        and all(
            any(layout.kernel(digest).is_dir() for layout in store.layouts)
            for digest in packs[name].kernels
        )
        for name in names
    )


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))
