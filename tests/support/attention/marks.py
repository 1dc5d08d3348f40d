"""Marks of every test of attention's lowering, which uses an absent GPU and each version of torch."""

from __future__ import annotations

import pytest
import torch

from tests.support.attention.graphs import Shape

ON_FAKE_GPU = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]
ODD = Shape(queries=250, keys=250)
UNKNOWN = Shape(queries=250, keys=250, dynamic=True)
