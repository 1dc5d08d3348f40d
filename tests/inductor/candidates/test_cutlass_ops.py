"""Each operator with a CUTLASS kernel: what the generated code hands over."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cutlass.forced import BACKENDS, calls, opened
from tests.support.lowering import Arg

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ATEN: Any = torch
FP8 = torch.float8_e4m3fn
FLOAT = torch.float32
BF16 = torch.bfloat16
M, N, K = 256, 512, 128
A, B, B_T = Arg((M, K)), Arg((K, N)), Arg((N, K))
EIGHT = (Arg((M, K), FP8), Arg((N, K), FP8))
TENSOR_SCALES = (Arg((1,), FLOAT), Arg((1,), FLOAT))
ROWS = (Arg((M, 1), FLOAT), Arg((1, N), FLOAT))
"""A in rows of K, B in rows of N or (turned) of K; fp8 inputs; scales of a tensor and of each row."""

TURNED_B = f"reinterpret_tensor(b_1, ({K}, {N}), (1, {K}), 0)"
PLAIN = (1, 0, 1)


def scaled(a: Any, b: Any, x: Any, y: Any) -> tuple[torch.Tensor]:
    return (ATEN._scaled_mm(a, b.t(), x, y, out_dtype=BF16),)


def scaled_bias(a: Any, b: Any, x: Any, y: Any, bias: Any) -> tuple[torch.Tensor]:
    return (ATEN._scaled_mm(a, b.t(), x, y, bias=bias, out_dtype=BF16),)


CASES: dict[str, tuple[Callable[..., Any], tuple[Arg, ...], str, tuple[str, ...], Any]] = {
    "mm": (
        lambda a, b: (torch.mm(a, b),),
        (A, B),
        "cutlass_mm.out",
        ("a_1", "b_1"),
        ("tt", *PLAIN),
    ),
    "mm_padded": (
        lambda a, b: (torch.mm(a, b.t()),),
        (Arg((M, K), stride=(K + 8, 1)), B_T),
        "cutlass_mm.out",
        ("a_1", TURNED_B),
        ("tn", *PLAIN),
    ),
    "mm_turned": (
        lambda a, b: (torch.mm(a.t(), b),),
        (Arg((K, M)), B),
        "cutlass_mm.out",
        (f"reinterpret_tensor(a_1, ({M}, {K}), (1, {M}), 0)", "b_1"),
        ("nt", *PLAIN),
    ),
    "mm_slice": (
        lambda a, b: (torch.mm(a[:, 8 : K + 8], b),),
        (Arg((M, 2 * K)), B),
        "cutlass_mm.out",
        (f"reinterpret_tensor(a_1, ({M}, {K}), ({2 * K}, 1), 8)", "b_1"),
        ("tt", *PLAIN),
    ),
    "addmm_row": (
        lambda c, a, b: (torch.addmm(c, a, b, alpha=0.5, beta=2),),
        (Arg((N,)), A, B),
        "cutlass_addmm.out",
        (f"reinterpret_tensor(c_1, ({M}, {N}), (0, 1), 0)", "a_1", "b_1"),
        ("tt", *PLAIN, "row", 0.5, 2.0),
    ),
    "addmm_column": (
        lambda c, a, b: (torch.addmm(c, a, b),),
        (Arg((M, 1)), A, B),
        "cutlass_addmm.out",
        (f"reinterpret_tensor(c_1, ({M}, {N}), (1, 0), 0)", "a_1", "b_1"),
        ("tt", *PLAIN, "column", 1.0, 1.0),
    ),
    "addmm_full": (
        lambda c, a, b: (torch.addmm(c, a, b, beta=-1),),
        (Arg((M, N), stride=(N + 8, 1)), A, B),
        "cutlass_addmm.out",
        ("c_1", "a_1", "b_1"),
        ("tt", *PLAIN, "full", 1.0, -1.0),
    ),
    "bmm": (
        lambda a, b: (torch.bmm(a, b.transpose(1, 2)),),
        (Arg((4, M, K)), Arg((4, N, K))),
        "cutlass_mm.out",
        ("a_1", f"reinterpret_tensor(b_1, (4, {K}, {N}), ({N * K}, 1, {K}), 0)"),
        ("tn", *PLAIN),
    ),
    "baddbmm": (
        lambda c, a, b: (torch.baddbmm(c, a, b, alpha=0.25, beta=3),),
        (Arg((4, M, N)), Arg((4, M, K)), Arg((4, K, N))),
        "cutlass_addmm.out",
        ("c_1", "a_1", "b_1"),
        ("tt", *PLAIN, "full", 0.25, 3.0),
    ),
    "baddbmm_unread": (
        lambda c, a, b: (torch.baddbmm(c, a, b, alpha=0.125, beta=0),),
        (Arg((4, M, N)), Arg((4, M, K)), Arg((4, K, N))),
        "cutlass_addmm.out",
        ("c_1", "a_1", "b_1"),
        ("tt", *PLAIN, "none", 0.125, 0.0),
    ),
    "int_mm": (
        lambda a, b: (ATEN._int_mm(a, b.t()),),
        (Arg((M, K), torch.int8), Arg((N, K), torch.int8)),
        "cutlass_mm.out",
        ("a_1", TURNED_B),
        ("tn", *PLAIN),
    ),
    "scaled_tensor": (
        scaled,
        (*EIGHT, *TENSOR_SCALES),
        "cutlass_scaled_mm.out",
        ("a_1", TURNED_B, "x_1", "y_1"),
        ("tn", *PLAIN),
    ),
    "scaled_rows": (
        scaled,
        (*EIGHT, *ROWS),
        "cutlass_scaled_mm.out",
        ("a_1", TURNED_B, "x_1", "y_1"),
        ("tn", *PLAIN),
    ),
    "scaled_tensor_bias": (
        scaled_bias,
        (*EIGHT, *TENSOR_SCALES, Arg((N,))),
        "cutlass_scaled_addmm.out",
        ("a_1", TURNED_B, "x_1", "y_1", "bias_1"),
        ("tn", *PLAIN),
    ),
    "scaled_rows_bias": (
        scaled_bias,
        (*EIGHT, *ROWS, Arg((N,))),
        "cutlass_scaled_addmm.out",
        ("a_1", TURNED_B, "x_1", "y_1", "bias_1"),
        ("tn", *PLAIN),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_hands_over_operands_scalars_and_output(
    case: str, cache_dir: Path, inductor_cache: Path
) -> None:
    function, arguments, op, operands, launch = CASES[case]
    with opened("cutlass", cache_dir) as lab:
        (call,) = calls(lab.lower(function, *arguments, gemm_backends=BACKENDS))
        offered = [entry for entry in lab.entries("template") if entry.name.startswith("cutlass::")]
    assert (call.op, call.operands, call.arguments) == (op, operands, launch)
    assert call.named == {"out": "buf0"}
    assert len(offered) >= 4
    kernels = [offer.build.key.digest for offer in offered if offer.build is not None]  # type: ignore[union-attr]
    assert call.kernel.partition("@")[2] in kernels


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("int_mm", "s8_s8_s32_s32_tn"),
        ("scaled_rows", "scale_rowwise"),
        ("scaled_tensor", "scale_tensor"),
        ("scaled_rows_bias", "scale_rowwise_bias_row_bf16"),
        ("addmm_column", "bias_column_bf16"),
    ],
)
def test_the_kernel_is_one_of_its_types_and_epilogue(
    case: str, part: str, cache_dir: Path, inductor_cache: Path
) -> None:
    function, arguments, *_ = CASES[case]
    with opened("cutlass", cache_dir) as lab:
        (call,) = calls(lab.lower(function, *arguments, gemm_backends=BACKENDS))
    assert part in call.symbol


def test_launch_arguments_are_those_of_the_winner(cache_dir: Path, inductor_cache: Path) -> None:
    long = 16 * 1024
    with opened("split", cache_dir) as lab:
        code = lab.lower(
            lambda a, b: (torch.mm(a, b),),
            Arg((128, long)),
            Arg((long, 128)),
            gemm_backends=BACKENDS,
        )
    (call,) = calls(code)
    assert "stream_k" in call.symbol
    order, swizzle, raster, parts = call.arguments
    assert (order, swizzle, raster) == ("tt", 1, 0)
    assert isinstance(parts, int)
    assert parts > 1


def test_slow_and_fast_sums_of_fp8_are_two_kernels(cache_dir: Path, inductor_cache: Path) -> None:
    def fast(a: Any, b: Any, x: Any, y: Any) -> tuple[torch.Tensor]:
        return (ATEN._scaled_mm(a, b.t(), x, y, out_dtype=BF16, use_fast_accum=True),)

    with opened("cutlass", cache_dir) as lab:
        (slow,) = calls(lab.lower(scaled, *EIGHT, *TENSOR_SCALES, gemm_backends=BACKENDS))
        (quick,) = calls(lab.lower(fast, *EIGHT, *TENSOR_SCALES, gemm_backends=BACKENDS))
    assert ("_slow" in slow.symbol, "_slow" in quick.symbol) == (True, False)
