"""A compile job on its way to another machine and back: its sources go, files come back. Neither needs Ray."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from inductor_plugin.version import __version__
from inductor_plugin.worker.jobs import Compiled, CompileJob, CppCompileJob, TritonCompileJob

TRITON_FOLDER = "TRITON_CACHE_DIR"
_PACKAGES = ("torch", "triton", "nvidia-cutlass", "nvidia-cuda-nvcc")
_NATIVE = "-march=native"
_PATH = re.compile(r"(?:-[A-Za-z]+=?|)(/[^{}]+)")


@dataclass(frozen=True)
class Parcel:
    """A job, and what the machine that compiles it must have for the same kernels.

    Attributes:
        job: The job; the folders in it are this machine's.
        facts: Versions of what compiles it, by name.
        paths: Absolute paths in its command: the compiler, folders of headers, a precompiled header.
    """

    job: CompileJob
    facts: Mapping[str, str]
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delivery:
    """What comes back.

    Attributes:
        compiled: The outcome of each kernel; libraries by their names in ``files``.
        files: The files that were made, by their paths in the job's folder.
        host: The machine.
        refusal: Why nothing was compiled there; empty if it was.
        elapsed_s: Seconds it took there.
    """

    compiled: tuple[Compiled, ...]
    files: Mapping[str, bytes]
    host: str
    refusal: str = ""
    elapsed_s: float = 0.0


def parcel_of(job: CompileJob) -> Parcel:
    """Return a job as it is sent."""
    command = job.command if isinstance(job, CppCompileJob) else ()
    matches = [match for word in command if (match := _PATH.fullmatch(word)) is not None]
    paths = [match[1] for match in matches if Path(match[1]).exists()]
    return Parcel(job, facts(command), tuple(dict.fromkeys(paths)))


def refusal(parcel: Parcel) -> str:
    """Return why this machine cannot compile a job as the sender would; empty if it can."""
    job = parcel.job
    here = facts(job.command if isinstance(job, CppCompileJob) else ())
    for name, sent in parcel.facts.items():
        if here.get(name) != sent:
            return f"{name} is {here.get(name)!r} there and {sent!r} here"
    missing = [path for path in parcel.paths if not Path(path).exists()]
    return f"{missing[0]} does not exist there" if missing else ""


def facts(command: Sequence[str]) -> dict[str, str]:
    """Return the versions of what compiles a job.

    The compiler by its program; the processor only where code is made for the one at hand.
    """
    known = {
        "inductor-plugin": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        **_packages(),
    }
    if command:
        known["compiler"] = _digest(command[0])
    if _NATIVE in command:
        known["processor"] = _processor()
    return known


def addressed(job: CompileJob, folder: Path) -> CompileJob:
    """Return a job that works in another folder."""
    if isinstance(job, CppCompileJob):
        return replace(job, workdir=str(folder))
    environment = dict(job.environment)
    if TRITON_FOLDER in environment:
        environment[TRITON_FOLDER] = str(folder)
    return replace(job, environment=tuple(sorted(environment.items())))


def packed(job: CompileJob, compiled: Sequence[Compiled], folder: Path) -> Delivery:
    """Return what was made in a folder, to be sent."""
    if isinstance(job, TritonCompileJob):
        files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    else:
        files = {Path(c.library).name: Path(c.library) for c in compiled if c.library}
    named = [replace(c, library=Path(c.library).name) if c.library else c for c in compiled]
    content = {name: path.read_bytes() for name, path in files.items()}
    return Delivery(tuple(named), content, platform.node())


def unpacked(job: CompileJob, delivery: Delivery) -> list[Compiled]:
    """Write what has come back where the job would have, and return its outcomes.

    Raises:
        OSError: A file cannot be written.
        ValueError: A file does not lie in the job's folder.
    """
    folder = _folder(job)
    if folder is None:
        return list(delivery.compiled)
    for name, content in delivery.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{delivery.host} sent a file {name!r}, outside of the job's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [
        replace(c, library=str(folder / c.library)) if c.library else c for c in delivery.compiled
    ]


def _folder(job: CompileJob) -> Path | None:
    if isinstance(job, CppCompileJob):
        return Path(job.workdir)
    folder = dict(job.environment).get(TRITON_FOLDER)
    return Path(folder) if folder else None


@functools.cache
def _packages() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@functools.cache
def _digest(compiler: str) -> str:
    """Return a digest of a compiler's program. It is not run: only worker processes run what a command names."""
    path = shutil.which(compiler)
    if path is None:
        return "missing"
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        return type(error).__name__


@functools.cache
def _processor() -> str:
    """Return a digest of this processor's model and features."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        kept = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
        return hashlib.sha256("\n".join(sorted(kept)).encode()).hexdigest()[:16]
    return platform.processor()
