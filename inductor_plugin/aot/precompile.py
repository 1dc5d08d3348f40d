"""Compiles kernels ahead of time for a named GPU, which this machine need not have, into one file.

model, target ─► fake lowering ─► problems ─► candidates, ranked ─► nvcc, Triton ─► cache ─► pack
                                                                             read back, checked ◄┘
"""

from __future__ import annotations

import logging
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.aot import models, standard, targets
from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.aot.lack import nothing_compiled, warnings_of
from inductor_plugin.aot.lower import Lowered, ModelAndInputs, lower_model
from inductor_plugin.aot.measure import as_node, node_of
from inductor_plugin.aot.store import store_to_write
from inductor_plugin.cache import KernelEntry, Pack, Store, open_store
from inductor_plugin.cache.transfer.archive import export_archive, import_archive
from inductor_plugin.cache.transfer.draft import draft_of
from inductor_plugin.cache.trust.keys import Signer, open_signer
from inductor_plugin.config import Config
from inductor_plugin.errors import (
    ArchiveError,
    InductorPluginError,
    KernelError,
    OptionError,
    PackError,
    TargetError,
    printable,
)
from inductor_plugin.inductor import native
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.kernels.sass import instructions
from inductor_plugin.kernels.unit import CppSource, namespace, unique_symbol
from inductor_plugin.ops.gemm_abi import load
from inductor_plugin.ops.native import source as sites
from inductor_plugin.ops.native.library import reason as library_reason
from inductor_plugin.problem.target import Target, names
from inductor_plugin.tuning.counters import COUNTERS, Stats
from inductor_plugin.version import __version__, installed_version
from inductor_plugin.worker.bench_farm.fit import NodeFacts

logger = logging.getLogger(__name__)

HERE = "here"
"""As a target: this machine's GPU."""

_TIMEOUT_S = 900.0
"""Longer than while tuning: nvcc takes 33 s for a kernel, and three times that on busy cores."""

_LACKING = "the library of call sites is not in the pack, so that Python launches CUTLASS kernels"
LIBRARY_FILE, SOURCE_FILE, CUBIN = "kernel.so", "source.cu", ".cubin"


@dataclass(frozen=True)
class Request:
    """What to compile.

    Attributes:
        target: The GPU, by name, or `HERE`.
        models: ``module:function`` of each model.
        out: The file to write.
        config: The options; ``policy`` is ``build``.
        dynamic: Mark all sizes as dynamic.
        standard: Add the products of common language models for this architecture, which must be
            the target's; empty for none.
        measure: Also measure all problems, on a node that has the target (option ``bench_farm``), into the cache.
    """

    target: str
    models: tuple[str, ...]
    out: Path
    config: Config
    dynamic: bool = False
    standard: str = ""
    measure: bool = False


@dataclass(frozen=True)
class PackedKernel:
    """One kernel of a pack.

    Attributes:
        digest: Its digest in the cache.
        name: Its readable name.
        kind: ``cutlass``, ``triton``, or ``sites`` for the library that launches the former.
        registers: Registers per thread, None if unknown.
        spills: Bytes spilled per thread, None if unknown.
        instructions: Tensor core instructions; only of CUTLASS kernels.
    """

    digest: str
    name: str
    kind: str
    registers: int | None
    spills: int | None
    instructions: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackReport:
    """The result of `precompile`.

    Attributes:
        file: The pack.
        bytes: Its size.
        pack: What is in it.
        problems: The problems, each with its candidates.
        kernels: The kernels, as read back from the file.
        warnings: What is missing, and why.
        stats: Counters of this process.
        seconds: Wall time.
    """

    file: str
    bytes: int
    pack: Pack
    problems: tuple[Lowered, ...]
    kernels: tuple[PackedKernel, ...]
    warnings: tuple[str, ...]
    stats: Stats
    seconds: float

    def count(self, kind: str) -> int:
        """Return how many kernels of a kind there are."""
        return sum(kernel.kind == kind for kernel in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        plain = asdict(self)
        plain["stats"] = self.stats.to_dict()
        plain["counts"] = {
            "cutlass": self.count("cutlass"),
            "triton": self.count("triton"),
            "spilling": sum(bool(kernel.spills) for kernel in self.kernels),
            "unknown_spills": sum(
                kernel.spills is None and kernel.kind != "sites" for kernel in self.kernels
            ),
            "instructions": Counter(
                name for kernel in self.kernels for name in kernel.instructions
            ),
        }
        return plain


def precompile(request: Request, say: Callable[[str], None] = print) -> PackReport:
    """Compile all candidates of models for a GPU, write them to a pack and check the pack.

    Args:
        request: What to compile.
        say: Called with each line of progress.

    Raises:
        OptionError: A model is not found, or no model is named; or nodes are to measure, and none are named.
        TargetError: The GPU is not known, or this torch cannot compile for it.
        WorkerError: No node has the GPU that is to be measured on.
        PackError: A model raises, nothing was compiled, or the written file is not sound.
        ArchiveError: The file cannot be written.
        CacheError: The cache cannot be written to, so that what is compiled would be lost.
    """
    started, before = time.perf_counter(), COUNTERS.snapshot()
    gpu = _gpu(request.target)
    if not request.models and not request.standard:
        raise OptionError("nothing to compile; name a model with --model, or --standard")
    if request.standard and standard.for_arch(request.standard).arch != gpu.arch:
        raise OptionError(
            f"the set for {request.standard} is not for {gpu.name}, which is {gpu.arch}; leave out one"
        )
    if not request.out.parent.is_dir():
        raise OptionError(
            f"there is no folder {request.out.parent} for {request.out.name}; make it"
        )
    signer = open_signer(request.config.signing_key)  # before minutes of compiling
    config = replace(request.config, policy="build", compile_timeout_s=_TIMEOUT_S)
    if config.cache == "off" or Path(config.cache_dir).exists():
        store_to_write(config)  # else nothing is made for a model that is not there
    node = node_of(gpu, config) if request.measure else None
    lowered = _lower(request, gpu, config, say)
    store = store_to_write(config)
    digests = sorted({digest for problem in lowered for digest in problem.kernels})
    if not digests:
        raise PackError(nothing_compiled(lowered))
    called = any(LIBRARY_FILE in _entry(store, digest).files for digest in digests)
    lost = store.unwritten
    library = native.provided(config) if called else None  # a machine without a compiler has it so
    digests += [library] if library else []
    if node is not None:  # all kernels are in the cache now
        say(printable(f"{node.host} measures"))
        _lower(request, gpu, replace(config, policy="tune"), say, node)
    pack = Pack(
        target=gpu.name,
        arch=gpu.arch,
        created=round(time.time(), 3),
        software=_software(store, digests),
        models=(*request.models, *([f"standard {request.standard}"] if request.standard else [])),
        problems=tuple(sorted({entry.problem for entry in lowered})),
        kernels=tuple(digests),
    )
    kernels = _write_pack(store, pack, request.out, signer)
    lacks = [f"{_LACKING}: {library_reason()}"] if called and library is None else []
    return PackReport(
        file=str(request.out),
        bytes=request.out.stat().st_size,
        pack=pack,
        problems=tuple(lowered),
        kernels=kernels,
        warnings=(*warnings_of(lowered, kernels), *lacks, *_lost(store, store.unwritten - lost)),
        stats=COUNTERS.snapshot().since(before),
        seconds=round(time.perf_counter() - started, 3),
    )


def _lost(store: Store, count: int) -> list[str]:
    """Return the warning about measurements that could not be written, if there are any."""
    return (
        [f"{count} measurements are lost, for {store.root} could not be written to"]
        if count
        else []
    )


def _gpu(name: str) -> Target:
    """Return the named GPU, or this machine's."""
    if name != HERE:
        return targets.named(name)
    here = target_of(torch.device("cuda")) if torch.cuda.is_available() else None
    if here is None:
        raise TargetError(
            f"target is {HERE!r}, but there is no GPU whose figures are known; name one of "
            f"{', '.join(names())}"
        )
    return here


def _write_pack(
    store: Store, pack: Pack, file: Path, signer: Signer | None
) -> tuple[PackedKernel, ...]:
    """Write a pack and return its kernels; an existing file is replaced only after the check."""
    try:
        with draft_of(file) as draft:
            export_archive(store, draft, pack=pack, signer=signer)
            return check(draft)
    except OSError as error:
        raise ArchiveError(f"cannot write {file}: {error}; name another file") from error


def check(file: Path) -> tuple[PackedKernel, ...]:
    """Return the kernels of a pack, read back into an empty cache: checksums, symbols, machine code.

    Raises:
        ArchiveError: The file is damaged.
        PackError: It holds no pack, or a kernel that cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="inductor-plugin-pack-") as folder:
        store = open_store(Path(folder) / "cache")
        imported = import_archive(store, file, trusted=True)  # it is read, not loaded
        if not imported.packs:
            raise PackError(f"{file} holds no pack; write one with `inductor-plugin precompile`")
        damaged = store.verify()
        if damaged:
            raise PackError(f"{file}: {damaged[0].path.name}: {damaged[0].reason}")
        machine_code: dict[str, dict[str, frozenset[str]] | str] = {}
        digests = {digest for pack in imported.packs for digest in pack.kernels}
        return tuple(
            _packed_kernel(_entry(store, digest), machine_code) for digest in sorted(digests)
        )


def _lower(
    request: Request,
    gpu: Target,
    config: Config,
    say: Callable[[str], None],
    node: NodeFacts | None = None,
) -> list[Lowered]:
    """Lower all models for a GPU; for that of a node, where one measures."""
    makers: list[tuple[str, Callable[[], ModelAndInputs], Config]] = [
        (spec, lambda spec=spec: models.load_sets(spec), config) for spec in request.models
    ]
    if request.standard:
        # Triton kernels are specialized for their sizes, so the standard set has none.
        general = replace(config, gemm_backends="ATEN,CUTLASS")
        makers.append(("standard", lambda: standard.products(gpu.arch), general))
    lowered: list[Lowered] = []
    with as_target(gpu) if node is None else as_node(gpu, node):
        for name, make, options in makers:
            say(printable(f"{name} for {gpu.name} ({gpu.arch})"))
            with _reported(say):
                lowered += _lower_model(name, make, options, dynamic=request.dynamic)
    return lowered


def _lower_model(
    name: str, make: Callable[[], ModelAndInputs], config: Config, *, dynamic: bool
) -> list[Lowered]:
    """Lower one model; what its own code raises becomes one line."""
    try:
        return lower_model(make, config, dynamic=dynamic)
    except InductorPluginError:
        raise
    except Exception as error:  # the model's code may raise anything
        logger.debug("model %s", name, exc_info=True)
        first = str(error).strip().partition("\n")[0]
        raise PackError(
            f"model {name!r} cannot be compiled: {type(error).__name__}: {first}; call it in Python, or "
            "set TORCH_LOGS=+inductor_plugin for the traceback"
        ) from error


@contextmanager
def _reported(say: Callable[[str], None], interval_s: float = 30.0) -> Generator[None]:
    """Say now and then how many kernels are compiled, where no progress bar shows it."""
    if sys.stderr.isatty():
        yield
        return
    started, before, done = time.perf_counter(), COUNTERS.snapshot(), threading.Event()

    def report() -> None:
        while not done.wait(interval_s):
            compiled = COUNTERS.snapshot().since(before).compiled
            say(f"{compiled} kernels compiled, {time.perf_counter() - started:.0f} s")

    thread = threading.Thread(target=report, name="inductor-plugin-precompile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _software(store: Store, digests: Sequence[str]) -> dict[str, str]:
    software = {
        "inductor-plugin": __version__,
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    for name in ("triton", "nvidia-cutlass"):
        if version := installed_version(name):
            software[name] = version
    toolchains = {_entry(store, digest).key.toolchain for digest in digests}
    nvcc = sorted(
        toolchain.split(";")[0] for toolchain in toolchains if toolchain.startswith("nvcc")
    )
    return software | {"nvcc": ", ".join(nvcc) or "none"}


def _entry(store: Store, digest: str) -> KernelEntry:
    entry = store.kernel(digest)
    if entry is None:
        raise PackError(f"kernel {digest[:12]} is gone from {store.root}; compile again")
    return entry


def _packed_kernel(
    entry: KernelEntry, machine_code: dict[str, dict[str, frozenset[str]] | str]
) -> PackedKernel:
    """Return the facts of a kernel; ``machine_code`` caches the instructions of each library by SHA-256."""
    resources = entry.resources
    if LIBRARY_FILE not in entry.files:
        return PackedKernel(
            entry.digest, entry.key.config, "triton", resources.registers, resources.spills
        )
    if entry.digest == sites.key().digest:
        return PackedKernel(entry.digest, sites.SYMBOL, "sites", None, None)
    symbol = entry.key.config.split()[0]
    source = CppSource(entry.digest, "", symbol)
    path = entry.path(LIBRARY_FILE)
    try:
        load(path, unique_symbol(source))
    except KernelError as error:
        raise PackError(f"a kernel of the pack cannot be loaded: {error}") from error
    sha256 = entry.files[LIBRARY_FILE]
    if sha256 not in machine_code:
        machine_code[sha256] = instructions(path)
    functions = machine_code[sha256]
    names: set[str] = set()
    if not isinstance(functions, str):
        matching = [name for name in functions if namespace(source) in name]
        for name in matching or functions:
            names |= functions[name]
    kind = "cutlass" if SOURCE_FILE in entry.files else "cpp"
    return PackedKernel(
        entry.digest, symbol, kind, resources.registers, resources.spills, tuple(sorted(names))
    )
