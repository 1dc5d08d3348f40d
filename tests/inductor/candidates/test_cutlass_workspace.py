"""A kernel's workspace is allocated by the generated code where its size is known while lowering."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.kernels.unit import CppSource, unique_symbol
from inductor_plugin.ops import gemm
from inductor_plugin.ops.launch import find_kernel
from inductor_plugin.worker.jobs import Compiled, CppCompileJob
from tests.support.cutlass.forced import BACKENDS, calls, opened
from tests.support.lowering import Arg, Lab
from tests.support.repository import REPOSITORY

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

HEADER = REPOSITORY / "templates" / "cutlass" / "source" / "interface.h"
STANDS_IN = """
#include <cstdint>
#include <initializer_list>
{header}
// Wants a byte for each number it is called with that a size, a stride or the device decides.
extern "C" int32_t {symbol}(int32_t mode, GemmCall* call, uint64_t* bytes, void*) {{
  if (mode == kWorkspaceBytes)
    *bytes = {factor} * (call->m + call->n + call->k + call->batch + call->lead_a + call->lead_b
             + call->lead_d + call->batch_b + call->split_k + call->sm_count);
  return kOk;
}}
"""
K = 16 * 1024


class Built(Lab):
    """Gives stream-K kernels libraries that can be loaded; the others' are what they were."""

    factor = 1

    def _library(self, job: CppCompileJob, source: CppSource) -> Compiled:
        compiled = super()._library(job, source)
        if "stream_k" in source.symbol or "grouped" in source.symbol:
            text = STANDS_IN.format(
                header=HEADER.read_text(), symbol=unique_symbol(source), factor=self.factor
            )
            command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(compiled.library)]
            subprocess.run(command, input=text.encode(), check=True)
        return compiled


class NeedsNothing(Built):
    factor = 0


def mm(a: Any, b: Any) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def allocations(code: str) -> list[tuple[str, int]]:
    """Return the workspaces that are allocated in generated code: name and bytes."""
    matches = re.findall(
        r"^ *(workspace_\d+) = empty_strided_cuda\(\((\d+), \), \(1, \), torch.uint8\)", code, re.M
    )
    return [(name, int(size)) for name, size in matches]


def test_generated_code_allocates_and_frees_it(cache_dir: Path, inductor_cache: Path) -> None:
    with opened("split", cache_dir, Built) as lab:
        code = lab.lower(mm, Arg((128, K)), Arg((K, 256)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    ((name, size),) = allocations(code)
    parts = call.arguments[-1]
    assert isinstance(parts, int)
    assert size == 128 + 256 + K + 1 + K + 256 + 256 + parts + 132
    assert call.named == {"workspace": name, "out": "buf0"}
    lines = [line.strip() for line in code.splitlines()]
    assert lines.index(f"del {name}") > next(
        i for i, line in enumerate(lines) if line.startswith("torch.ops.inductor_plugin.")
    )


def test_memory_that_is_free_becomes_the_workspace(cache_dir: Path, inductor_cache: Path) -> None:
    def two(a: Any, b: Any, c: Any) -> tuple[torch.Tensor, ...]:
        return torch.mm(a, b), torch.mm(c, b)

    with opened("split", cache_dir, Built) as lab:
        code = lab.lower(
            two, *(Arg((128, K)), Arg((K, 256)), Arg((128, K))), gemm_backends=BACKENDS
        )
    first, second = calls(code)
    assert len(allocations(code)) == 1
    assert f"{second.named['workspace']} = {first.named['workspace']}" in code


def test_a_group_needs_what_its_strides_say(cache_dir: Path, inductor_cache: Path) -> None:
    def experts(a: Any, b: Any, ends: Any) -> tuple[torch.Tensor]:
        untyped: Any = torch
        return (untyped._grouped_mm(a, b.transpose(1, 2), ends),)

    arguments = (Arg((4096, 512)), Arg((8, 1024, 512)), Arg((8,), torch.int32))
    with opened("cutlass", cache_dir, Built) as lab:
        code = lab.lower(experts, *arguments, gemm_backends=BACKENDS)
    ((name, size),) = allocations(code)
    (call,) = calls(code)
    assert call.named == {"workspace": name, "out": "buf0"}
    assert size == 4096 + 1024 + 512 + 8 + 512 + 512 + 1024 + 1024 * 512 + 1 + 132


def test_a_kernel_that_needs_none_is_given_none(cache_dir: Path, inductor_cache: Path) -> None:
    with opened("split", cache_dir, NeedsNothing) as lab:
        code = lab.lower(mm, Arg((128, K)), Arg((K, 256)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert (call.named, allocations(code)) == ({"out": "buf0"}, [])


def test_a_size_known_at_run_time_is_left_to_the_operator(
    cache_dir: Path, inductor_cache: Path
) -> None:
    with opened("stream_k", cache_dir, Built) as lab:
        code = lab.lower_dynamic(torch.mm, Arg((128, K)), Arg((K, 256)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert "stream_k" in call.symbol
    assert (call.named, allocations(code)) == ({"out": "buf0"}, [])


def test_a_library_that_cannot_be_loaded_is_left_to_the_operator(
    cache_dir: Path, inductor_cache: Path
) -> None:
    with opened("split", cache_dir) as lab:
        code = lab.lower(mm, Arg((128, K)), Arg((K, 256)), gemm_backends=BACKENDS)
    (call,) = calls(code)
    with pytest.warns(RuntimeWarning, match="cannot load .* the library product is computed"):
        assert find_kernel(gemm.PRODUCTS, call.kernel) is None
    assert (call.named, allocations(code)) == ({"out": "buf0"}, [])
