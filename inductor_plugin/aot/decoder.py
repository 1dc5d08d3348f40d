"""A Llama-style decoder: the example model of the demo and of `precompile`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from inductor_plugin.aot.models import Inputs


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder, in elements.

    Attributes:
        vocabulary: Number of distinct tokens.
        width: Elements of one token's state.
        layers: Blocks of attention and feed-forward.
        heads: Query heads; they share ``width``.
        kv_heads: Key and value heads, each serving ``heads / kv_heads`` query heads.
        hidden: Elements inside the feed-forward.
        positions: Longest sequence.
        rope_base: Base of the rotary frequencies.
    """

    vocabulary: int = 2048
    width: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    hidden: int = 704
    positions: int = 512
    rope_base: float = 10000.0


class DecoderAttention(nn.Module):
    """Causal attention with rotary positions and grouped key and value heads."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head = config.width // config.heads
        self.query = nn.Linear(config.width, self.heads * self.head, bias=False)
        self.key = nn.Linear(config.width, self.kv_heads * self.head, bias=False)
        self.value = nn.Linear(config.width, self.kv_heads * self.head, bias=False)
        self.output = nn.Linear(self.heads * self.head, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attention of each token to those before it; ``x[batch, token, width]``."""
        batch, tokens, _ = x.shape
        query = self.query(x).view(batch, tokens, self.heads, self.head).transpose(1, 2)
        key = self.key(x).view(batch, tokens, self.kv_heads, self.head).transpose(1, 2)
        value = self.value(x).view(batch, tokens, self.kv_heads, self.head).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            _rotate(query, cos, sin), _rotate(key, cos, sin), value, is_causal=True, enable_gqa=True
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    """SwiGLU: one half of the hidden state gates the other."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed tokens; ``x[batch, token, width]``."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    """Attention and feed-forward, each applied after a norm and added to its input."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = DecoderAttention(config)
        self.feed_forward_norm = nn.RMSNorm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the next state of all tokens; ``x[batch, token, width]``."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):
    """A Llama-style decoder, from tokens to logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.logits = nn.Linear(config.width, config.vocabulary, bias=False)
        cos, sin = _rotary(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``logits[batch, token, vocabulary]`` of ``tokens[batch, token]``."""
        x = self.embedding(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.logits(self.norm(x))


def tiny() -> tuple[Decoder, tuple[Tensor]]:
    """Return a decoder that two CPU cores tune in seconds, and 2 x 128 tokens for it."""
    return _example(DecoderConfig(), batch=2, tokens=128)


def small() -> tuple[Decoder, tuple[Tensor]]:
    """Return a decoder with the widths of a 1-billion-parameter one, and 1 x 2048 tokens for it."""
    sizes = DecoderConfig(
        vocabulary=32000, width=2048, heads=32, kv_heads=8, hidden=5632, positions=2048
    )
    return _example(sizes, batch=1, tokens=2048)


def llama3_8b() -> tuple[Decoder, list[Inputs]]:
    """Return one layer of Llama-3-8B with its embedding and logits, and 1, 64 and 4096 tokens.

    Sizes: https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json
    """
    sizes = DecoderConfig(
        vocabulary=128256,
        width=4096,
        layers=1,
        heads=32,
        kv_heads=8,
        hidden=14336,
        positions=8192,
        rope_base=500000.0,
    )
    decoder = Decoder(sizes).eval().to(torch.bfloat16)
    return decoder, [(torch.zeros((1, tokens), dtype=torch.int64),) for tokens in (1, 64, 4096)]


def _example(config: DecoderConfig, *, batch: int, tokens: int) -> tuple[Decoder, tuple[Tensor]]:
    """Return a decoder with random weights and tokens, identical in every call."""
    generator = torch.Generator().manual_seed(0)
    decoder = Decoder(config).eval()
    with torch.no_grad():
        for weight in decoder.parameters():
            if weight.dim() > 1:
                weight.normal_(0, config.width**-0.5, generator=generator)
    return decoder, (torch.randint(config.vocabulary, (batch, tokens), generator=generator),)


def _rotary(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of each position and frequency, ``[position, head]``."""
    head = config.width // config.heads
    frequencies = config.rope_base ** -(torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(config.positions).float(), frequencies)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x[batch, head, token, element]`` rotated by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
