"""Grouped products: offered, measured with real ends of groups, chosen, called, or refused."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.worker.jobs import ScreenJob
from tests.support.cutlass.forced import BACKENDS, calls, fastest, opened
from tests.support.lowering import Arg, Lab

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ATEN: Any = torch
M, N, K, GROUPS = 4000, 1024, 512, 8
A = Arg((M, K))
B_T = Arg((GROUPS, N, K))
OFFSETS = Arg((GROUPS,), torch.int32)


class Reading(Lab):
    """Reads what the worker would be given, while it is there."""

    ends: list[list[int]]

    def screen(self, job: ScreenJob) -> Any:
        path = job.candidate.inputs[2].file
        assert path is not None
        self.ends = [*getattr(self, "ends", []), array("i", Path(path).read_bytes()).tolist()]
        return super().screen(job)


def experts(a: Any, b: Any, ends: Any) -> tuple[torch.Tensor]:
    return (ATEN._grouped_mm(a, b.transpose(1, 2), ends),)


def test_a_mixture_of_experts_calls_a_grouped_kernel(cache_dir: Path, inductor_cache: Path) -> None:
    with opened("cutlass", cache_dir) as lab:
        (call,) = calls(lab.lower(experts, A, B_T, OFFSETS, gemm_backends=BACKENDS))
        offered = [entry for entry in lab.entries("template") if entry.name.startswith("cutlass::")]
    assert call.op == "cutlass_grouped_mm.out"
    turned = f"reinterpret_tensor(b_1, ({GROUPS}, {K}, {N}), ({N * K}, 1, {K}), 0)"
    assert call.operands == ("a_1", turned, "ends_1")
    assert call.arguments == ("tn", 1, 0, 1)
    assert call.named == {"out": "buf0"}
    assert "_bf16_bf16_f32_bf16_tn_align8_grouped" in call.symbol
    assert 4 <= len(offered) <= 16
    assert all(offer.name.endswith("_grouped") for offer in offered)


def test_candidates_are_measured_with_ends_that_lie_in_a(
    cache_dir: Path, inductor_cache: Path
) -> None:
    with opened("cutlass", cache_dir, Reading) as lab:
        lab.lower(experts, A, B_T, OFFSETS, gemm_backends="ATEN,TRITON,CUTLASS")
    kinds = {type(job.candidate.kernel).__name__ for job in lab.screens}
    assert kinds >= {"ExternKernel", "OpKernel"}
    assert isinstance(lab, Reading)
    assert len(lab.ends) == len(lab.screens)
    for ends in lab.ends:
        assert ends == sorted(ends)
        assert (len(ends), ends[-1]) == (GROUPS, M)
        assert ends[0] > 0
    tensors = [job.candidate.inputs[2] for job in lab.screens]
    assert {(tensor.device, tensor.dtype, tensor.size) for tensor in tensors} == {
        ("cuda:0", "int32", (8,))
    }


def test_rows_known_at_run_time_keep_the_kernel(cache_dir: Path, inductor_cache: Path) -> None:
    def called(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return ATEN._grouped_mm(a, b.transpose(1, 2), ends)

    with opened("cutlass", cache_dir) as lab:
        code = lab.lower_dynamic(called, A, B_T, OFFSETS, gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert call.op == "cutlass_grouped_mm.out"


Case = tuple[Callable[..., Any], tuple[Arg, ...], str]

REFUSED: dict[str, Case] = {
    "groups_of_k": (
        lambda a, b, ends: (ATEN._grouped_mm(a.t(), b, ends),),
        (Arg((M, K)), Arg((M, N)), OFFSETS),
        "groups must divide the rows of A alone",
    ),
    "groups_of_columns": (
        lambda a, b, ends: (ATEN._grouped_mm(a, b.t(), ends),),
        (Arg((GROUPS, 128, K)), Arg((N, K)), OFFSETS),
        "groups must divide the rows of A alone",
    ),
    "one_size_for_all": (
        lambda a, b: (ATEN._grouped_mm(a, b.transpose(1, 2)),),
        (Arg((GROUPS, 128, K)), B_T),
        "this one has 2 operands",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_form_is_refused_with_its_reason(
    case: str, cache_dir: Path, inductor_cache: Path
) -> None:
    function, arguments, reason = REFUSED[case]
    with opened("cutlass", cache_dir) as lab:
        code = lab.lower(function, *arguments, gemm_backends="ATEN,TRITON,CUTLASS")
        assert calls(code) == []
        assert reason in lab.record()["rejected"]["cutlass"]


def test_another_device_has_no_grouped_kernel(cache_dir: Path, inductor_cache: Path) -> None:
    with as_target("A100"), Lab(fastest("cutlass"), cache_dir).open() as lab:
        code = lab.lower(experts, A, B_T, OFFSETS, gemm_backends="ATEN,TRITON,CUTLASS")
    assert calls(code) == []
    assert not [entry for entry in lab.entries("template") if entry.name.startswith("cutlass::")]
