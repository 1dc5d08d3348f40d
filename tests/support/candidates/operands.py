"""Operands of candidates, as a job describes them to a worker."""

from __future__ import annotations

import math
from typing import Any

from inductor_plugin.kernels.call import TensorSpec


def tensor(*size: int, seed: int = 0, **more: Any) -> TensorSpec:
    """Return a tensor on the CPU, contiguous and float32 unless ``more`` says otherwise."""
    stride = tuple(math.prod(size[place + 1 :]) for place in range(len(size)))
    return TensorSpec(
        size, more.pop("stride", stride), more.pop("dtype", "float32"), "cpu", seed=seed, **more
    )
