"""Which tensor a choice is measured on is the tensor that will run."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import nn

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.runtime import RUNTIME
from tests.providers import offered

pytestmark = pytest.mark.compat

ROWS = 384  # with less Inductor offers no C++ template


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with inductor_config.patch(freezing=True), torch.no_grad():
        yield
    inductor_plugin.disable()
    RUNTIME.forget()


class Sliced(nn.Module):
    """Multiplies with the lower half of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.weight[256:].t())


def test_a_slice_of_a_weight_is_multiplied_as_such(cache_dir: Path) -> None:
    model, x = Sliced().eval(), torch.randn(ROWS, 256)
    options: Any = {"cache_dir": str(cache_dir), "never_slower_margin": 1}
    answer = torch.compile(model, backend="inductor_plugin", options=options)(x)
    assert torch.allclose(answer, model(x), atol=1e-3)


@pytest.mark.parametrize("columns", [256, 320])
def test_a_weight_seen_through_a_view_is_measured_as_such(cache_dir: Path, columns: int) -> None:
    """AOTInductor keeps the transposition of a weight as a view of it."""
    model, x = nn.Linear(256, columns).eval(), torch.randn(ROWS, 256)
    package = str(cache_dir.parent / f"model{columns}.pt2")
    options = inductor_plugin.options(cache_dir=str(cache_dir), freezing=True)
    with offered("good", serves=("addmm", "mm")):
        torch._inductor.aoti_compile_and_package(
            torch.export.export(model, (x,)), package_path=package, inductor_configs=options
        )
    answer = torch._inductor.aoti_load_package(package)(x)
    assert torch.allclose(answer, model(x), atol=1e-4)
    store = open_store(cache_dir)
    assert list(store.iter_quarantine()) == []
    known = [one for record in store.iter_records() for one in record.candidates.values()]
    assert all(one.status == "ok" for one in known if one.kind == "extern")
