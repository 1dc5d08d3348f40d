"""Whole models lowered for a GPU that is not there; compiling is Triton's alone."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_plugin import stats
from inductor_plugin.aot import lower
from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.aot.lower import Lowered, lower_model
from inductor_plugin.config import Config
from inductor_plugin.tuning.measurement import unmeasured
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import Outcome
from tests.support.fakes.tasks import cpp_build, entry, offer, problem, task, triton_job
from tests.support.graphs import models

UNTYPED: Any = lower

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


@pytest.fixture
def config(cache_dir: Path, inductor_cache: Path) -> Iterator[Config]:
    chosen = {
        "cache_dir": str(cache_dir),
        "policy": "build",
        "gemm_backends": "ATEN,TRITON",
        "attention_backends": "EFFICIENT,TRITON",
        "max_candidates": 2,
        "table": "off",
        "progress": "off",
    }
    RUNTIME.forget()
    yield Config.load(chosen, environ={})
    RUNTIME.forget()


def lowered(make: Callable[[], Any], config: Config, **options: Any) -> list[Lowered]:
    with as_target("H200"):
        return lower_model(make, config, **options)


def test_every_set_of_inputs_gives_its_problems_with_their_kernels(config: Config) -> None:
    before = stats()
    products = lowered(models.half, config)
    assert [product.problem for product in products] == [
        "attention(1x4x128x64, 1x4x128x64, 1x4x128x64)",
        "mm(128x256, 256x512)",
        "attention(1x4x64x64, 1x4x64x64, 1x4x64x64)",
        "mm(64x256, 256x512)",
    ]
    store = RUNTIME.store(config)
    for described in products:
        assert len(described.offered) == 3
        assert len(described.kernels) == sum("triton" in name for name in described.offered)
        assert described.failed == ()
        assert all(store.kernel(digest) is not None for digest in described.kernels)
    spent = stats().since(before)
    kernels = {digest for product in products for digest in product.kernels}
    assert len(kernels) >= 4
    assert (spent.compiled, spent.benchmarked) == (len(kernels), 0)
    # Nothing was measured, so nothing is decided; who refused, and why, is kept for `explain`.
    records = list(store.iter_records())
    assert [record.decision for record in records] == [None] * 4
    assert all("triton_decode" in record.rejected for record in records if record.op == "mm")
    # And what is compiled is not compiled again, nor does it count as known.
    before = stats()
    assert [product.kernels for product in lowered(models.half, config)] == [
        product.kernels for product in products
    ]
    spent = stats().since(before)
    assert (spent.compiled, spent.record_misses) == (0, 4)


def test_making_a_model_takes_no_memory_and_leaves_tied_weights_tied(config: Config) -> None:
    seen: list[Any] = []

    def make() -> Any:
        model, sets = models.half()
        seen.append(model)
        return model, sets[:1]

    lowered(make, config)
    (model,) = seen
    assert model.first.weight is model.tied.weight
    assert type(model.first.weight.data).__name__ == "FakeTensor"
    assert (model.first.weight.dtype, model.first.weight.device.type) == (torch.bfloat16, "cuda")


def test_a_model_that_wants_values_is_made_with_real_tensors(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Any:
        model, inputs = models.wants_values()
        return model, [inputs]

    problems = [product.problem for product in lowered(make, config)]
    assert [problem for problem in problems if not problem.startswith("attention")] == [
        "mm(128x256, 256x512)"
    ]
    assert "made with real tensors" in caplog.text


def test_unknown_sizes_stay_unknown(config: Config) -> None:
    products = lowered(models.half, config, dynamic=True)
    assert len(products) >= 1
    assert all(product.kernels for product in products)


def test_nothing_is_left_behind(config: Config) -> None:
    from inductor_plugin.inductor.graph import session

    def make() -> Any:
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        lowered(make, config)
    assert session.OBSERVERS == []
    assert not torch.cuda.is_available()


class Called(TorchDispatchMode):
    """Keeps the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("head", "dtype", "masked", "flash"),
    [
        (64, torch.bfloat16, False, True),
        (256, torch.float16, False, True),
        (264, torch.float16, False, False),
        (60, torch.float16, False, False),
        (64, torch.float32, False, False),
        (64, torch.float16, True, False),
    ],
)
def test_attention_is_flash_where_its_kernels_take_the_call(
    head: int, dtype: torch.dtype, masked: bool, flash: bool
) -> None:
    graph = fx.Graph()
    operands = tuple(graph.placeholder(name) for name in ("q", "k", "v", "mask"))
    graph.output(graph.call_function(functional.scaled_dot_product_attention, operands))
    module = fx.GraphModule({}, graph)
    UNTYPED._choose_attention(module)
    q = torch.empty(1, 2, 16, head, dtype=dtype, device="meta")
    mask = torch.empty(16, 16, dtype=dtype, device="meta") if masked else None
    with Called() as called:
        out = module(q, q, q, mask)
    assert ("aten::_scaled_dot_product_flash_attention" in called.names) is flash
    assert (out.size(), out.dtype) == (q.size(), dtype)


def test_what_was_built_and_what_was_not_is_told_apart() -> None:
    built, pruned = (entry(name, build=cpp_build(name)) for name in ("built", "pruned"))
    triton = entry("triton", build=triton_job("triton", Path("/")))
    failed, late = (entry(name, build=cpp_build(name)) for name in ("failed", "late"))
    plain = entry("plain")
    built.ready = triton.ready = plain.ready = True
    pruned.outcome = Outcome("pruned", "pruned", "it spills")
    failed.outcome = Outcome("failed", "compile_failed", "an error")
    entries = [entry("library", library=True), built, pruned, triton, failed, late, plain]
    offers = [offer("library", library=True), *map(offer, ("failed", "barred", "unknown"))]
    barred = unmeasured(offers[2], "crashed", "SIGKILL", {}, 0.0)
    selection: Any = None
    measured = {"barred": barred, "failed": barred}
    ticket = TuningTicket(selection, problem(), "d", tuple(offers), measured, {"t": "too small"})
    ticket.task = task(entries)
    said: Lowered = UNTYPED._lowered(ticket)
    triton_digest = triton_job("triton", Path("/")).kernel.digest  # type: ignore[union-attr]
    digests = [cpp_build(name).key.digest for name in ("built", "pruned")]
    assert said.kernels == tuple(sorted([*digests, triton_digest]))
    assert said.failed == (("failed", "an error"), ("late", "not reached"), ("barred", "SIGKILL"))
    assert said.offered == ("library", "failed", "barred", "unknown")
    assert said.rejected == {"t": "too small"}


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2))
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = cast("nn.Linear", self.inner[0]).weight
        self.register_buffer("table", torch.ones(3))


@pytest.mark.parametrize("how", ["converted", "placed"])
def test_tied_weights_stay_tied_and_buffers_follow(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twin(old: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(old, device="meta")

    monkeypatch.setattr(lower, "_twin", twin)
    model: Any = Tied()
    UNTYPED._converted({})(model, twin) if how == "converted" else UNTYPED._place(model)
    assert model.tied.weight is model.inner[0].weight
    assert isinstance(model.tied.weight, nn.Parameter)
    tensors = [*model.parameters(), *model.buffers()]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 3
    assert not any(tensor.requires_grad for tensor in tensors)


def test_inputs_are_replaced_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair(NamedTuple):
        first: torch.Tensor
        second: int

    def twin(old: torch.Tensor) -> Any:
        return "there", old

    monkeypatch.setattr(lower, "_twin", twin)
    x = torch.ones(1)
    pair = Pair(x, 2)
    moved = UNTYPED._on_device(({"a": [x, 3]}, (x,), pair, None))
    assert moved == ({"a": [("there", x), 3]}, (("there", x),), pair, None)
    assert moved[2] is pair  # its class may take other arguments
