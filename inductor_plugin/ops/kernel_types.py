"""The element types of a compiled kernel, which its symbol ends with."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import torch

_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "f32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "s32": torch.int32,
}
_ELEMENT = f"({'|'.join(_DTYPES)})"
# As `GemmConfig.name`, `FmhaConfig.name` and, after them, `kernels.unit.unique_symbol` write them.
_PRODUCT = re.compile(
    rf"_{_ELEMENT}_{_ELEMENT}_{_ELEMENT}_{_ELEMENT}_[tn][tn]_align\d+(?:x\d+x\d+)?"
    rf"(?:_scale_(tensor|rowwise))?(?:_bias_[a-z]+_{_ELEMENT})?"
)
_ATTENTION = re.compile(rf"^cutlass_fmha_.*_{_ELEMENT}(?:_stages\d+)?(?:_[0-9a-f]{{16}})?$")


@dataclass(frozen=True)
class KernelTypes:
    """What a kernel reads and writes; None where its symbol does not say.

    Attributes:
        a: Elements of A; of attention those of all operands.
        b: Elements of B.
        c: Elements of the bias.
        d: Elements of the output.
        scale: ``tensor`` for one number each of A and B, ``rowwise`` for one a row of A and a column of B.
    """

    a: torch.dtype | None = None
    b: torch.dtype | None = None
    c: torch.dtype | None = None
    d: torch.dtype | None = None
    scale: str | None = None


@functools.lru_cache(maxsize=4096)
def types_of(kernel: str) -> KernelTypes:
    """Return the types of a kernel, ``SYMBOL`` or ``SYMBOL@DIGEST``."""
    symbol = kernel.partition("@")[0]
    if match := _ATTENTION.search(symbol):
        element = _DTYPES[match[1]]
        return KernelTypes(element, element, None, element)
    match = _PRODUCT.search(symbol)
    if match is None:
        return KernelTypes()
    bias = _DTYPES.get(match[6] or "")
    return KernelTypes(_DTYPES[match[1]], _DTYPES[match[2]], bias, _DTYPES[match[4]], match[5])
