"""Packs that were installed with pip: taken into the cache at the first compile for a GPU."""

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
    """What pip has installed.

    Attributes:
        files: The packs by the name of their entry point.
        problems: Entry points that lead nowhere, each in one line.
    """

    files: dict[str, Path] = field(default_factory=dict[str, Path])
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """What a pack has to fit.

    Attributes:
        arch: The GPU's architecture: ``sm_90a``.
        cuda: Major version of torch's CUDA.
        machine: The processor, as `platform.machine` names it: ``x86_64``.
        torch: Version of torch.
        triton: Version of Triton; empty where there is none.
    """

    arch: str
    cuda: int
    machine: str
    torch: str
    triton: str


@dataclass(frozen=True)
class Mismatch:
    """Why packs are of no use, or of less than they could be.

    Attributes:
        what: What does not fit, and what follows.
        remedy: What to do about it.
    """

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def installed_packs() -> Installed:
    """Return the files of installed packs, and which entry points lead nowhere."""
    files: dict[str, Path] = {}
    problems: list[str] = []
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found = _file_of(point.value)
        if isinstance(found, Path):
            files[point.name] = found
        else:
            problems.append(f"the installed pack {point.name} cannot be used: {found}")
    return Installed(files, tuple(problems))


def take_installed(store: Store) -> list[str]:
    """Take installed packs into a cache that lacks them or kernels of them; return what went wrong.

    A mark with size and time of the file holds the names of its packs, so that the next process
    opens no file of an installed pack. Damaged kernels are found when they are loaded, and are
    missing from then on.
    """
    found = installed_packs()
    problems = list(found.problems)
    for name, file in found.files.items():
        try:
            facts = file.stat()
            stamp = f"{name}-{facts.st_size}-{facts.st_mtime_ns}"
            mark = store.layout.root / _MARK / part(stamp)
            if _is_whole(store, mark):
                continue
            with store.lock_kernel(_MARK, timeout_s=600):
                if not _is_whole(store, mark):
                    taken = import_archive(store, file)
                    names = "\n".join(one.name for one in taken.packs)
                    atomic.write(mark, names.encode(), store.layout.private)
        except (InductorPluginError, OSError) as error:
            problems.append(f"the installed pack {name} cannot be used: {error}")
    return problems


def mismatch(packs: Iterable[Pack], host: Host) -> Mismatch | None:
    """Return why none of the packs is of full use here, None if one is or there are none.

    Args:
        packs: The packs of a cache.
        host: What they have to fit.
    """
    known = list(packs)
    fitting = [one for one in known if one.arch == host.arch]
    if not known:
        return None
    if not fitting:
        made = _listed(f"{one.target} ({one.arch})" for one in known)
        return Mismatch(
            f"the packs in the cache are for {made}, this GPU is {host.arch}",
            "make one with `inductor-plugin precompile --target` and its name",
        )
    launched = [one for one in fitting if one.machine == host.machine]
    if not launched:
        made = _listed(one.machine for one in fitting)
        return Mismatch(
            f"the packs in the cache were made on {made}, this machine is {host.machine}",
            "make one on a machine with this processor",
        )
    serving = [one for one in launched if f"nvcc {host.cuda}." in one.software.get("nvcc", "")]
    nvcc = [one.software.get("nvcc", "none") for one in launched]
    if not serving and set(nvcc) != {"none"}:
        return Mismatch(
            f"the packs in the cache were compiled by {_listed(nvcc)}, this torch is built for CUDA "
            f"{host.cuda}",
            "make one with a toolkit of that version",
        )
    return _triton_mismatch(launched, host, others="its CUTLASS kernels serve" if serving else "")


def _triton_mismatch(packs: Sequence[Pack], host: Host, *, others: str) -> Mismatch | None:
    """Return why no pack's Triton kernels are found here: their key has both versions."""
    # What comes of a model is named MODULE:FUNCTION; the standard sets have no Triton kernels.
    holding = [one for one in packs if any(":" in model for model in one.models)]
    here = {"torch": host.torch, "triton": host.triton}
    made = [{name: one.software.get(name, here[name]) for name in here} for one in holding]
    if not made or here in made:
        return None
    versions = _listed(f"torch {one['torch']}, Triton {one['triton'] or 'none'}" for one in made)
    compiled = "Triton's are compiled anew" if others else "its Triton kernels are compiled anew"
    return Mismatch(
        f"the pack in the cache was made with {versions}; here are torch {host.torch}, Triton "
        f"{host.triton or 'none'}: {', '.join(filter(None, (others, compiled)))}",
        "make one with these versions",
    )


def _file_of(package: str) -> Path | str:
    """Return the file of a pack in a package, or why there is none."""
    advice = "install its wheel again, or uninstall it"
    try:
        spec = importlib.util.find_spec(package)
    except Exception as error:  # noqa: BLE001  it imports the packages above, which may do anything
        return f"{type(error).__name__}: {error}; {advice}"
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        return f"there is no package {package}; {advice}"
    return Path(next(iter(folders))) / PACK_FILE


def _is_whole(store: Store, mark: Path) -> bool:
    """Return True if the cache has all kernels of the packs that a mark names."""
    try:
        names = mark.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False
    known = {one.name: one for one in store.packs()}
    return bool(names) and all(
        name in known and all(store.layout.kernel(one).is_dir() for one in known[name].kernels)
        for name in names
    )


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))
