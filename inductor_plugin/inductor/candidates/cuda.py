"""A template's CUDA source as an nvcc build and a call of the operator that runs the built kernel.

A kernel of this source and this compiler is taken from the cache if it is there; otherwise a kernel
from a pack (without nvcc: built by any compiler); otherwise it is built.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import platform
import threading

import torch

from inductor_plugin.cache import KernelKey, Store
from inductor_plugin.config import Config, process_environment
from inductor_plugin.config.backends import backends_of
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.kernels.nvcc import (
    INSTALL_CUTLASS,
    NoToolkit,
    Toolkit,
    command,
    find,
    package_folders,
)
from inductor_plugin.kernels.unit import CppSource, unique_symbol
from inductor_plugin.ops import imports_of
from inductor_plugin.template import CudaSource, Failed
from inductor_plugin.templates.cutlass.source import why_not_generated
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.tuning.task import CppBuild

logger = logging.getLogger(__name__)

_WARNED: set[str] = set()
_GUARD = threading.Lock()

NVCC_BYTES = 6 << 30
"""Memory of one nvcc: 3.3 GB for one CUTLASS kernel, 5.8 GB for eight in a unit."""


def build_of(
    source: CudaSource, template: str, config: Config
) -> tuple[CppBuild, OpKernel] | Failed:
    """Return the build and the call of a kernel, or why it is not available here.

    Args:
        source: The kernel.
        template: Name of the template it comes from.
        config: The options; ``nvcc`` and the cache count.
    """
    store = RUNTIME.store(config)
    toolkit = find_toolkit(config.nvcc)
    local = None
    if source.text and isinstance(toolkit, Toolkit):
        local = _local_build(source, template, toolkit)
        packed = store.packed()
        if not packed or store.kernel(local.key.digest) is not None:
            return local, _call_of(source, local)
        foreign = _foreign_build(source, template, store, packed)
    else:
        foreign = _foreign_build(source, template, store, None)
    build = foreign or local
    if build is None:
        reason = toolkit.reason if isinstance(toolkit, NoToolkit) else f"no text: {INSTALL_CUTLASS}"
        return Failed(f"{reason}; and no pack has {source.symbol}")
    return build, _call_of(source, build)


def at(kernel: OpKernel, library: str, symbol: str) -> OpKernel:
    """Return the call of a kernel with its library named by path, as workers call it."""
    return OpKernel(kernel.op, (f"{symbol}@{library}", *kernel.args[1:]), kernel.imports)


@functools.lru_cache(maxsize=8)
def find_toolkit(nvcc: str) -> Toolkit | NoToolkit:
    """Return a compiler whose kernels this torch can load, or why there is none."""
    return find(nvcc, process_environment(), cuda_major())


def cuda_major() -> int:
    """Return the major version of torch's CUDA; a library built for another one lacks its runtime."""
    return int((torch.version.cuda or "0").partition(".")[0])


def machine() -> str:
    """Return the processor architecture of a library's host functions: ``x86_64``, ``aarch64``."""
    return platform.machine()


def _local_build(source: CudaSource, template: str, toolkit: Toolkit) -> CppBuild:
    """Return the build of a source by this machine's compiler."""
    key = KernelKey(
        template=template,
        source=hashlib.sha256(source.text.encode()).hexdigest(),
        config=_config_text(source),
        target=source.arch,
        toolchain=f"nvcc {toolkit.version}; CUTLASS {toolkit.cutlass_version}; {machine()}",
        flags=toolkit.key_text(source.arch),
    )
    unit = CppSource(key.digest, source.text, source.symbol)
    return CppBuild(key, unit, command(toolkit, source.arch), "cuda", NVCC_BYTES)


def _foreign_build(
    source: CudaSource, template: str, store: Store, among: frozenset[str] | None
) -> CppBuild | None:
    """Return a cached kernel built by another compiler, None if there is none.

    Args:
        source: The kernel; if it has a text, only a kernel of the same text is returned.
        template: Name of the template it comes from.
        store: The cache.
        among: Digests to choose from; None for all.
    """
    text = hashlib.sha256(source.text.encode()).hexdigest() if source.text else ""
    for entry in store.kernels_like(template, _config_text(source), source.arch):
        key = entry.key
        if (
            (among is None or entry.digest in among)
            and text in ("", key.source)
            and key.toolchain.startswith(f"nvcc {cuda_major()}.")
            and key.toolchain.endswith(f"; {machine()}")
            and store.kernel(entry.digest) is not None
        ):
            return CppBuild(key, CppSource(entry.digest, "", source.symbol), (), "cuda", NVCC_BYTES)
    return None


def _config_text(source: CudaSource) -> str:
    return " ".join(filter(None, (source.symbol, source.interface)))


def _call_of(source: CudaSource, build: CppBuild) -> OpKernel:
    name = f"{unique_symbol(build.source)}@{build.key.digest}"
    return OpKernel(source.op, (name, *source.arguments), imports_of(source.op, source.imports))


def why_not_built(nvcc: str) -> str | None:
    """Return why no CUTLASS kernel can be built here and what to install, None if they can.

    Args:
        nvcc: The option of this name.
    """
    toolkit = find_toolkit(nvcc)
    return why_not_generated() or (toolkit.reason if isinstance(toolkit, NoToolkit) else None)


def warn_without_cutlass(config: Config, *, some: bool = False) -> None:
    """Warn why there are no CUTLASS kernels, if the user wants them; once per process and reason.

    They are wanted if ``gemm_backends`` names CUTLASS or nvidia-cutlass is installed. Otherwise only
    `inductor-plugin doctor` shows the reason.

    Args:
        config: The options.
        some: True if some kernels are in a pack, and others could not be built.
    """
    is_listed = "CUTLASS" in backends_of(config.gemm_backends)
    is_wanted = is_listed or package_folders("cutlass_library")
    reason = why_not_built(config.nvcc) if is_wanted else None
    if reason is None:
        return
    with _GUARD:
        is_new = reason not in _WARNED
        _WARNED.add(reason)
    if is_new:
        what = "the CUTLASS kernels that no pack has" if some else "CUTLASS kernels"
        logger.warning("inductor-plugin: the compile goes on without %s: %s", what, reason)
