"""ATen's product with 4-bit weights, tensors first in its arguments, as Inductor calls library kernels."""

from __future__ import annotations

import torch

NAME = "weight_int4pack_mm"
"""Its name on Inductor's `extern_kernels`, and of the operator in a `Problem`."""


def weight_int4pack_mm(
    a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor, *, group: int
) -> torch.Tensor:
    """Return C[m, n] = A[m, k] @ unpacked B; see `inductor_plugin.templates.triton.int4`."""
    return torch.ops.aten._weight_int4pack_mm.default(a, b, group, scales)
