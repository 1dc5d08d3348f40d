"""A template's CUDA text as a build for nvcc and a call of the operator that runs what is built."""

from __future__ import annotations

import functools
import hashlib

import torch

from inductor_plugin.cache import KernelKey
from inductor_plugin.compile_child import unique_symbol
from inductor_plugin.config import process_environment
from inductor_plugin.cuda_toolkit import NoToolkit, Toolkit, command, find
from inductor_plugin.jobs import CppSource, OpKernel
from inductor_plugin.task import CppBuild
from inductor_plugin.template import CudaSource, Failed

NVCC_BYTES = 6 << 30
"""Memory of one nvcc: 3.3 GB for one CUTLASS kernel, 5.8 GB for eight in a unit."""


def build_of(source: CudaSource, template: str, nvcc: str) -> tuple[CppBuild, OpKernel] | Failed:
    """Return how a kernel is built and how it is called, or why it cannot be built here.

    Args:
        source: The kernel.
        template: Name of the template it comes from.
        nvcc: The option of this name.
    """
    toolkit = _toolkit(nvcc)
    if isinstance(toolkit, NoToolkit):
        return Failed(toolkit.reason)
    key = KernelKey(
        template=template,
        source=hashlib.sha256(source.text.encode()).hexdigest(),
        config=source.symbol,
        target=source.arch,
        toolchain=f"nvcc {toolkit.version}; CUTLASS {toolkit.cutlass_version}",
        flags=toolkit.key_text(source.arch),
    )
    unit = CppSource(key.digest, source.text, source.symbol)
    build = CppBuild(key, unit, command(toolkit, source.arch), "cuda", NVCC_BYTES)
    name = f"{unique_symbol(unit)}@{key.digest}"
    return build, OpKernel(source.op, (name, *source.arguments), source.imports)


def at(kernel: OpKernel, library: str, symbol: str) -> OpKernel:
    """Return the call of a kernel whose library is named by its path, as workers call it."""
    return OpKernel(kernel.op, (f"{symbol}@{library}", *kernel.args[1:]), kernel.imports)


@functools.lru_cache(maxsize=8)
def _toolkit(nvcc: str) -> Toolkit | NoToolkit:
    # A library of another CUDA would not find torch's runtime when it is loaded.
    major = int((torch.version.cuda or "0").partition(".")[0])
    return find(nvcc, process_environment(), major)
