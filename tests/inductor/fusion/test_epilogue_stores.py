"""What several stores of one kernel are together."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering

from inductor_plugin.inductor.fusion.epilogue import base_of, epilogue_of_bodies
from inductor_plugin.problem.epilogue import Epilogue
from tests.support.lowering import Arg, Lab, library_last

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F32, I64 = torch.float32, torch.int64
A, B = Arg((256, 128)), Arg((128, 512))


def test_a_plain_store_after_an_atomic_one_leaves_a_kernel_atomic(cache_dir: Path) -> None:
    def scattered(a: Any, b: Any, rows: Any, table: Any) -> Any:
        product = (a @ b).float()
        return torch.index_put(table, (rows,), product, accumulate=True), product * 2

    kernels: list[Epilogue] = []
    update = GraphLowering._update_scheduler  # pyright: ignore[reportPrivateUsage]

    def updating(graph: Any) -> None:
        product, *others = graph.buffers
        bodies = [each.get_default_sizes_body()[1] for each in others if is_computed(each, product)]
        kernels.append(epilogue_of_bodies(base_of(product), bodies, lambda _name: True))
        update(graph)

    with (
        Lab(library_last, cache_dir).open() as lab,
        mock.patch.object(GraphLowering, "_update_scheduler", updating),
    ):
        lab.lower(scattered, A, B, Arg((256,), I64), Arg((64, 512), F32))
    (kernel,) = kernels
    assert ([write.pattern for write in kernel.writes], kernel.atomic) == (["other", "full"], True)


def is_computed(buffer: Any, product: ir.Buffer) -> bool:
    """Return whether a buffer is computed from a product."""
    if not isinstance(buffer, ir.ComputedBuffer):
        return False
    return product.get_name() in {dep.name for dep in buffer.get_read_writes().reads}
