"""The networks whose fusions are counted: BERT-base, GPT-2 small and a Llama-style decoder, bfloat16.

Plain torch, inference only, arbitrary weights: no network is run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from inductor_plugin.aot.decoder import Decoder, DecoderConfig
from inductor_plugin.aot.models import Inputs

ModelWithInputs = tuple[nn.Module, list[Inputs]]


class Attention(nn.Module):
    """Attention over all or the preceding tokens; one product for query, key and value."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.together = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens; ``x[batch, token, width]``."""
        batch, tokens, width = x.shape
        parts = self.together(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class SplitAttention(nn.Module):
    """Attention over all tokens with separate products for query, key and value, as in BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed tokens; ``x[batch, token, width]``."""
        batch, tokens, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x))
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class BertLayer(nn.Module):
    """Attention and feed-forward, with a norm after each residual addition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SplitAttention(width, heads)
        self.first_norm = nn.LayerNorm(width, eps=1e-12)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)
        self.second_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state; ``x[batch, token, width]``."""
        x = self.first_norm(x + self.attention(x))
        return self.second_norm(x + self.outer(functional.gelu(self.inner(x))))


class Bert(nn.Module):
    """BERT with its masked-language head: the transform, and logits with the tied embedding."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))
        self.transform = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width, eps=1e-12)
        self.logits = nn.Linear(width, vocabulary)
        self.logits.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``logits[batch, token, vocabulary]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        return self.logits(self.head_norm(functional.gelu(self.transform(x))))


class GptLayer(nn.Module):
    """Attention and feed-forward, with a norm before each and a residual addition after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=True)
        self.second_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state; ``x[batch, token, width]``."""
        x = x + self.attention(self.first_norm(x))
        inner = functional.gelu(self.inner(self.second_norm(x)), approximate="tanh")
        return x + self.outer(inner)


class Gpt(nn.Module):
    """GPT-2: tokens to logits, the embedding tied."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(1024, width)
        self.layers = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        self.logits.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``logits[batch, token, vocabulary]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        return self.logits(self.norm(x))


def bert(layers: int = 12) -> ModelWithInputs:
    """Return BERT-base and 8 x 512 tokens.

    Sizes: https://huggingface.co/google-bert/bert-base-uncased/blob/main/config.json
    """
    return _with_inputs(Bert(layers, width=768, heads=12, vocabulary=30522), 8, 512)


def gpt2(layers: int = 12) -> ModelWithInputs:
    """Return GPT-2 small and 4 x 1024 tokens.

    Sizes: https://huggingface.co/openai-community/gpt2/blob/main/config.json
    """
    return _with_inputs(Gpt(layers, width=768, heads=12, vocabulary=50257), 4, 1024)


def llama(layers: int = 8) -> ModelWithInputs:
    """Return Llama-3-8B with 8 of its 32 layers and 1 x 2048 tokens.

    Sizes: https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json
    """
    sizes = DecoderConfig(
        vocabulary=128256,
        width=4096,
        layers=layers,
        heads=32,
        kv_heads=8,
        hidden=14336,
        positions=8192,
        rope_base=500000.0,
    )
    return _with_inputs(Decoder(sizes), 1, 2048)


def _with_inputs(model: nn.Module, batch: int, tokens: int) -> ModelWithInputs:
    ids = torch.zeros((batch, tokens), dtype=torch.int64)
    return model.eval().to(torch.bfloat16), [(ids,)]


MODELS: dict[str, Callable[..., ModelWithInputs]] = {"bert": bert, "gpt2": gpt2, "llama": llama}
"""By name; each takes the number of layers."""
