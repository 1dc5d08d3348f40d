"""Models for tests that compile for a simulated GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from inductor_plugin.aot.decoder import llama3_8b
from inductor_plugin.aot.models import Inputs


class Layer(nn.Module):
    """One product whose sizes suit every kernel, after an attention."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512, bias=False)
        self.tied = nn.Linear(256, 512, bias=False)
        self.tied.weight = self.first.weight
        self.register_buffer("scale", torch.ones(256))

    def forward(self, x: Tensor) -> Tensor:
        """Return [tokens, 512] of [tokens, 256]."""
        heads = (x * self.scale).view(1, -1, 4, 64).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.first(mixed.transpose(1, 2).reshape(-1, 256)).relu()


def half() -> tuple[nn.Module, list[Inputs]]:
    """Return a model in bfloat16 with two sets of inputs."""
    return Layer().to(torch.bfloat16), [(rows(128),), {"x": rows(64)}]


def wants_values() -> tuple[nn.Module, Inputs]:
    """Return a model whose construction reads the value of a tensor."""
    layer = Layer().half()
    assert float(layer.first.weight.detach().float().abs().max()) < 1
    return layer, (rows(128).half(),)


def odd() -> tuple[nn.Module, Inputs]:
    """Return a product whose sizes are multiples of nothing."""
    layer = nn.Linear(4001, 97, bias=False).to(torch.bfloat16)
    return layer, (torch.zeros(33, 4001, dtype=torch.bfloat16),)


def single() -> tuple[nn.Module, Inputs]:
    """Return a model in float32, which no tensor core kernel takes."""
    return Layer(), (rows(128).float(),)


def sequence() -> tuple[nn.Module, Inputs]:
    """Return a model without any product."""
    return nn.ReLU(), (rows(4),)


def rows(count: int) -> Tensor:
    """Return an input of so many tokens."""
    return torch.zeros(count, 256, dtype=torch.bfloat16)


def llama_layer() -> tuple[nn.Module, list[Inputs]]:
    """Return one layer of Llama-3-8B and 64 tokens: seven products and an attention."""
    decoder, sets = llama3_8b()
    return decoder, sets[1:2]
