"""A compile job on its way to another machine and back: its sources go, files come back. Neither needs Ray."""

from __future__ import annotations

import functools
import hashlib
import itertools
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from inductor_plugin.version import __version__, installed_version
from inductor_plugin.worker.compile_pool import kernel_keys
from inductor_plugin.worker.farm.places import exists, folders, is_own, is_writable, moved
from inductor_plugin.worker.jobs import Compiled, CompileJob, CppCompileJob, TritonCompileJob

TRITON_FOLDER, INDUCTOR_FOLDER = "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"
_TOOLS = ("TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH")
"""Variables of a job that name what Triton runs or reads."""
_HINTS = ("CUDA_HOME",)
"""Variables of a job without which Triton finds the same tools."""
_PACKAGES = ("torch", "triton", "nvidia-cutlass", "nvidia-cuda-nvcc")
_NATIVE = "-march=native"
_HEADER, _COMPILED = "-include", (".gch", ".pch")
"""The flag of a header that comes first, and what g++ and clang call it once it is compiled."""
_PATH = re.compile(r"(?:-[A-Za-z]+=?|)(/[^{}]+)")


@dataclass(frozen=True)
class Parcel:
    """A job, and what the machine that compiles it must have for the same kernels.

    Attributes:
        job: The job; the folders in it are this machine's.
        facts: Versions of what compiles it, by name.
        paths: Absolute paths that it names: the compiler, folders of headers.
        folders: Folders of this machine's packages, by name: what lies in them is looked for in the same package there.
        headers: Precompiled headers in its command, which a machine that lacks them leaves out: sources include the same text.
        key: By which its sender sees that it has begun; empty where it does not look.
    """

    job: CompileJob
    facts: Mapping[str, str]
    paths: tuple[str, ...] = ()
    folders: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: tuple[str, ...] = ()
    key: str = ""

    @property
    def needs(self) -> tuple[object, ...]:
        """What decides whether a machine refuses it; equal for jobs that the same machines refuse."""
        return (tuple(sorted(self.facts.items())), self.paths)


@dataclass(frozen=True)
class Delivery:
    """What comes back.

    Attributes:
        compiled: The outcome of each kernel; libraries by their names in ``files``.
        files: The files that were made, by their paths in the job's folder.
        host: The machine.
        refusal: Why nothing was compiled there; empty if it was.
        passing: Whether the reason may pass, as memory that others use.
        elapsed_s: Seconds it took there.
        node: What the cluster calls the machine; empty where that is not known.
    """

    compiled: tuple[Compiled, ...]
    files: Mapping[str, bytes]
    host: str
    refusal: str = ""
    elapsed_s: float = 0.0
    node: str = ""
    passing: bool = False


def parcel_of(job: CompileJob) -> Parcel:
    """Return a job as it is sent."""
    command = _command(job)
    pairs = itertools.pairwise(command)
    first = [word for flag, word in pairs if flag == _HEADER]
    headers = [word for word in first if any(exists(word + ending) for ending in _COMPILED)]
    matches = [match for word in command if (match := _PATH.fullmatch(word)) is not None]
    named = [*(match[1] for match in matches), *_tools(job).values()]
    paths = [path for path in named if path not in headers and exists(path)]
    return Parcel(job, facts(job), tuple(dict.fromkeys(paths)), folders(), tuple(headers))


def arrived(parcel: Parcel) -> Parcel:
    """Return what was sent with the paths of this machine, and without headers and variables that are of no use here."""
    job, here = parcel.job, functools.partial(moved, theirs=parcel.folders)
    paths = tuple(here(path) for path in parcel.paths)
    if isinstance(job, CppCompileJob):
        words: list[str] = []
        for word in job.command:
            if word in parcel.headers and not _is_compiled_here(word):
                words.pop()  # its flag
                continue
            match = _PATH.fullmatch(word)
            words.append(word if match is None else word[: match.start(1)] + here(match[1]))
        return replace(parcel, job=replace(job, command=tuple(words)), paths=paths)
    pairs = [(name, here(value) if name in _TOOLS else value) for name, value in job.environment]
    kept = tuple((name, value) for name, value in pairs if name not in _HINTS or exists(value))
    return replace(parcel, job=replace(job, environment=kept), paths=paths)


def why_not_compiled(parcel: Parcel) -> str | None:
    """Return why this machine cannot compile a job as the sender would; None if it can."""
    here = facts(parcel.job)
    for name, sent in parcel.facts.items():
        if here.get(name) != sent:
            return f"{name} is {here.get(name)!r} there and {sent!r} here"
    missing = [path for path in parcel.paths if not exists(path)]
    return f"{missing[0]} does not exist there" if missing else None


def facts(job: CompileJob) -> dict[str, str]:
    """Return the versions of what compiles a job.

    The compiler by its program; the processor only where code is made for the one at hand.
    """
    command = _command(job)
    known = {
        "inductor-plugin": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        **_packages(),
        **{name: _digest(path) for name, path in _tools(job).items()},
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
    # The sender's where that is possible: kernels hold the path of their module, for debuggers.
    if INDUCTOR_FOLDER in environment and not is_writable(environment[INDUCTOR_FOLDER]):
        environment[INDUCTOR_FOLDER] = f"{folder}-inductor"
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
        ValueError: A file does not lie in the job's folder, or the outcomes are not those of the job's kernels.
    """
    folder = _folder(job)
    if (answered := [c.key for c in delivery.compiled]) != kernel_keys(job):
        raise ValueError(f"{delivery.host} answers for {answered}, not for {kernel_keys(job)}")
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


def _is_compiled_here(header: str) -> bool:
    return is_own(header) and any(is_own(header + ending) for ending in _COMPILED)


def _command(job: CompileJob) -> tuple[str, ...]:
    return job.command if isinstance(job, CppCompileJob) else ()


def _tools(job: CompileJob) -> dict[str, str]:
    """Return what a job's variables name, by their names."""
    if isinstance(job, CppCompileJob):
        return {}
    return {name: value for name, value in job.environment if name in _TOOLS}


def _folder(job: CompileJob) -> Path | None:
    if isinstance(job, CppCompileJob):
        return Path(job.workdir)
    folder = dict(job.environment).get(TRITON_FOLDER)
    return Path(folder) if folder else None


@functools.cache
def _packages() -> dict[str, str]:
    versions = {name: installed_version(name) for name in _PACKAGES}
    return {name: version for name, version in versions.items() if version is not None}


@functools.cache
def _digest(compiler: str) -> str:
    """Return a digest of a compiler's program, or of a file that it reads. It is not run: only worker processes run what a command names."""
    path = compiler if Path(compiler).is_absolute() else shutil.which(compiler)
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
