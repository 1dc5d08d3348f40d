"""ATen's product with 4-bit weights, as Inductor and a worker call it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_plugin.ops import int4
from inductor_plugin.worker.child.inductor import extern_function


class Calls(TorchDispatchMode):
    """Keeps which operators are called, and with what."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kept.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("group", [32, 128])
def test_aten_gets_its_own_order_of_arguments(group: int) -> None:
    """No CPU has a kernel of it: the tensors are fake ones."""
    with FakeTensorMode():
        a = torch.empty(3, 256, dtype=torch.bfloat16)
        b = torch.empty(16, 2, 32, 4, dtype=torch.int32)
        scales = torch.empty(256 // group, 128, 2, dtype=torch.bfloat16)
        with Calls() as calls:
            result = int4.weight_int4pack_mm(a, b, scales, group=group)
    ((operator, arguments),) = calls.kept
    assert operator is torch.ops.aten._weight_int4pack_mm.default
    assert arguments[2] == group
    assert all(given is own for given, own in zip(arguments, (a, b, group, scales), strict=True))
    assert (result.shape, result.dtype) == ((3, 128), torch.bfloat16)


def test_a_worker_finds_it_by_its_name() -> None:
    assert extern_function(int4.NAME) is int4.weight_int4pack_mm
