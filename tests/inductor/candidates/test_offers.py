"""Which tensor a choice is measured on is the tensor that will run."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import nn
from torch._inductor import ir
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.inductor.candidates import offers
from inductor_plugin.inductor.candidates.offers import why_not_repacked
from inductor_plugin.inductor.facts.problem import constant
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.candidates.fast_templates import RivalTemplate, rivals_offered

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
    # Whoever wins: what Inductor's C++ template would misread is not even offered.
    known = [
        candidate
        for record in open_store(cache_dir).iter_records()
        for candidate in record.candidates
    ]
    assert not [name for name in known if name.startswith("cpp")]


def test_an_operator_of_another_version_is_another_candidate_of_the_record(
    cache_dir: Path, inductor_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All else that an operator is made of stays the same when its author changes the kernel."""
    x = torch.randn(64, 64)
    options: Any = {"cache_dir": str(cache_dir), "gemm_backends": "ATEN"}

    def rivals() -> list[set[str]]:
        torch._dynamo.reset()
        torch.compile(torch.mm, backend="inductor_plugin", options=options)(x, x)
        records = open_store(cache_dir).iter_records()
        return [{name for name in each.candidates if "rivals" in name} for each in records]

    with rivals_offered():
        (first,) = rivals()
        assert rivals() == [first]
        monkeypatch.setattr(RivalTemplate, "version", "2", raising=False)
        (both,) = rivals()
    assert len(first) == 1
    assert len(both) == 2


class Biased(nn.Module):
    """A linear layer whose bias is a part of a longer one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256))
        self.bias = nn.Parameter(torch.randn(768))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias[512:])


@pytest.mark.slow
def test_a_slice_of_a_bias_keeps_no_kernel_out(cache_dir: Path) -> None:
    """Only weights are repacked; a bias is read where it lies."""
    model, x = Biased().eval(), torch.randn(ROWS, 256)
    options: Any = {"cache_dir": str(cache_dir), "never_slower_margin": 1}
    answer = torch.compile(model, backend="inductor_plugin", options=options)(x)
    assert torch.allclose(answer, model(x), atol=1e-3)
    (record,) = open_store(cache_dir).iter_records()
    assert [row.status for name, row in record.candidates.items() if name.startswith("cpp")] == [
        "ok"
    ]


def test_an_offset_matters_where_an_operand_is_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"weight": torch.ones(8), "bias": torch.ones(8)[2:]}
    monkeypatch.setattr(offers, "constant", lambda node: values.get(node.get_name()))
    nodes = [SimpleNamespace(get_name=lambda name=name: name) for name in ("x", "weight", "bias")]
    assert "would not see the offset of bias" in str(why_not_repacked(nodes))
    assert why_not_repacked(nodes, bias=2) is None
    values["weight"] = torch.ones(8)[2:]
    assert "would not see the offset of weight" in str(why_not_repacked(nodes, bias=2))


@pytest.mark.slow
@pytest.mark.claim
@pytest.mark.parametrize("columns", [256, 320])
def test_a_weight_that_stays_a_view_gives_the_right_answer(cache_dir: Path, columns: int) -> None:
    """AOTInductor keeps the transposition of a weight as a view of it."""
    model, x = nn.Linear(256, columns).eval(), torch.randn(ROWS, 256)
    package = str(cache_dir.parent / f"model{columns}.pt2")
    options = inductor_plugin.options(cache_dir=str(cache_dir), freezing=True)
    torch._inductor.aoti_compile_and_package(
        torch.export.export(model, (x,)), package_path=package, inductor_configs=options
    )
    answer = torch._inductor.aoti_load_package(package)(x)
    assert torch.allclose(answer, model(x), atol=1e-4)
    assert list(open_store(cache_dir).iter_quarantine()) == []


def test_a_view_of_a_frozen_value_has_its_own_sizes_strides_and_offset() -> None:
    value = torch.arange(24.0)[4:16].reshape(4, 3)  # a value need not begin its storage
    graph: Any = SimpleNamespace(constants={"weight": value}, sizevars=SizeVarAllocator())
    cpu = torch.device("cpu")
    whole = ir.ConstantBuffer(
        name="weight", layout=ir.FixedLayout(cpu, torch.float32, [4, 3], [3, 1])
    )
    layout = ir.FixedLayout(cpu, torch.float32, [3, 2], [1, 3], 6)
    view = ir.ReinterpretView(data=ir.StorageBox(whole), layout=layout)
    with V.set_graph_handler(graph):
        seen = constant(view)
        assert constant(whole) is value
    assert seen is not None
    assert torch.equal(seen, value[2:].t())


def test_a_batch_that_is_unknown_stays_unknown(cache_dir: Path) -> None:
    """Inductor's C++ template for batches notes the number it is tuned with as the operand's own."""
    options: Any = {"cache_dir": str(cache_dir), "gemm_backends": "ATEN,CPP"}
    run = torch.compile(torch.bmm, backend="inductor_plugin", options=options)
    for batch in (5, 2, 4):
        a, b = torch.randn(batch, 24, 13), torch.randn(batch, 1, 13).expand(batch, 13, 13)
        if batch == 5:
            torch._dynamo.mark_dynamic(a, 0)
            torch._dynamo.mark_dynamic(b, 0)
        assert torch.allclose(run(a, b), torch.bmm(a, b), atol=1e-5)
