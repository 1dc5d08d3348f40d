"""Real networks: what they compute under the plugin is what they compute eagerly.

Equal means what it means in Inductor's own suite of models: `torch._dynamo.utils.same` with 1e-4,
which compares both with a float64 run where that is not met. Stock Inductor (torch 2.14.1, CPU)
differs from eager by 4e-6 in the frozen forward passes and 2e-6 in the others, and by 5e-4 in
gradients of magnitude 1000; the plugin's differences are as large.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._dynamo.utils import same

import inductor_plugin
from inductor_plugin.tuning.counters import Stats
from tests.support import hugging_face
from tests.support.candidates import fast_templates

VOCABULARY = 512  # the real one makes the embedding, which nobody tunes, most of the model


@dataclass
class Network:
    """A model, its input, and what of its output counts."""

    model: nn.Module
    x: Tensor
    output: Callable[[Any], Tensor]

    def like(self, dtype: torch.dtype) -> Network:
        """Return a copy that computes in another precision."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        return Network(copy.deepcopy(self.model).to(dtype), x, self.output)

    def forward(self, function: Callable[[Tensor], Any] | None = None) -> Tensor:
        return self.output((self.model if function is None else function)(self.x))

    def train(self, function: Callable[[Tensor], Any] | None = None) -> dict[str, Tensor]:
        """Return the output and the gradients by parameter, of a loss in which all outputs count.

        A parameter the output does not depend on has a gradient of zeros, or none: both are left out.
        """
        self.model.zero_grad()
        output = self.forward(function)
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        (output * weight.to(output.dtype)).sum().backward()
        gradients = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        return {"output": output.detach(), **{n: g for n, g in gradients.items() if g.any()}}


def bert() -> Network:
    return _language(hugging_face.bert(vocab_size=VOCABULARY, num_hidden_layers=2))


def gpt2() -> Network:
    return _language(hugging_face.gpt2(vocab_size=VOCABULARY, n_layer=2))


def convnet() -> Network:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 64),
    )
    return Network(model, torch.randn(128, 3, 32, 32), lambda output: output)


def residual() -> Network:
    """Return a block of oneDNN's packed products, the last of which adds its input."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(self.up(x).relu())

    x = torch.randn(32, 64, dtype=torch.bfloat16)
    return Network(Block().bfloat16(), x, lambda output: output)


def _language(model: nn.Module) -> Network:
    tokens = torch.randint(VOCABULARY, (4, 32))
    return Network(model, tokens, lambda output: output.last_hidden_state)


BUILD = {"bert": bert, "gpt2": gpt2, "convnet": convnet, "residual": residual}


@pytest.fixture(scope="module")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one Inductor cache for all: its probes of the compiler take seconds, once."""
    return tmp_path_factory.mktemp("inductor-cache")


@pytest.fixture(autouse=True)
def fresh(inductor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower each graph anew, and end the workers that share nothing with the next test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_folder))
    torch._dynamo.reset()
    torch.manual_seed(0)
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def compiled(model: nn.Module, cache_dir: Path, **options: Any) -> Callable[[Tensor], Any]:
    torch._dynamo.reset()
    return torch.compile(
        model, backend="inductor_plugin", options={"cache_dir": str(cache_dir), **options}
    )


def records(cache_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]


def pinned_to_rivals(cache_dir: Path) -> str:
    """Pin the rival of every record, and return the file."""
    pins = [
        {
            "environment": record["environment"],
            "op": record["op"],
            "digest": record["digest"],
            "winner": next(n for n, c in record["candidates"].items() if c["kind"] == "template"),
        }
        for record in records(cache_dir)
    ]
    file = cache_dir.parent / "pins.json"
    file.write_text(json.dumps({"pins": pins}))
    return str(file)


def all_were_measured(spent: Stats) -> bool:
    """Return True if every problem was a real choice, and every candidate ran and was right."""
    return (
        0 < spent.problems <= spent.candidates / 2
        and spent.benchmarked == spent.candidates
        and spent.failed == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "convnet", "residual"])  # GPT-2's: `test_pinned.py`
def test_frozen_inference_computes_what_eager_computes(name: str, cache_dir: Path) -> None:
    network = BUILD[name]()
    network.model.eval()
    before = inductor_plugin.stats()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        expected = network.forward()
        reference = network.like(torch.float64).forward()
        got = network.forward(compiled(network.model, cache_dir))
    assert same(expected, got, reference, tol=1e-4)
    assert all_were_measured(inductor_plugin.stats().since(before))
    measured = [
        candidate for each in records(cache_dir) for candidate in each["candidates"].values()
    ]
    assert {candidate["status"] for candidate in measured} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("gpt2", {"mm", "addmm"}),  # attention; Linear is in the other
        ("convnet", {"mm", "addmm", "convolution"}),
    ],
)
def test_training_computes_what_eager_computes(name: str, ops: set[str], cache_dir: Path) -> None:
    network = BUILD[name]()
    expected = network.like(torch.float32).train()
    reference = network.like(torch.float64).train()
    before = inductor_plugin.stats()
    with fast_templates.rivals_offered():
        got = network.like(torch.float32)
        answer = got.train(compiled(got.model, cache_dir))
        assert same(expected, answer, reference, tol=1e-4)
        assert all_were_measured(inductor_plugin.stats().since(before))
        assert {record["op"] for record in records(cache_dir)} >= ops

        fast_templates.CALLS.clear()
        pins = pinned_to_rivals(cache_dir)
        got = network.like(torch.float32)
        answer = got.train(compiled(got.model, cache_dir, policy="pinned", pin_file=pins))
    assert same(expected, answer, reference, tol=1e-4)
    assert {op.removesuffix("_bias") for op in fast_templates.CALLS} >= ops


def test_the_comparison_tells_a_thousandth_apart() -> None:
    network = convnet()
    expected = network.train()
    reference = network.like(torch.float64).train()
    assert same(expected, expected, reference, tol=1e-4)
    for name, value in expected.items():
        off = {**expected, name: value * 1.001}
        assert not same(expected, off, reference, tol=1e-4), name
