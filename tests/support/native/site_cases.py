"""One call for each operator that has call sites, with operands of several layouts."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin.ops import sites
from tests.support.native import call_sites
from tests.support.native.echo import Echo


def is_bound(call: Any, *operands: Tensor, out: Tensor) -> bool:
    """Call a site; return whether it has called its kernel without entering Python."""
    calls: list[tuple[Any, ...]] = []

    def slow(*values: Any, out: Tensor) -> Tensor:
        calls.append(values)
        return out

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sites._SiteCall, "__call__", slow)
        call(*operands, None, out=out)
    return not calls


LAUNCH = (2, 1, 3)
ROW = torch.randn(6)
Q, KV = (torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8))
LSE = torch.randn(2, 4, 5)


def turned(tensor: Tensor) -> Tensor:
    """Return the same sizes, heads and rows swapped in memory."""
    return torch.empty(tensor.transpose(1, 2).shape).transpose(1, 2)


CASES: dict[str, tuple[str, tuple[Any, ...], tuple[int, int], tuple[Any, ...], Tensor]] = {
    "mm": (
        "mm",
        ("tt", *LAUNCH),
        (0, 0),
        (torch.randn(5, 7), torch.randn(7, 6)),
        torch.empty(5, 6),
    ),
    "mm, transposed, padded": (
        "mm",
        ("nn", *LAUNCH),
        (0, 0),
        (torch.randn(7, 9).t()[:5], torch.randn(6, 10)[:, :7].t()),
        torch.empty(5, 9)[:, :6],
    ),
    "bmm, one B for all": (
        "mm",
        ("tt", *LAUNCH),
        (0, 0),
        (torch.randn(3, 5, 7), torch.randn(1, 7, 6).expand(3, 7, 6)),
        torch.empty(3, 5, 6),
    ),
    "addmm, row": (
        "addmm",
        ("tt", *LAUNCH, "row", 0.5, 2.0),
        (0, 0),
        (ROW, torch.randn(5, 7), torch.randn(7, 6)),
        torch.empty(5, 6),
    ),
    "baddbmm, full": (
        "addmm",
        ("tt", *LAUNCH, "full", 1.0, 3.0),
        (0, 0),
        (torch.randn(3, 5, 8)[..., :6], torch.randn(3, 5, 7), torch.randn(3, 7, 6)),
        torch.empty(3, 5, 6),
    ),
    "addmm, unread": (
        "addmm",
        ("tt", *LAUNCH, "none", 1.0, 0.0),
        (0, 0),
        (ROW, torch.randn(5, 7), torch.randn(7, 6)),
        torch.empty(5, 6),
    ),
    "scaled": (
        "scaled_mm",
        ("tt", *LAUNCH),
        (0, 0),
        (torch.randn(5, 7), torch.randn(7, 6), torch.ones(5, 1), torch.ones(1, 6)),
        torch.empty(5, 6),
    ),
    "scaled, bias": (
        "scaled_addmm",
        ("tt", *LAUNCH),
        (0, 0),
        (torch.randn(5, 7), torch.randn(7, 6), torch.ones(1), torch.ones(1), ROW),
        torch.empty(5, 6),
    ),
    "grouped": (
        "grouped_mm",
        ("tt", *LAUNCH),
        (0, 0),
        (torch.randn(9, 7), torch.randn(3, 7, 6), torch.tensor([2, 5, 9], dtype=torch.int32)),
        torch.empty(9, 6),
    ),
    "epilogue": (
        "mm_epilogue",
        ("tt", *LAUNCH, call_sites.epilogue((5, 6), "row", "column", "full")),
        (3, 1),
        (
            *(torch.randn(5, 7), torch.randn(7, 6)),
            *(torch.randn(1, 6), torch.randn(5, 1), torch.randn(5, 9)[:, :6]),
            torch.empty(5, 8)[:, :6],
        ),
        torch.empty(5, 6),
    ),
    "epilogue, output a view": (
        "mm_epilogue",
        ("tt", *LAUNCH, call_sites.epilogue((3, 5, 6), "row")),
        (1, 1),
        (torch.randn(3, 5, 7), torch.randn(3, 7, 6), torch.randn(3, 1, 6), torch.empty(15, 6)),
        torch.empty(15, 6),
    ),
    "attention": (
        "fmha",
        (0.5, 3, -1, True),
        (0, 0),
        (Q, KV, turned(KV), LSE),
        turned(Q),
    ),
    "attention, output": ("fmha_output", (0.25, -1, 0, False), (0, 0), (Q, KV, KV), turned(Q)),
    "attention, backward": (
        "fmha_backward",
        (0.5, 3, 0, False),
        (0, 0),
        (turned(Q), Q, KV, KV, Q, LSE, LSE.clone(), turned(Q), turned(KV)),
        turned(KV),
    ),
}


def site_of(name: str, echo: Echo) -> tuple[Callable[..., Any], tuple[Any, ...], Tensor]:
    op, arguments, (reads, aux), operands, out = CASES[name]
    constants = (echo.kernel, *arguments)
    return sites.site(f"inductor_plugin::cutlass_{op}.out", constants, reads, aux), operands, out
