"""A measurement on its way to a node: the job, and the files that it names, each sent once by its content.

A job names files of this machine: libraries of C++ and CUTLASS kernels, modules of Triton kernels, weights. Here they become
digests of their contents (`Packer`); on the node the job names the copies there (`addressed`). Neither needs Ray.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from inductor_plugin.cache import KernelEntry
from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    ModuleKernel,
    OpKernel,
    RequestKernel,
    SequenceKernel,
    Single,
    TensorSpec,
)
from inductor_plugin.worker.jobs import BenchCandidate, FinalJob, ScreenJob

Variables = tuple[tuple[str, str], ...]
BenchJob = TypeVar("BenchJob", bound="ScreenJob | FinalJob")

INDUCTOR_FOLDER, TRITON_FOLDER = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_TOOLS = ("TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH", "CUDA_HOME")
"""Variables that name programs of this machine; a node without them has Triton find its own."""
_AT = "@/"
"""In an operator's argument, ahead of the path of a library: ``SYMBOL@/a/path``."""


@dataclass(frozen=True)
class BenchParcel:
    """A job as it is sent.

    Attributes:
        job: The job; the paths in it are this machine's.
        files: Digest of the content of each file that it names, by its path.
        kernels: Files of compiled Triton kernels, as of `triton_files.collect`: digests of contents by name.
    """

    job: ScreenJob | FinalJob
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    kernels: Mapping[str, str] = field(default_factory=dict[str, str])

    def digests(self) -> tuple[str, ...]:
        """Return the digests of all contents, each once."""
        return tuple(dict.fromkeys((*self.files.values(), *self.kernels.values())))


@dataclass(frozen=True)
class Addresses:
    """What becomes of what a job names.

    Attributes:
        file: Returns the path of a file, by its path in the job.
        variables: Returns variables of Triton, by those in the job.
        request: Called with each kernel of a request.
    """

    file: Callable[[str], str]
    variables: Callable[[Variables], Variables] = lambda pairs: pairs
    request: Callable[[RequestKernel], object] = lambda _: None


class Packer:
    """Packs jobs, and knows the contents of the files that it has packed."""

    def __init__(self, cached: Callable[[str], KernelEntry | None] = lambda _: None) -> None:
        """Pack nothing yet.

        Args:
            cached: Returns a kernel of the cache by its digest, None if it is not there.
        """
        self._cached = cached
        self._paths: dict[str, str] = {}

    def pack(self, job: ScreenJob | FinalJob) -> BenchParcel:
        """Return a job as it is sent.

        Raises:
            OSError: A file that it names cannot be read.
        """
        files: dict[str, str] = {}
        kernels: dict[str, str] = {}

        def file(path: str) -> str:
            files[path] = self._digest(path)
            return path

        def request(kernel: RequestKernel) -> None:
            entry = self._cached(kernel.kernel) if kernel.kernel else None
            if entry is not None:
                kernels.update(entry.files)
                self._paths.update(
                    (sha256, str(entry.path(n))) for n, sha256 in entry.files.items()
                )

        readdressed(job, Addresses(file, request=request))
        return BenchParcel(job, files, kernels)

    def content(self, digest: str) -> bytes:
        """Return a content that has been packed.

        Raises:
            OSError: Its file is gone.
        """
        return Path(self._paths[digest]).read_bytes()

    def _digest(self, path: str) -> str:
        state = Path(path).stat()
        digest = _digest_of(path, state.st_ino, state.st_size, state.st_mtime_ns)
        self._paths[digest] = path
        return digest


@functools.lru_cache(maxsize=4096)
def _digest_of(path: str, _inode: int, _size: int, _changed_ns: int) -> str:
    """Return the SHA-256 of a file; what identifies its state is part of the key."""
    with Path(path).open("rb") as file:
        hashed = hashlib.sha256()
        while block := file.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


def place_of(folder: Path, path: str, digest: str) -> Path:
    """Return where a file lies in a node's folder: with its own name, which a loader may look at."""
    return folder / "files" / digest / Path(path).name


def addressed(parcel: BenchParcel, folder: Path) -> ScreenJob | FinalJob:
    """Return a job that reads the copies of its files in a node's folder.

    Raises:
        KeyError: It names a file that was not packed.
    """

    def file(path: str) -> str:
        return str(place_of(folder, path, parcel.files[path]))

    def variables(pairs: Variables) -> Variables:
        named = {n: v for n, v in pairs if n not in _TOOLS or Path(v).exists()}
        own = {INDUCTOR_FOLDER: folder / "inductor", TRITON_FOLDER: folder / "triton"}
        named |= {name: str(path) for name, path in own.items() if name in named}
        return tuple(sorted(named.items()))

    return readdressed(parcel.job, Addresses(file, variables))


def readdressed(job: BenchJob, at: Addresses) -> BenchJob:
    """Return a job with everything that it names at other addresses."""
    library = _candidate(job.library, at) if job.library is not None else None
    if isinstance(job, ScreenJob):
        ends = tuple(readdressed(end, at) for end in job.ends)
        candidate = _candidate(job.candidate, at)
        return replace(job, library=library, candidate=candidate, ends=ends)
    candidates = tuple(_candidate(candidate, at) for candidate in job.candidates)
    return replace(job, library=library, candidates=candidates)


def _candidate(candidate: BenchCandidate, at: Addresses) -> BenchCandidate:
    return replace(
        candidate,
        kernel=_kernel(candidate.kernel, at),
        inputs=tuple(_operand(spec, at) for spec in candidate.inputs),
        output=_operand(candidate.output, at),
    )


def _operand(spec: TensorSpec, at: Addresses) -> TensorSpec:
    return spec if spec.file is None else replace(spec, file=at.file(spec.file))


def _kernel(kernel: Kernel, at: Addresses) -> Kernel:
    if isinstance(kernel, CppKernel):
        return replace(kernel, library=at.file(kernel.library))
    if not isinstance(kernel, SequenceKernel):
        return cast("Kernel", _single(kernel, at))
    parts = tuple(replace(part, kernel=_single(part.kernel, at)) for part in kernel.parts)
    scratch = tuple(_operand(spec, at) for spec in kernel.scratch)
    return replace(kernel, parts=parts, scratch=scratch)


def _single(kernel: Single, at: Addresses) -> Single:
    if isinstance(kernel, ExternKernel):
        return kernel
    if isinstance(kernel, OpKernel):
        return replace(kernel, args=tuple(_argument(each, at) for each in kernel.args))
    if isinstance(kernel, ModuleKernel):
        return replace(kernel, environment=at.variables(kernel.environment))
    at.request(kernel)
    module = at.file(kernel.module) if kernel.module else ""
    return replace(kernel, module=module, environment=at.variables(kernel.environment))


def _argument(value: object, at: Addresses) -> object:
    """Return an argument of an operator, with the library that it names by path."""
    if not isinstance(value, str) or _AT not in value:
        return value
    symbol, _, path = value.partition("@")
    return f"{symbol}@{at.file(path)}"
