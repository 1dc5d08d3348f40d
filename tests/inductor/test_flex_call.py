"""What is read of a FlexAttention call: its rows, how exact its products are, what it sets itself."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.choices import InductorChoices

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.inductor import flex
from inductor_plugin.inductor.facts import compat
from tests.support.attention.flex import SCALE

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


def flex_choices(
    monkeypatch: pytest.MonkeyPatch,
    way: str = "forward",
    dtype: torch.dtype = torch.bfloat16,
    queries: int = 1024,
    **options: Any,
) -> Any:
    """Return the choices of a call with two heads of queries for each head of keys."""
    monkeypatch.setattr(compat, "hints", tuple)
    q, k = (
        SimpleNamespace(
            get_size=lambda heads=heads, rows=rows: (2, heads, rows, 128),
            get_device=lambda: torch.device("cuda", 0),
            get_dtype=lambda: dtype,
        )
        for heads, rows in ((8, queries), (4, 512))
    )
    rest = [None] * (6 if way == "backward" else 1)
    call = [q, k, k, *rest, ("ends", 64, 32, None), SCALE, options]
    with as_target("H200"):
        return flex.FlexChoices(InductorChoices(), way, call)


@pytest.mark.parametrize(("queries", "rows"), [(1024, 2048), (1, 16), (9, 32), (8, 16)])
def test_rows_are_those_of_all_heads_that_share_keys(
    monkeypatch: pytest.MonkeyPatch, queries: int, rows: int
) -> None:
    call = flex_choices(monkeypatch, queries=queries)._call
    assert (call.rows, call.q_block, call.kv_block) == (rows, 64, 32)
    assert (call.head_dim, call.value_dim, call.dtype) == (128, 128, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "options", "precision", "exact"),
    [
        (torch.float32, {}, "highest", True),
        (torch.float32, {}, "high", False),
        (torch.float32, {"FLOAT32_PRECISION": "'ieee'"}, "high", True),
        (torch.float32, {"FLOAT32_PRECISION": "'tf32'"}, "highest", False),
        (torch.bfloat16, {}, "highest", False),
    ],
)
def test_products_are_exact_where_the_call_or_torch_says_so(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    options: dict[str, Any],
    precision: str,
    *,
    exact: bool,
) -> None:
    monkeypatch.setattr(flex, "float32_precision", lambda _: precision)
    assert flex_choices(monkeypatch, dtype=dtype, **options)._call.exact is exact


@pytest.mark.parametrize(
    ("way", "options", "pinned"),
    [
        ("forward", {}, []),
        ("forward", {"BLOCK_M": 64}, ["BLOCK_M"]),
        ("forward", {"fwd_BLOCK_N": 64, "num_warps": 4}, ["fwd_BLOCK_N", "num_warps"]),
        ("forward", {"bwd_BLOCK_M1": 64, "BLOCK_M1": 64}, []),
        ("backward", {"bwd_BLOCK_M1": 64, "fwd_num_warps": 4}, ["bwd_BLOCK_M1"]),
        ("decode", {"BLOCK_M": 64}, []),
        ("decode", {"fwd_num_stages": 2}, ["fwd_num_stages"]),
    ],
)
def test_options_of_the_other_direction_pin_nothing(
    monkeypatch: pytest.MonkeyPatch, way: Any, options: dict[str, Any], pinned: list[str]
) -> None:
    call = flex_choices(monkeypatch, "backward" if way == "backward" else "forward", **options)
    assert call._pinned(way) == pinned
