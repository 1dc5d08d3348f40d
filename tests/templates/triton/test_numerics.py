"""One odd case of each Triton template in the interpreter, and sizes other than those it was tuned at."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from typing import Any

import pytest
import torch

from inductor_plugin.template import Template
from inductor_plugin.templates import BUILTIN
from inductor_plugin.templates.triton.decode import TritonDecode
from inductor_plugin.templates.triton.persistent_tma import TritonPersistentTma
from inductor_plugin.templates.triton.split_k import TritonSplitK
from tests.support.lowering import Arg
from tests.support.triton.checked import outcomes
from tests.support.triton.lowering import F16, NEEDS_CUDA_BUILD, Case, bmm, check_all, codes, mm
from tests.support.triton.products import fp8, int4

pytestmark = NEEDS_CUDA_BUILD

F32, FP8 = torch.float32, torch.float8_e4m3fn


# Arguments in the order of their use, which is the graph's where a size is unknown.
def by_rows(a: Any, s: Any, b: Any, t: Any) -> tuple[torch.Tensor]:
    """Multiply where the scales of A are the first of many."""
    return fp8.scaled(a, b, s[: a.shape[0]], t)


def by_blocks(a: Any, s: Any, b: Any, t: Any) -> tuple[torch.Tensor]:
    """Multiply where the scales of A lie by columns, so that its rows are their stride."""
    rows = a.shape[0]
    return fp8.scaled(a, b, s[: 3 * rows].view(3, rows).t(), t)


def reference_by_rows(a: Any, s: Any, b: Any, t: Any) -> Any:
    return fp8.reference(a, b, s[: a.shape[0]], t)


def reference_by_blocks(a: Any, s: Any, b: Any, t: Any) -> Any:
    rows = a.shape[0]
    return fp8.reference(a, b, s[: 3 * rows].view(3, rows).t(), t)


DECODE, SPLIT_K, PERSISTENT = TritonDecode(), TritonSplitK(), TritonPersistentTma()
ODD: list[tuple[Template, str, Case]] = [
    (DECODE, "one row", Case(mm, (Arg((1, 331), F16), Arg((331, 77), F16)))),
    (DECODE, "seven rows", Case(mm, (Arg((7, 331), F16), Arg((331, 77), F16)))),
    (SPLIT_K, "split K", Case(mm, (Arg((5, 1100), F16), Arg((1100, 70), F16)))),
    (SPLIT_K, "a batch", Case(bmm, (Arg((2, 5, 1031), F16), Arg((2, 1031, 67), F16)), winner=1)),
    (PERSISTENT, "persistent", Case(mm, (Arg((70, 136), F16), Arg((136, 72), F16)))),
    (PERSISTENT, "transposed", Case(
        lambda a, b: (torch.mm(a.t(), b.t()),), (Arg((72, 136), F16), Arg((80, 72), F16)), winner=1
    )),
    (fp8.TEMPLATE, "scales by row", fp8.CASES["rows and columns"]),
    (fp8.TEMPLATE, "scales by block", fp8.CASES["one row, blocks"]),
    (int4.TEMPLATE, "4-bit weights", int4.CASES["four inner tiles"]),
]  # fmt: skip
OTHERS: list[tuple[Template, str, Case]] = [
    (DECODE, "decode", Case(mm, (Arg((4, 331), F16), Arg((331, 77), F16)), rows=50)),
    (PERSISTENT, "persistent", Case(mm, (Arg((300, 136), F16), Arg((136, 72), F16)), rows=77)),
    (fp8.TEMPLATE, "scales by row", Case(
        by_rows,
        (Arg((300, 144), FP8), Arg((512, 1), F32), Arg((144, 80), FP8, (1, 144)), Arg((1, 80), F32)),
        0, reference_by_rows, 1e-2, rows=77,
    )),
    (fp8.TEMPLATE, "scales by block", Case(
        by_blocks,
        (Arg((300, 384), FP8), Arg((1536,), F32), Arg((384, 96), FP8, (1, 384)), Arg((3, 96), F32)),
        0, reference_by_blocks, 1e-2, rows=77,
    )),
]  # fmt: skip


@pytest.mark.slow
def test_the_check_of_numbers_accepts_every_template() -> None:
    """Random operands of any magnitude, with NaN in one element of each, through the worker's own check."""
    for (_, name, _), outcome in zip(ODD, outcomes(codes(ODD), __name__, "ODD"), strict=True):
        assert outcome.status == "ok", f"{name}: {outcome.reason}"
        assert outcome.error is not None, name


@pytest.mark.slow
@pytest.mark.claim
def test_odd_products_and_other_sizes_than_the_measured_are_right() -> None:
    taken = {template.name for template, _, _ in ODD}
    products = [
        template.name for template in BUILTIN if not template.ops[0].startswith("attention")
    ]
    assert taken == {name for name in products if name.startswith("triton_")}
    # One process for all: it takes as long to start as ten cases.
    check_all(
        [*ODD, *((template, f"{name}, other rows", other) for template, name, other in OTHERS)]
    )
