"""The library of call sites, compiled once a test process, and operators on CPU tensors behind it."""

from __future__ import annotations

import functools
import subprocess
import sysconfig
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from inductor_plugin.attention import cutlass
from inductor_plugin.kernels.unit import with_unique_name
from inductor_plugin.ops import gemm, gemm_epilogue
from inductor_plugin.ops.native import library, source

_OPERATORS = {
    "cutlass_mm.out": gemm.cutlass_mm,
    "cutlass_addmm.out": gemm.cutlass_addmm,
    "cutlass_scaled_mm.out": gemm.cutlass_scaled_mm,
    "cutlass_scaled_addmm.out": gemm.cutlass_scaled_addmm,
    "cutlass_grouped_mm.out": gemm.cutlass_grouped_mm,
    "cutlass_mm_epilogue.out": gemm_epilogue.cutlass_mm_epilogue,
    "cutlass_fmha.out": cutlass.cutlass_fmha,
    "cutlass_fmha_output.out": cutlass.cutlass_fmha_output,
    "cutlass_fmha_backward.out": cutlass.cutlass_fmha_backward,
}


@functools.cache
def compiled() -> Path:
    """Return the library's file, made by the compiler call the product makes."""
    folder = Path(tempfile.mkdtemp(prefix="call-sites-"))
    text, created = folder / "sites.cpp", folder / "sites.so"
    text.write_text(with_unique_name(source.unit(), source.text()), encoding="utf-8")
    words = {"{source}": str(text), "{output}": str(created)}
    command = source.command("g++", sysconfig.get_paths()["include"])
    subprocess.run([words.get(word, word) for word in command], check=True)
    return created


@functools.cache
def sites() -> library.Sites:
    """Return the loaded library."""
    return library.load(compiled())


@contextmanager
def on_the_host() -> Generator[None]:
    """Let operators run on CPU tensors, and call sites by the library."""
    registered: Any = torch.library.Library("inductor_plugin", "IMPL", "CPU")
    for name, function in _OPERATORS.items():
        registered.impl(name, function)
    try:
        with mock.patch.object(library, "sites", return_value=sites()):
            yield
    finally:
        registered._destroy()  # pyright: ignore[reportPrivateUsage]
