"""How many programs of a Triton kernel are started, and which devices and options have it."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from inductor_plugin.inductor.candidates import triton
from inductor_plugin.template import TritonSource

pytestmark = pytest.mark.compat

GRIDS: Any = triton._GRIDS
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 32, "SPLIT_K": 4, "SPLITS": 5, "BLOCK_N1": 128, "BLOCK_M2": 64}


@pytest.mark.parametrize(
    ("grid", "extents", "programs"),
    [
        ("tiles", (100, 70), (2 * 3, 1, 1)),
        ("tiles", (7, 100, 70), (7 * 2 * 3, 1, 1)),
        ("tiles", (128, 64), (2 * 2, 1, 1)),
        ("split_k", (100, 70), (2 * 3, 4, 1)),
        ("split_k", (7, 100, 70), (7 * 2 * 3, 4, 1)),
        # batch, heads, queries
        ("rows", (2, 3, 100), (2 * 2 * 3 * 5, 1, 1)),
        # ends of four sequences, heads, tokens: each may end in the middle of a block
        ("tokens", (5, 3, 100), ((2 + 4) * 3, 1, 1)),
        # batch, heads, queries, heads of keys, keys
        ("rows_backward", (2, 4, 100, 2, 300), ((3 * 2 + 2 * 4) * 2, 1, 1)),
        ("tokens_backward", (5, 4, 100, 2, 300), ((3 + 4) * 2 + (2 + 4) * 4, 1, 1)),
    ],
)
def test_a_grid_has_a_program_for_each_block(
    grid: str, extents: tuple[int, ...], programs: tuple[int, ...]
) -> None:
    assert tuple(GRIDS[grid](*extents, BLOCKS)) == programs


def test_persistent_programs_are_as_many_as_multiprocessors_or_tiles() -> None:
    for multiprocessors, programs in ((4, 4), (132, 6)):
        meta = {**BLOCKS, "NUM_SMS": multiprocessors}
        assert tuple(GRIDS["persistent"](100, 70, meta)) == (programs, 1, 1)


SOURCE = TritonSource("kernel", "", "tiles", (), 1, 4, capability=(8, 9), descriptors=(0,))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, ""),
        ({"compiles": False}, "it is for devices that Triton compiles for"),
        ({"backends": "ATEN,CUTLASS"}, "max_autotune_gemm_backends is ATEN,CUTLASS"),
        ({"backends": "ATEN", "grid": "rows"}, ""),  # it says nothing of attention
        ({"backends": "aten, triton"}, ""),
        ({"cc": 80}, "it needs compute capability 8.9, the device has 8.0"),
        ({"cc": 89}, ""),
        ({"cc": 80, "nvidia": False}, ""),  # its numbers are its own
        ({"tma": False}, "unfit for TMA"),
        ({"tma": False, "descriptors": ()}, ""),
    ],
)
def test_a_kernel_is_for_devices_and_graphs_that_can_run_it(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], reason: str
) -> None:
    source = replace(
        SOURCE,
        grid=facts.get("grid", "tiles"),
        descriptors=facts.get("descriptors", SOURCE.descriptors),
    )
    monkeypatch.setattr(triton, "is_for_triton", lambda _: facts.get("compiles", True))
    monkeypatch.setattr(triton, "is_nvidia", lambda _: facts.get("nvidia", True))
    monkeypatch.setattr(triton, "_properties", lambda _: SimpleNamespace(cc=facts.get("cc", 90)))
    monkeypatch.setattr(triton.inductor_utils, "can_use_tma", lambda *_: facts.get("tma", True))
    layout: Any = SimpleNamespace(device=torch.device("cuda:0"))
    backends = facts.get("backends", "ATEN,TRITON")
    with inductor_config.patch(max_autotune_gemm_backends=backends):
        why = triton._why_not(source, ["a", "b"], layout)
    assert reason in (why or "")
    assert bool(why) is bool(reason)


@pytest.mark.parametrize(
    ("beta", "alpha", "written"), [(1, 2, "added"), (0, 2, "2 times"), (0, 1, "plain")]
)
def test_what_beta_0_leaves_unread_is_in_no_epilogue(
    monkeypatch: pytest.MonkeyPatch, beta: int, alpha: int, written: str
) -> None:
    """It may be NaN."""
    ops = SimpleNamespace(mul=lambda _, factor: f"{factor} times", constant=lambda value, _: value)
    monkeypatch.setattr(triton, "V", SimpleNamespace(ops=ops))
    added = lambda _dtype, _alpha, _beta: lambda _product, _bias: "added"  # noqa: E731
    monkeypatch.setattr(triton.mm_common, "addmm_epilogue", added)
    source = replace(SOURCE, epilogue="addmm", alpha=alpha, beta=beta)
    layout: Any = SimpleNamespace(dtype=torch.float16)
    options, nodes = triton._epilogue(source, ["c", "a", "b"], layout)
    assert (nodes, options["prefix_args"]) == (("c", "a", "b"), 1)
    assert options["epilogue_fn"]("plain", "unread") == written
    assert triton._epilogue(replace(source, epilogue="none"), ["a", "b"], layout) == (
        {},
        ("a", "b"),
    )
