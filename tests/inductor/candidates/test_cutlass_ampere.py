"""CUTLASS kernels chosen and called on GPUs that run the 2.x kernels: A100 and L40S."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.tuning.task import CppBuild
from tests.support.cutlass.forced import BACKENDS, calls, fastest
from tests.support.lowering import Arg, Lab

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

M, N, K = 256, 512, 128
A, B = Arg((M, K)), Arg((K, N))
ARCHES = {"A100": "sm_80", "L40S": "sm_89"}
CASES: dict[str, tuple[Callable[..., Any], tuple[Arg, ...], str, tuple[Any, ...], str]] = {
    "mm": (
        lambda a, b: (torch.mm(a, b),),
        (A, B),
        "cutlass_mm.out",
        ("tt", 1, 0, 1),
        "_tt_align8_",
    ),
    "mm_odd": (
        lambda a, b: (torch.mm(a, b.t()),),
        (Arg((M, 127)), Arg((N, 127))),
        "cutlass_mm.out",
        ("tn", 1, 0, 1),
        "_tn_align1_",
    ),
    "addmm_row": (
        lambda c, a, b: (torch.addmm(c, a, b, alpha=0.5, beta=2),),
        (Arg((N,)), A, B),
        "cutlass_addmm.out",
        ("tt", 1, 0, 1, "row", 0.5, 2.0),
        "_tt_align8_bias_row_bf16_",
    ),
    "addmm_full": (
        lambda c, a, b: (torch.addmm(c, a, b, beta=-1),),
        (Arg((M, N), stride=(N + 4, 1)), A, B),
        "cutlass_addmm.out",
        ("tt", 1, 0, 1, "full", 1.0, -1.0),
        # D is written no wider than C can be read.
        "_tt_align8x8x4_bias_full_bf16_aligned4_",
    ),
    "bmm": (
        lambda a, b: (torch.bmm(a, b.transpose(1, 2)),),
        (Arg((4, M, K)), Arg((4, N, K))),
        "cutlass_mm.out",
        ("tn", 1, 0, 1),
        "_tn_align8_",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ARCHES)
def test_a_kernel_of_the_old_family_is_called(
    name: str, case: str, cache_dir: Path, inductor_cache: Path
) -> None:
    function, arguments, op, launch, part = CASES[case]
    with as_target(name), Lab(fastest("cutlass"), cache_dir).open() as lab:
        code = lab.lower(function, *arguments, gemm_backends=BACKENDS)
    (call,) = calls(code)
    assert (call.op, call.arguments, call.named) == (op, launch, {"out": "buf0"})
    assert call.symbol.startswith("cutlass_sm80_")
    assert part in call.symbol
    builds = [entry.build for entry in lab.entries("template") if isinstance(entry.build, CppBuild)]
    assert {build.key.target for build in builds} == {ARCHES[name]}
    assert call.kernel.partition("@")[2] in {build.key.digest for build in builds}


def test_fp8_is_refused_by_the_name_of_the_device(cache_dir: Path, inductor_cache: Path) -> None:
    untyped: Any = torch

    def scaled(a: Any, b: Any, x: Any, y: Any) -> tuple[torch.Tensor]:
        return (untyped._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16),)

    arg, eight = Arg((), torch.float32), torch.float8_e4m3fn
    with as_target("L40S"), Lab(fastest("cutlass"), cache_dir).open() as lab:
        code = lab.lower(
            scaled,
            Arg((M, K), eight),
            Arg((N, K), eight),
            arg,
            arg,
            gemm_backends="ATEN,TRITON,CUTLASS",
        )
    assert calls(code) == []
    assert "no CUTLASS kernel for fp8 on sm_89 here" in lab.record()["rejected"]["cutlass"]
