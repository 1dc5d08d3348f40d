"""What a candidate can do wrong on a real device, as torch operators; all want ``out = a @ b``.

A worker imports this module because an `OpKernel` names it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportMissingParameterType=false

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import triton
import triton.language as tl

Fault = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


@triton.jit
def _store_at(pointer, distance):
    tl.store(pointer + distance.to(tl.int64), 1.0)


@triton.jit
def _wait_for(pointer):
    while tl.load(pointer, volatile=True) == 0.0:
        pass


def good(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)


def raises(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    raise ValueError("this candidate raises")


def segfaults(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    ctypes.string_at(0)


def illegal(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
    _store_at[(1,)](out, 1 << 42)  # 16 TiB away: no device maps so much


def hangs(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    _wait_for[(1,)](torch.zeros(1, device=out.device))


def no_memory(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.empty(1 << 46, dtype=torch.uint8, device=out.device)


def wrong(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.mm(a, b) * 1.25)


def overruns(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
    _store_at[(1,)](out, out.numel() + 64)


FAULTS: dict[str, tuple[Fault, str]] = {
    "good": (good, "ok"),
    "raises": (raises, "raised"),
    "segfaults": (segfaults, "crashed"),
    "illegal": (illegal, "sticky_error"),
    "hangs": (hangs, "hung"),
    "no_memory": (no_memory, "out_of_memory"),
    "wrong": (wrong, "wrong"),
    "overruns": (overruns, "red_zone"),
}
"""Each fault, and the status it has to get."""

library = torch.library.Library("cuda_faults", "FRAGMENT")


def _define(name: str, fault: Fault) -> None:
    def run(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        fault(a, b, out)
        return out

    library.define(f"{name}(Tensor a, Tensor b, *, Tensor(x!) out) -> Tensor(x!)")
    library.impl(name, run, "CUDA")


for name, (fault, _) in FAULTS.items():
    _define(name, fault)
