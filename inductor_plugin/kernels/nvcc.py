"""NVIDIA's compiler and CUTLASS's headers: where they are, or what to install.

    option ─► CUDA_HOME ─► nvcc on PATH ─► NVIDIA's wheels       the first usable one
                               │
                               ▼
                     nvcc --version, include and library folders ─► Toolkit ─► command(toolkit, arch)

No torch and no CUTLASS module is imported; the headers are found by their package's folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Origin: TypeAlias = Literal["option", "CUDA_HOME", "PATH", "wheels"]

INSTALL_NVCC = 'pip install "inductor-plugin[nvcc]", or install the CUDA toolkit and set CUDA_HOME to its folder'
INSTALL_CUTLASS = 'pip install "inductor-plugin[cutlass]"'

OLDEST_NVCC = (12, 3)
"""CUTLASS 4.2 builds sm_90a kernels from CUDA 12.3 on, sm_100a ones from 12.8 on."""

CUTLASS_MAJOR = 4
"""Kernels are written for CUTLASS 4; emitters and headers of 3 and 5 differ."""

_WHEELS_MAJOR = 13
"""Major version of CUDA whose compiler the extra ``nvcc`` installs."""

FLAGS = (
    "-O3",
    "-std=c++17",
    "--expt-relaxed-constexpr",
    "-DNDEBUG",
    # Else host objects of the same template in two libraries become one when loaded.
    "-Xcompiler=-fPIC,-fno-strict-aliasing,-fvisibility=hidden",
    "-w",
)

_PRINT_RESOURCES = "-Xptxas=-v"
"""Prints registers and spills of each kernel; no part of the key, since the code is the same."""

INCLUDE = Path(__file__).resolve().parent / "include"
"""Our own headers. They are part of a kernel's text: templates add them to the digest of their interface."""

_PROBE_S = 30
_WHEEL_FOLDERS = ("nvidia/cu13",)
"""Folders of NVIDIA's compiler wheels under site-packages; those of CUDA 12 have no nvcc."""


@dataclass(frozen=True)
class ToolkitPlace:
    """Where an nvcc may be.

    Attributes:
        origin: Where the path comes from.
        nvcc: Path of the program.
    """

    origin: Origin
    nvcc: Path


@dataclass(frozen=True)
class Toolkit:
    """The compiler, headers and libraries of CUTLASS kernels.

    Attributes:
        nvcc: Path of the compiler.
        version: Its version, e.g. ``13.0.88``.
        origin: Where the path comes from.
        include_dirs: Folders of headers, CUTLASS's first.
        cudart: Path of the runtime library a kernel is linked with, e.g. ``.../libcudart.so.13``.
        cutlass_version: Version of the headers, e.g. ``4.2.0``.
    """

    nvcc: str
    version: str
    origin: Origin
    include_dirs: tuple[str, ...]
    cudart: str
    cutlass_version: str

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version of CUDA."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def key_text(self, arch: str) -> str:
        """Return what compiled code depends on besides its source: versions and flags, not paths."""
        flags = " ".join((*FLAGS, *_target(arch)))
        return f"nvcc {self.version}, CUTLASS {self.cutlass_version}, flags {flags}"


@dataclass(frozen=True)
class NoToolkit:
    """Why nothing can be compiled.

    Attributes:
        what: What is missing or cannot be used, and where it was searched.
        remedy: What to install or to set.
        missing: True if nothing is installed, False if it is installed but cannot be used.
    """

    what: str
    remedy: str
    missing: bool = False

    @property
    def reason(self) -> str:
        """The problem and its remedy."""
        return f"{self.what}; {self.remedy}"


Headers: TypeAlias = tuple[str, tuple[str, ...]]
"""Version and include folders of CUTLASS."""


def find(
    option: str, environ: Mapping[str, str], major: int = 0, headers: Headers | None = None
) -> Toolkit | NoToolkit:
    """Return the toolkit, or the reason why there is none.

    Args:
        option: Path of an nvcc or of a toolkit's folder set by the user; empty for none.
        environ: Variables of this process (``CUDA_HOME``, ``PATH``).
        major: Major version of the CUDA that torch was built for, whose runtime library is
            loaded when a kernel runs; 0 if nothing will run.
        headers: CUTLASS's; by default those of the wheel nvidia-cutlass.
    """
    packages = package_folders("nvidia")
    sites = tuple(folder.parent for folder in packages)
    cutlass = headers or cutlass_headers()
    if isinstance(cutlass, NoToolkit):
        return cutlass
    candidates = present(places(option, environ, sites), option)
    if isinstance(candidates, NoToolkit):
        return candidates
    # If none is usable, the first one's reason is reported: the user expects that one to be used.
    first: NoToolkit | None = None
    for place in candidates:
        toolkit = _usable(place, cutlass, sites, major)
        if isinstance(toolkit, Toolkit):
            return toolkit
        first = first or toolkit
    assert first is not None
    return first


def _usable(
    place: ToolkitPlace, headers: Headers, sites: Sequence[Path], major: int
) -> Toolkit | NoToolkit:
    """Return the toolkit of an existing nvcc, or why it cannot be used."""
    version = nvcc_version(place.nvcc)
    if isinstance(version, NoToolkit):
        return version
    if major and version.split(".")[0] != str(major):
        return NoToolkit(
            f"{place.nvcc} is CUDA {version}, but torch was built for CUDA {major}",
            INSTALL_NVCC
            if major == _WHEELS_MAJOR
            else f"install the toolkit of CUDA {major} and set CUDA_HOME to its folder",
        )
    return assemble(place, version, headers, sites)


def places(
    option: str, environ: Mapping[str, str], sites: Sequence[Path]
) -> tuple[ToolkitPlace, ...]:
    """Return where an nvcc may be, in the order of preference; none of them need exist.

    Args:
        sites: Folders with a package ``nvidia``, usually one site-packages.
    """
    candidates: list[ToolkitPlace] = []
    if option:
        # Unlike a Path's, it raises nothing: what it leaves as it is is not there, which `present` says.
        path = Path(os.path.expanduser(option))  # noqa: PTH111
        candidates.append(
            ToolkitPlace("option", path if path.name == "nvcc" else path / "bin" / "nvcc")
        )
    if cuda_home := environ.get("CUDA_HOME"):
        candidates.append(ToolkitPlace("CUDA_HOME", Path(cuda_home) / "bin" / "nvcc"))
    if on_path := shutil.which("nvcc", path=environ.get("PATH", "")):
        candidates.append(ToolkitPlace("PATH", Path(on_path)))
    candidates.extend(
        ToolkitPlace("wheels", site / folder / "bin" / "nvcc")
        for site in sites
        for folder in _WHEEL_FOLDERS
    )
    return tuple(candidates)


def present(
    candidates: Sequence[ToolkitPlace], option: str = ""
) -> tuple[ToolkitPlace, ...] | NoToolkit:
    """Return the places with an nvcc. If the user set the option, only that place counts."""
    for place in candidates:
        if place.origin == "option":
            if place.nvcc.is_file():
                return (place,)
            return NoToolkit(
                f"option nvcc is {option!r}, but there is no {place.nvcc}",
                "name an nvcc or a toolkit's folder, or leave the option empty",
            )
    existing = tuple(place for place in candidates if place.nvcc.is_file())
    searched = ", ".join(f"{place.nvcc} ({place.origin})" for place in candidates) or "PATH"
    return existing or NoToolkit(f"no nvcc: looked at {searched}", INSTALL_NVCC, missing=True)


def assemble(
    place: ToolkitPlace, version: str, headers: Headers, sites: Sequence[Path]
) -> Toolkit | NoToolkit:
    """Return the toolkit of an nvcc, with its headers and libraries.

    Args:
        place: The compiler.
        version: Its version.
        headers: Version and include folders of CUTLASS.
    """
    if tuple(map(int, version.split(".")[:2])) < OLDEST_NVCC:
        oldest = ".".join(map(str, OLDEST_NVCC))
        return NoToolkit(f"{place.nvcc} is CUDA {version}, CUTLASS needs {oldest}", INSTALL_NVCC)
    major = version.split(".")[0]
    toolkit_root = _root(place.nvcc)
    wheels = [site / "nvidia" / f"cu{major}" for site in sites]
    roots = [toolkit_root, *sorted((toolkit_root / "targets").glob("*-linux")), *wheels]
    runtime = "cuda_runtime.h"
    # nvcc finds its own headers through nvcc.profile; wheels and slim toolkits may lack some.
    include = [root / "include" for root in roots if (root / "include" / runtime).is_file()]
    if not include:
        return NoToolkit(f"no {runtime} for {place.nvcc}", "pip install nvidia-cuda-runtime")
    cccl = [path / "cccl" for path in include if (path / "cccl" / "cuda" / "std").is_dir()]
    if not cccl and not any((path / "cuda" / "std").is_dir() for path in include):
        return NoToolkit(f"no cuda/std headers for {place.nvcc}", "pip install nvidia-cuda-cccl")
    folders = [root / name for root in roots for name in ("lib64", "lib")]
    soname = f"libcudart.so.{major}"
    libraries = [folder for folder in folders if (folder / soname).is_file()]
    if not libraries:
        return NoToolkit(f"no {soname} for {place.nvcc}", "pip install nvidia-cuda-runtime")
    cutlass_version, cutlass_include = headers
    return Toolkit(
        nvcc=str(place.nvcc),
        version=version,
        origin=place.origin,
        include_dirs=(*cutlass_include, *(str(path) for path in (*include[:1], *cccl[:1]))),
        cudart=str(libraries[0] / soname),
        cutlass_version=cutlass_version,
    )


def command(toolkit: Toolkit, arch: str) -> tuple[str, ...]:
    """Return the compiler's command line of a batch, with ``{source}`` and ``{output}`` placeholders.

    The runtime library is shared (0.1 MB a kernel instead of 1 MB) and linked by its full name,
    since wheels have no ``libcudart.so``. There is no ``-lcuda``: CUTLASS asks the runtime for
    ``cuTensorMapEncodeTiled``, so that a kernel links and loads without a driver.

    Args:
        toolkit: The compiler.
        arch: Device to compile for, ``sm_80``, ``sm_90a``, ``sm_100a`` ...
    """
    return (
        toolkit.nvcc,
        "-shared",
        "-cudart=none",
        *FLAGS,
        *_target(arch),
        _PRINT_RESOURCES,
        *(f"-I{folder}" for folder in (INCLUDE, *toolkit.include_dirs)),
        "-x",
        "cu",
        "{source}",
        "-o",
        "{output}",
        f"-Xlinker={toolkit.cudart}",
    )


def nvcc_version(nvcc: Path) -> str | NoToolkit:
    """Return the version that ``nvcc --version`` prints."""
    try:
        result = subprocess.run(
            [str(nvcc), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return NoToolkit(f"{nvcc} --version failed: {error}", INSTALL_NVCC)
    text = (result.stdout + result.stderr).decode(errors="replace")
    return parse_version(text) or NoToolkit(
        f"{nvcc} --version ended with {result.returncode} and said no version: {text.strip()[-200:]!r}",
        INSTALL_NVCC,
    )


def parse_version(text: str) -> str | None:
    """Return the version in the output of ``nvcc --version``: ``... release 13.0, V13.0.88``."""
    match = re.search(r"\bV(\d+\.\d+\.\d+)\b", text) or re.search(r"\brelease (\d+\.\d+)\b", text)
    return match[1] if match else None


def cutlass_headers() -> Headers | NoToolkit:
    """Return version and include folders of the CUTLASS inside the wheel nvidia-cutlass."""
    packages = package_folders("cutlass_library")
    if not packages:
        return NoToolkit("nvidia-cutlass is not installed", INSTALL_CUTLASS, missing=True)
    for package in packages:
        include = package / "source" / "include"
        version = _cutlass_version(include / "cutlass" / "version.h")
        if version and version.split(".")[0] != str(CUTLASS_MAJOR):
            return NoToolkit(
                f"nvidia-cutlass {version} is installed, kernels need {CUTLASS_MAJOR}.x",
                INSTALL_CUTLASS,
            )
        if version:
            return version, (str(include), str(package / "source" / "tools" / "util" / "include"))
    return NoToolkit(f"{packages[0]} holds no CUTLASS headers", INSTALL_CUTLASS)


def package_folders(name: str) -> tuple[Path, ...]:
    """Return the folders of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return ()
    return tuple(Path(folder) for folder in spec.submodule_search_locations)


def _target(arch: str) -> tuple[str, ...]:
    number = arch.removeprefix("sm_")
    return (f"-gencode=arch=compute_{number},code=sm_{number}",)


def _root(nvcc: Path) -> Path:
    """Return the toolkit's folder. ``nvcc`` may be a link, or a script that calls another nvcc."""
    real = nvcc.resolve()
    if (real.parent.parent / "include" / "cuda_runtime.h").is_file():
        return real.parent.parent
    head = real.read_bytes()[:512]
    if head.startswith(b"#!") and (called := re.search(rb"(/\S+)/bin/nvcc", head)):
        return Path(called[1].decode())
    return real.parent.parent


def _cutlass_version(header: Path) -> str | None:
    if not header.is_file():
        return None
    text = header.read_text(encoding="utf-8", errors="replace")
    parts = [re.search(rf"CUTLASS_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(part[1] for part in parts if part) if all(parts) else None
