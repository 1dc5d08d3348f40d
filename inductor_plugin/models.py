"""A small Llama-style decoder in plain torch, and how a user's own model is found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from inductor_plugin.errors import OptionError

Inputs: TypeAlias = tuple[Any, ...] | dict[str, Any]
"""What a model is called with: positional arguments, or keyword arguments."""

TINY = "inductor_plugin.models:tiny"
SMALL = "inductor_plugin.models:small"
LLAMA = "inductor_plugin.models:llama3_8b"


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder, in elements.

    Attributes:
        vocabulary: Tokens it knows.
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


class Attention(nn.Module):
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


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to its input."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
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
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
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


def load(spec: str) -> tuple[nn.Module, Inputs]:
    """Call ``module:function`` and return the model and the first example inputs it gives.

    Raises:
        OptionError: As `load_sets`.
    """
    model, sets = load_sets(spec)
    return model, sets[0]


def load_sets(spec: str) -> tuple[nn.Module, list[Inputs]]:
    """Call ``module:function`` and return the model and all sets of example inputs it gives.

    The module is looked for in the current directory too, as ``python -m`` does.

    Raises:
        OptionError: There is no such module or function, or it returns something else.
    """
    answer: object = _function(spec)()
    pair = cast("tuple[object, ...]", answer) if isinstance(answer, tuple) else ()
    if len(pair) != 2:
        raise OptionError(
            f"model {spec!r} returned {_kind(cast('object', answer))}; return (model, example_inputs)"
        )
    model, inputs = pair
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model {spec!r} returned {_kind(model)} as the model; return an nn.Module"
        )
    sets = cast("list[object]", inputs if isinstance(inputs, list) else [inputs])
    if not sets or not all(isinstance(one, tuple | dict) for one in sets):
        raise OptionError(
            f"model {spec!r} returned {_kind(cast('object', inputs))} as example inputs; return a tuple of "
            "positional arguments, a dict of keyword arguments, or a list of such sets"
        )
    return model, cast("list[Inputs]", sets)


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """Return what a model answers to its example inputs."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors inside a model's answer, in a fixed order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return tensors(list(cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, tuple | list):
        return [one for part in cast("list[Any]", value) for one in tensors(part)]
    return []


def moved(value: Any, device: str) -> Any:
    """Return a model's inputs with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        inputs = cast("dict[Any, Any]", value)
        return {name: moved(part, device) for name, part in inputs.items()}
    if type(value) in (tuple, list):
        return type(value)(moved(part, device) for part in value)
    return value


def _example(config: DecoderConfig, *, batch: int, tokens: int) -> tuple[Decoder, tuple[Tensor]]:
    """Return a decoder with random weights and tokens; the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    decoder = Decoder(config).eval()
    with torch.no_grad():
        for weight in decoder.parameters():
            if weight.dim() > 1:
                weight.normal_(0, config.width**-0.5, generator=generator)
    return decoder, (torch.randint(config.vocabulary, (batch, tokens), generator=generator),)


def _function(spec: str) -> Callable[[], Any]:
    module_name, separator, name = spec.partition(":")
    if not (module_name and separator and name):
        raise OptionError(f"model is {spec!r}; write module:function, for example {TINY}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise OptionError(
            f"model {spec!r}: no module {error.name!r} in {here} or among the installed packages; "
            "change to its folder or install it"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        found = "no" if function is None else "no callable"
        raise OptionError(
            f"model {spec!r}: {module_name} has {found} {name!r}; name a function that takes "
            "nothing and returns (model, example_inputs)"
        )
    return function


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _rotary(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of each position and frequency, ``[position, head]``."""
    head = config.width // config.heads
    frequencies = config.rope_base ** -(torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(config.positions).float(), frequencies)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x[batch, head, token, element]`` turned by the angles of its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
