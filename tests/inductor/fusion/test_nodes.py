"""Arguments of a kernel that Inductor has generated for a fusion, as a worker builds them."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.fusion import kernel_arguments
from inductor_plugin.kernels.call import Zeros

pytestmark = pytest.mark.compat


@pytest.mark.parametrize(
    ("mode", "each_call"),
    [
        (WorkspaceZeroMode.ZERO_ON_CALL, True),
        (WorkspaceZeroMode.ZERO_PER_GRAPH, False),  # the kernel cleans up
        (WorkspaceZeroMode.UNINITIALIZED, False),
    ],
)
def test_scratch_memory_is_zeroed_as_often_as_in_generated_code(
    monkeypatch: pytest.MonkeyPatch, mode: WorkspaceZeroMode, *, each_call: bool
) -> None:
    def hints(counts: Sequence[int]) -> tuple[int, ...]:
        return tuple(counts)

    monkeypatch.setattr(compat, "hints", hints)
    memory = WorkspaceArg(
        count=8,  # pyright: ignore[reportArgumentType] - torch 2.11 takes no expression
        zero_mode=mode,
        device=torch.device("cuda"),
        outer_name="workspace_0",
    )
    assert kernel_arguments._argument("workspace_0", memory) == Zeros(8, "uint8", each_call)
