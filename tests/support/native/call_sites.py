"""The library of call sites, compiled once a test process, and operators on CPU tensors behind it."""

from __future__ import annotations

import functools
import math
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
from inductor_plugin.problem.epilogue import Access, Epilogue, Pattern, Step
from inductor_plugin.problem.epilogue_text import encode

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


def epilogue(size: tuple[int, ...], *reads: Pattern) -> str:
    """Return the text of an epilogue of float32 that adds what it reads, and writes the first sum as well."""
    steps = [Step("product")]
    for place in range(len(reads)):
        before = len(steps) - (2 if place == 1 else 1)
        steps += [Step("load", (), place), Step("add", (before, len(steps)))]
        if place == 0:
            steps.append(Step("store", (2,), 0))
    steps.append(Step("store", (len(steps) - (2 if len(reads) == 1 else 1),), 1))
    written = Access("full", "float32", math.prod(size))
    accesses = tuple(Access(kind, "float32", 1) for kind in reads)
    return encode(Epilogue(size, "float32", tuple(steps), accesses, (written, written)))


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
