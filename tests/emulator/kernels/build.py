"""The project's CUTLASS kernels as libraries that have PTX in place of machine code.

Source, compiler call and C interface are the project's own; three things differ: the code is for ``compute_X``, it is not
compressed, and the library is linked with the emulated CUDA runtime. So ptxas does not run, and a kernel takes 12 to 100 s
and up to 3.6 GB to compile. Libraries are kept in a folder by a digest of all that they depend on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource, unique_symbol
from inductor_plugin.templates.cutlass import source as cutlass_source
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass_attention import source as attention_source
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.jobs import CppCompileJob, Event
from tests.emulator.runtime.runtime import SONAME
from tests.support.repository import REPOSITORY

CACHE = REPOSITORY / "build" / "emulator"
"""Where libraries are kept; git ignores it, and `make clean` removes it."""
ALONE = CACHE / "alone"
"""Where those are kept that were compiled alone: in a unit, nvcc makes other instructions of some functions (`fill_groups`)."""

_LIMIT_S = 900
_PTX_FLAGS = ("-Xfatbin=-compress=false", "-lineinfo")
_REVISION = "1"  # of this file, where it changes what is compiled


@dataclass(frozen=True)
class Library:
    """A built kernel: its file, and the name of its C function."""

    path: Path
    symbol: str


def text_of(config: GemmConfig | FmhaConfig) -> str:
    """Return the project's source of a kernel."""
    if isinstance(config, FmhaConfig):
        text = attention_source.source(config)
        assert isinstance(text, str), text
        return text
    return cutlass_source.source(config)


def arch_of(config: GemmConfig | FmhaConfig) -> str:
    """Return the architecture a kernel is for."""
    return "sm_90a" if isinstance(config, FmhaConfig) else config.arch


def command(toolkit: Toolkit, arch: str, cudart: str) -> tuple[str, ...]:
    """Return the compiler's command line for PTX alone, linked with an emulated runtime."""
    number = arch.removeprefix("sm_")
    words = nvcc.command(replace(toolkit, cudart=cudart), arch)
    machine, ptx = f"code=sm_{number}", f"code=compute_{number}"
    assert any(machine in word for word in words), words
    return (*(word.replace(machine, ptx) for word in words), *_PTX_FLAGS)


def library(config: GemmConfig | FmhaConfig, cudart: str, folder: Path = CACHE) -> Library:
    """Return the library of a kernel, compiled unless it is there; skips the test where there is no nvcc."""
    (built,) = libraries([config], cudart, folder)
    return built


def libraries(
    configs: Sequence[GemmConfig | FmhaConfig], cudart: str, folder: Path = CACHE
) -> list[Library]:
    """Return the libraries of kernels; those that are not there are compiled together, each architecture's as one unit.

    A kernel takes half the time in a unit of eight that it takes alone: CUTLASS's headers are read once.
    """
    nvcc_place = nvcc.find("", dict(os.environ))
    if not isinstance(nvcc_place, Toolkit):
        pytest.skip(nvcc_place.reason)
    toolkit = nvcc_place
    built = [_place(config, toolkit, folder) for config in configs]
    missing: dict[str, dict[Path, CppSource]] = {}
    for config, place in zip(configs, built, strict=True):
        if not place.path.exists():
            arch = arch_of(config)
            if toolkit.release < (12, 8) and arch.startswith("sm_10"):
                pytest.skip(f"{arch} needs CUDA 12.8, this is {toolkit.version}")
            missing.setdefault(arch, {})[place.path] = _source(config, toolkit)
    for arch, sources in missing.items():
        _compile(sources, command(toolkit, arch, cudart), folder)
    return built


def is_built(config: GemmConfig | FmhaConfig, folder: Path = CACHE) -> bool:
    """Return whether a kernel's library is there."""
    toolkit = nvcc.find("", dict(os.environ))
    return isinstance(toolkit, Toolkit) and _place(config, toolkit, folder).path.exists()


def _source(config: GemmConfig | FmhaConfig, toolkit: Toolkit) -> CppSource:
    text = text_of(config)
    facts = (text, toolkit.key_text(arch_of(config)), *_PTX_FLAGS, SONAME, _REVISION)
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
    return CppSource(digest, text, config.name)


def _place(config: GemmConfig | FmhaConfig, toolkit: Toolkit, folder: Path) -> Library:
    source = _source(config, toolkit)
    return Library(folder / f"{config.name}-{source.key}.so", unique_symbol(source))


def _compile(sources: dict[Path, CppSource], words: tuple[str, ...], folder: Path) -> None:
    """Compile kernels as one unit, and put its library where each of them is looked for."""
    keys = "".join(source.key for source in sources.values())
    workdir = folder / f"{hashlib.sha256(keys.encode()).hexdigest()[:32]}.{os.getpid()}"
    job = CppCompileJob(tuple(sources.values()), words, str(workdir), _LIMIT_S)
    for path, outcome in zip(sources, child_compile.run(job, _ignore), strict=True):
        assert outcome.status == "ok", outcome.reason
        assert outcome.library is not None
        unfinished = path.with_suffix(f".{os.getpid()}")
        os.link(outcome.library, unfinished)
        unfinished.replace(path)
    shutil.rmtree(workdir)


def _ignore(event: Event) -> None:
    del event
