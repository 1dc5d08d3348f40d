"""The compilers Inductor uses for C++ and Triton kernels, as values for keys and compile jobs."""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor import config as inductor_config
from torch._inductor.codecache import CacheBase
from torch._inductor.cpp_builder import (
    CppBuilder,
    CppTorchDeviceOptions,
    get_compiler_version_info,
    get_cpp_compiler,
)
from torch._inductor.runtime import compile_tasks, triton_compat
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
from torch._inductor.runtime.hints import DeviceProperties

from inductor_plugin.cache import KernelKey
from inductor_plugin.config import process_environment
from inductor_plugin.worker.jobs import TritonTarget

_DEVICE_INDEX = re.compile(r"(DeviceProperties\(type='\w+', )index=\d+, ")
NO_COMPILER = "none"
"""The version of a C++ compiler that is not there."""

_SOURCE = "inductor_plugin_source.cpp"
_FOLDER = "/inductor_plugin_output"


@dataclass(frozen=True)
class CppToolchain:
    """How C++ kernels are compiled.

    Attributes:
        command: The compiler call, with ``{source}`` and ``{output}``.
        compiler: First line of the compiler's version.
        flags: Its flags without paths, which differ between equal machines.
        target: The processor it compiles for.
    """

    command: tuple[str, ...]
    compiler: str
    flags: str
    target: str

    @property
    def digest(self) -> str:
        """Digest of all but the paths."""
        text = "\0".join((self.compiler, self.flags, self.target))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def cpp_toolchain() -> CppToolchain:
    """Return how Inductor would compile a C++ kernel now (its options may be patched)."""
    isa = cpu_vec_isa.pick_vec_isa()
    options = CppTorchDeviceOptions(vec_isa=isa, device_type="cpu")
    builder = CppBuilder(name="kernel", sources=_SOURCE, BuildOption=options, output_dir=_FOLDER)
    capability = torch.backends.cpu.get_cpu_capability()
    target = f"{isa}; {capability}; {sys.platform}"
    return _toolchain(builder.get_command_line(), builder.get_target_file_path(), target)


@functools.lru_cache(maxsize=16)
def _toolchain(line: str, output: str, target: str) -> CppToolchain:
    words = line.split()
    command = tuple(w.replace(output, "{output}").replace(_SOURCE, "{source}") for w in words)
    # The source's own warnings are Inductor's, not the user's: printing them costs 0.1 s a kernel.
    quiet = (command[0], "-w", *command[1:])
    paths = ("{", "-I", "-L", "-l", "/")
    flags = " ".join(w for w in command[1:] if not w.startswith(paths))
    return CppToolchain(
        command=quiet,
        compiler=f"{compiler_version()}; torch {torch.__version__}",
        flags=flags,
        target=target,
    )


@functools.cache
def compiler_version() -> str:
    """Return the first line of the C++ compiler's version; ``none`` where there is no compiler."""
    try:
        version = get_compiler_version_info(get_cpp_compiler()).strip().splitlines()
    except (RuntimeError, OSError):
        return NO_COMPILER
    return version[0] if version else "unknown"


def software_of(device: str) -> dict[str, str]:
    """Return the software besides torch that affects timings on a device: the C++ compiler."""
    return {"cpp": compiler_version()} if device == "cpu" else {}


def triton_variables(device: torch.device) -> tuple[tuple[str, str], ...]:
    """Return the environment variables with which Triton compiles and finds a device's kernels.

    Inductor uses a separate folder for each device, and the first kernel of a process fixes it for
    the whole process; a worker that serves two devices needs it with each job.
    """
    names = ("TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH", "CUDA_HOME")
    variables = process_environment()
    pairs = {name: variables[name] for name in names if name in variables}
    pairs["TORCHINDUCTOR_CACHE_DIR"] = cache_dir()
    pairs["TRITON_CACHE_DIR"] = triton_cache_dir(device.index or 0)
    return tuple(sorted(pairs.items()))


@functools.cache
def triton_toolchain(target: TritonTarget) -> str:
    """Return the software a Triton kernel depends on: Triton, ptxas and torch.

    Computing Triton's own key takes 0.3 s; where there is a GPU, Inductor's selector has already
    computed it.
    """
    system: Any = CacheBase.get_system()
    triton = system.get("version", {}).get("triton") or triton_compat.triton_key()
    return f"triton {triton}; {_assembler(target)}; torch {torch.__version__}"


def _assembler(target: TritonTarget) -> str:
    """Return the version of the ptxas that Triton calls; it is part of Triton's key."""
    if target.backend != "cuda":
        return target.backend
    tasks: Any = compile_tasks
    tasks._set_triton_ptxas_path()  # torch 2.11 ships its own
    backend: Any = importlib.import_module("triton.backends.nvidia.compiler")
    return " ".join(str(backend.get_ptxas_version(int(target.arch))).split())


def triton_target(device: torch.device) -> TritonTarget:
    """Return the target that Inductor writes into the Triton kernels for a device."""
    properties: Any = DeviceProperties.create(torch.device(device.type, device.index or 0))
    return TritonTarget(properties.type, properties.cc, properties.warp_size or 32)


def without_device_index(source: str) -> str:
    """Return a Triton module without the device's index, which Inductor writes into it."""
    return _DEVICE_INDEX.sub(r"\1", source)


def triton_kernel_key(template: str, source: str, config: str, target: TritonTarget) -> KernelKey:
    """Return the cache key of a Triton kernel.

    Args:
        template: Name of the template or candidate.
        source: The module; what is the same kernel on another device or machine has the same text.
        config: Name of the kernel.
        target: The GPU it is compiled for.
    """
    return KernelKey(
        template=template,
        source=hashlib.sha256(source.encode()).hexdigest(),
        config=config,
        target=f"{target.backend}:{target.arch}",
        toolchain=triton_toolchain(target),
        flags="",
    )


logger = logging.getLogger(__name__)


_HEADER = "torch/csrc/inductor/cpp_prefix.h"


_HEADER_LOCK = [threading.Lock()]


def _after_fork() -> None:
    """Replace the lock in a child: a thread of the parent that compiles the header is not there."""
    _HEADER_LOCK[0] = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def with_header(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a compiler call that includes the precompiled header first, if there is one."""
    header = precompiled()
    return (*command[:1], "-include", header, *command[1:]) if header else command


def precompiled() -> str:
    """Return the path of the header, compiling it if necessary; empty if Inductor uses none."""
    with _HEADER_LOCK[0]:  # Inductor's own cache would let two threads compile it
        if not inductor_config.cpp_cache_precompile_headers:
            return ""
        return _precompiled(str(cpu_vec_isa.pick_vec_isa()))


@functools.lru_cache(maxsize=8)
def _precompiled(_isa: str) -> str:
    try:
        cache: Any = codecache
        arguments: dict[str, Any] = {
            **cache.CppPythonBindingsCodeCache.cpp_compile_command_flags,
            "device_type": "cpu",
            "extra_flags": (),
            "use_relative_path": False,
            "vec_isa": cpu_vec_isa.pick_vec_isa(),
        }
        options = CppTorchDeviceOptions(compile_only=False, min_optimize=False, **arguments)
        line = CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()
        return str(cache._precompile_header(_HEADER, line, min_optimize=False, **arguments))
    except Exception:  # the border to Inductor's private function: without it compiling is slower
        logger.debug("no precompiled header for C++ candidates", exc_info=True)
        return ""
