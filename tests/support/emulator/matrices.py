"""Matrices of each type that tensor cores multiply."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import torch

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "tf32": torch.float32,
    "s8": torch.int8,
    "u8": torch.uint8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s32": torch.int32,
    "f32": torch.float32,
}


def values(shape: tuple[int, int], kind: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind in ("s8", "u8", "s32"):
        low, high = {"s8": (-128, 128), "u8": (0, 256), "s32": (-1000, 1000)}[kind]
        return torch.randint(low, high, shape, generator=generator).to(DTYPES[kind])
    drawn = torch.randn(shape, generator=generator).to(DTYPES[kind])
    if kind == "tf32":
        return (drawn.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return drawn
