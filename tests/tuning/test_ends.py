"""A candidate's call at the ends of a size class."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    OpKernel,
    RequestKernel,
    TensorSpec,
)
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.tuning.ends import SizeEnd, at_end, with_ends
from inductor_plugin.worker.jobs import BenchCandidate, Sampling, ScreenJob

CHECK = NumberCheck(Tolerance(1e-5, 1e-6))
A, A_AT_33 = (
    TensorSpec((rows, 96), (96, 1), "float32", "cpu", seed=1, storage=rows * 96)
    for rows in (64, 33)
)
B = TensorSpec((96, 48), (48, 1), "float32", "cpu", seed=2)
PACKED = replace(B, file="/b")
OUT, OUT_AT_33 = (TensorSpec((rows, 48), (48, 1), "float32", "cpu") for rows in (64, 33))
END = SizeEnd(((64, 33),), ((A, A_AT_33), (B, B)), (OUT, OUT_AT_33), CHECK)
SAMPLING = Sampling(1, 1, 0.0, 1.0, cold_cache=False)


def candidate(kernel: Kernel, *inputs: TensorSpec, name: str = "mm") -> BenchCandidate:
    return BenchCandidate(name, kernel, inputs or (A, B), OUT, 1.0)


@pytest.mark.parametrize(
    ("kernel", "there"),
    [
        (ExternKernel("mm"), ExternKernel("mm")),
        (OpKernel("ns::op"), OpKernel("ns::op")),
        (CppKernel("f", "lib", (64, 64)), CppKernel("f", "lib", (33, 33))),
    ],
)
def test_operands_output_and_size_arguments_are_those_of_the_end(
    kernel: Kernel, there: Kernel
) -> None:
    moved = at_end(candidate(kernel, A, PACKED), END)
    assert moved == BenchCandidate("mm", there, (A_AT_33, PACKED), OUT_AT_33, 1.0)


@pytest.mark.parametrize(
    "unknown",
    [
        candidate(RequestKernel(b"")),
        candidate(CppKernel("f", "lib", (65,))),
        candidate(ExternKernel("_mkl_linear", (("batch_size", 64),))),
        candidate(ExternKernel("mm"), A, replace(B, seed=7)),
        replace(candidate(ExternKernel("mm")), output=B),
    ],
    ids=["a grid", "another size", "a size among the arguments", "an operand", "an output"],
)
def test_there_is_no_call_where_an_argument_of_it_is_not_known(unknown: BenchCandidate) -> None:
    assert at_end(unknown, END) is None


def test_a_screening_holds_the_library_kernel_and_the_candidate_at_each_end() -> None:
    library, mine = candidate(ExternKernel("mm")), candidate(OpKernel("ns::op"), name="mine")
    job = ScreenJob("digest", library, mine, SAMPLING, CHECK)
    (end,) = with_ends(job, (END,)).ends
    assert end.problem_id == "33 instead of 64"
    assert (end.library, end.candidate) == (at_end(library, END), at_end(mine, END))
    assert end.check == CHECK


def test_the_library_kernel_and_an_unchecked_candidate_are_not_run_at_the_ends() -> None:
    library, mine = candidate(ExternKernel("mm")), candidate(OpKernel("ns::op"), name="mine")
    for job in (
        ScreenJob("digest", library, library, SAMPLING, CHECK),
        ScreenJob("digest", None, mine, SAMPLING, CHECK),
        ScreenJob("digest", library, mine, SAMPLING, None),
    ):
        assert with_ends(job, (END,)) == job
