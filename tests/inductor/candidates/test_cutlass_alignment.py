"""Strides, offsets and inputs of which too little is known while lowering get kernels that take any."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.problem import Problem
from tests.support import gpu
from tests.support.cutlass.forced import BACKENDS, calls, opened
from tests.support.lowering import Arg, Lab, library_first

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

B = Arg((128, 256))


@dataclass(frozen=True)
class Shifted(Arg):
    """An input that begins some elements into its memory, as ``big[1:]`` does."""

    by: int = 1

    def tensor(self) -> torch.Tensor:
        memory = torch.empty(math.prod(self.size) + self.by, dtype=self.dtype, device=self.device)
        return memory[self.by :].view(self.size)


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def wide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply the left of 512 rows of a length known at run time."""
    return torch.mm(a.reshape(512, -1)[:, :128], b)


def wide_by_eight(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply the left of 64 rows of eight times a length known at run time."""
    return torch.mm(a.reshape(64, -1)[:, :128], b)


def below(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply what begins one row into its memory, a length known at run time."""
    rows = a.reshape(-1)[a.shape[0] :]
    return torch.mm(rows[: 256 * 128].view(256, 128), b)


def alignment(symbol: str) -> tuple[int, ...]:
    """Return the alignments of A, B and D in a kernel's name; of all three where they are alike."""
    match = re.search(r"_align([\dx]+)", symbol)
    assert match is not None
    return tuple(map(int, match[1].split("x")))


@pytest.mark.parametrize(
    ("function", "divisors", "symbolic"),
    [(wide, (1, 1, 16), (0,)), (below, (16, 1, 1), ())],
    ids=["stride", "offset"],
)
def test_a_step_known_at_run_time_has_no_alignment(
    function: Any,
    divisors: tuple[int, ...],
    symbolic: tuple[int, ...],
    cache_dir: Path,
    inductor_cache: Path,
) -> None:
    with opened("cutlass", cache_dir) as lab:
        code = lab.lower_dynamic(function, Arg((4096, 512)), B, gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert alignment(call.symbol) == (1, 8, 8)
    assert "sm80" in call.symbol  # TMA cannot read it
    (task,) = lab.tasks
    assert [operand.divisors for operand in task.problem.inputs] == [divisors, ()]
    assert [operand.symbolic for operand in task.problem.inputs] == [symbolic, ()]


def test_what_is_proven_of_a_step_counts(cache_dir: Path, inductor_cache: Path) -> None:
    with opened("cutlass", cache_dir) as lab:
        code = lab.lower_dynamic(wide_by_eight, Arg((4096, 512)), B, gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert alignment(call.symbol) == (8,)
    (task,) = lab.tasks
    assert [operand.divisors for operand in task.problem.inputs] == [(8, 1, 16), ()]


@pytest.mark.parametrize("by", [1, 4])
def test_an_input_that_is_not_aligned_is_taken_as_it_comes(
    by: int, cache_dir: Path, inductor_cache: Path
) -> None:
    with opened("cutlass", cache_dir) as lab:
        code = lab.lower(mm, Shifted((256, 128), by=by), B, gemm_backends=BACKENDS)
    (call,) = calls(code)
    # Nothing says that the next call's input begins at the same place.
    assert alignment(call.symbol) == (1, 8, 8)
    (task,) = lab.tasks
    assert [operand.divisors for operand in task.problem.inputs] == [(16, 1, 1), ()]


def test_a_view_of_an_input_that_is_not_aligned_is_not_either(
    cache_dir: Path, inductor_cache: Path
) -> None:
    def turned(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.mm(a[:, 64:192], b.t()),)

    arguments = (Shifted((256, 256)), Shifted((256, 128)))
    with opened("cutlass", cache_dir) as lab:
        (call,) = calls(lab.lower(turned, *arguments, gemm_backends=BACKENDS))
    assert alignment(call.symbol) == (1, 1, 8)[: len(alignment(call.symbol))]


def test_an_aligned_input_says_nothing_more_than_before(
    cache_dir: Path, inductor_cache: Path
) -> None:
    with opened("cutlass", cache_dir) as lab:
        code = lab.lower(mm, Shifted((256, 128), by=8), B, gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert alignment(call.symbol) == (8,)
    (task,) = lab.tasks
    assert [operand.divisors for operand in task.problem.inputs] == [(), ()]


def _rejected_by_tma(lab: Lab) -> str:
    return str(lab.record()["rejected"]["triton_persistent_tma"])


def test_descriptors_are_not_made_of_either(cache_dir: Path, inductor_cache: Path) -> None:
    large = Arg((1024, 1024))
    with gpu.installed(), Lab(library_first, cache_dir / "inputs").open() as lab:
        lab.lower(mm, Shifted((1024, 1024)), large)
        assert "A's offset is some multiple of 1 elements" in _rejected_by_tma(lab)
    with gpu.installed(), Lab(library_first, cache_dir / "strides").open() as lab:
        lab.lower_dynamic(wide, Arg((4096, 512)), B)
        assert "A's stride is some multiple of 1 elements" in _rejected_by_tma(lab)


def test_a_problem_of_known_steps_has_the_key_it_had(cache_dir: Path, inductor_cache: Path) -> None:
    with opened("cutlass", cache_dir) as lab:
        lab.lower_dynamic(torch.mm, Arg((256, 128)), B, gemm_backends=BACKENDS)
    (task,) = lab.tasks
    problem: Problem = task.problem
    assert problem.dynamic
    assert all("divisors" not in operand for operand in problem.fields()["inputs"])
