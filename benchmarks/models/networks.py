"""The ten networks whose run time is measured: small enough to be tuned on two cores, each with its family's usual products.

Plain torch, arbitrary weights. Sizes are chosen so that a call takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fusion.models import Attention, Bert, Gpt
from inductor_plugin.aot.decoder import Decoder, DecoderConfig

Network = tuple[nn.Module, tuple[Tensor, ...]]
TOKENS = 128


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``y[..., width]`` of ``x[..., width]``."""
        return self.outer(functional.gelu(self.inner(x)))


class MixerLayer(nn.Module):
    """A layer of MLP-Mixer: one MLP over the tokens, one over the channels (Tolstikhin et al., 2021)."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.over_tokens = Mlp(tokens, 2 * tokens)
        self.second_norm = nn.LayerNorm(width)
        self.over_channels = Mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state; ``x[batch, token, width]``."""
        x = x + self.over_tokens(self.first_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.second_norm(x))


class ConvBlock(nn.Module):
    """A residual block of two 3x3 convolutions (He et al., 2015)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next image; ``x[batch, channel, row, column]``."""
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(y)))


class ConvNet(nn.Module):
    """Residual blocks on images of 56 x 56, pooled to 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 4, stride=4)
        self.blocks = nn.Sequential(ConvBlock(64), ConvBlock(64))
        self.classes = nn.Linear(64, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Return ``logits[batch, class]``."""
        return self.classes(self.blocks(self.stem(image)).mean((2, 3)))


class VitLayer(nn.Module):
    """Attention and MLP, each with a norm before it and a residual addition after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=False)
        self.second_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next state; ``x[batch, token, width]``."""
        x = x + self.attention(self.first_norm(x))
        return x + self.mlp(self.second_norm(x))


class Vit(nn.Module):
    """ViT-Small with two layers: patches of 16 x 16 (Dosovitskiy et al., 2020)."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.layers = nn.Sequential(VitLayer(width, 6), VitLayer(width, 6))
        self.classes = nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Return ``logits[batch, class]``."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        return self.classes(self.layers(tokens).mean(1))


class T5Attention(nn.Module):
    """Attention with a learned bias for each pair of positions, not scaled (Raffel et al., 2019)."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.randn(heads, tokens, tokens))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return the attention of ``x[batch, token, width]`` to ``memory[batch, token, width]``."""
        batch, tokens, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)

        scores = split(self.query(x)) @ split(self.key(memory)).transpose(2, 3) + self.bias
        mixed = torch.softmax(scores, -1) @ split(self.value(memory))
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))


class T5(nn.Module):
    """One layer of T5-small's encoder and one of its decoder."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.encoder = T5Attention(width, heads, TOKENS)
        self.decoder = T5Attention(width, heads, TOKENS)
        self.crossed = T5Attention(width, heads, TOKENS)
        self.norm = nn.RMSNorm(width)
        self.first = nn.Sequential(
            nn.Linear(width, 2048, bias=False), nn.ReLU(), nn.Linear(2048, width, bias=False)
        )
        self.second = nn.Sequential(
            nn.Linear(width, 2048, bias=False), nn.ReLU(), nn.Linear(2048, width, bias=False)
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the next state of the decoder; ``source`` and ``target[batch, token, width]``."""
        x = self.norm(source)
        source = source + self.encoder(x, x)
        source = source + self.first(self.norm(source))
        y = self.norm(target)
        target = target + self.decoder(y, y)
        target = target + self.crossed(self.norm(target), self.norm(source))
        return target + self.second(self.norm(target))


class Lstm(nn.Module):
    """An LSTM written as products, 16 steps of 64 sequences."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)
        self.output = nn.Linear(width, width)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return the last output; ``sequence[step, batch, width]``."""
        hidden = cell = torch.zeros_like(sequence[0])
        for step in sequence:
            gates = self.gates(torch.cat((step, hidden), 1))
            entry, forget, new, exit_ = gates.chunk(4, 1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(entry) * torch.tanh(new)
            hidden = torch.sigmoid(exit_) * torch.tanh(cell)
        return self.output(hidden)


class Int8Linear(nn.Module):
    """A linear layer whose weight is stored in 8 bits, with a scale for each output.

    Inference calls the operator that torchao's weight-only quantization ends in; it has no gradient.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer(
            "weight", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
        )
        self.register_buffer("scale", torch.rand(outputs, dtype=torch.bfloat16) / 100)
        self.weight: Tensor
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return ``y[..., outputs]`` of ``x[..., inputs]``."""
        if self.training:
            return functional.linear(x, self.weight.to(x.dtype)) * self.scale
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scale)


def mixer() -> Network:
    """Return two layers of an MLP-Mixer: 196 tokens of 256 channels."""
    return nn.Sequential(MixerLayer(196, 256), MixerLayer(196, 256)), (torch.randn(1, 196, 256),)


def convnet() -> Network:
    """Return a residual network of five convolutions."""
    return ConvNet(), (torch.randn(1, 3, 224, 224),)


def bert() -> Network:
    """Return two layers of BERT-base with its head for 4,096 words, 1 x 128 tokens."""
    return Bert(2, 768, 12, 4096), (torch.randint(0, 4096, (1, TOKENS)),)


def gpt2() -> Network:
    """Return two layers of GPT-2 small with 4,096 words, 1 x 128 tokens."""
    return Gpt(2, 768, 12, 4096), (torch.randint(0, 4096, (1, TOKENS)),)


def llama() -> Network:
    """Return a Llama-style decoder, two layers, 512 wide, 1 x 128 tokens."""
    sizes = DecoderConfig(vocabulary=4096, width=512, layers=2, hidden=1408)
    return Decoder(sizes), (torch.randint(0, 4096, (1, TOKENS)),)


def vit() -> Network:
    """Return ViT-Small with two layers, one image."""
    return Vit(), (torch.randn(1, 3, 224, 224),)


def t5() -> Network:
    """Return a layer of T5-small's encoder and one of its decoder, 1 x 128 tokens."""
    return T5(), (torch.randn(1, TOKENS, 512), torch.randn(1, TOKENS, 512))


def lstm() -> Network:
    """Return an LSTM of 256 units, 16 steps of 64 sequences."""
    return Lstm(), (torch.randn(16, 64, 256),)


def int8_mlp() -> Network:
    """Return an MLP with weights in 8 bits and activations in bfloat16, 64 rows."""
    layers = nn.Sequential(Int8Linear(512, 2048), nn.ReLU(), Int8Linear(2048, 512))
    return layers, (torch.randn(64, 512, dtype=torch.bfloat16),)


def half_mlp() -> Network:
    """Return an MLP in float16, 64 rows."""
    return Mlp(512, 2048).half(), (torch.randn(64, 512, dtype=torch.float16),)


NETWORKS: dict[str, Callable[[], Network]] = {
    each.__name__: each
    for each in (mixer, convnet, bert, gpt2, llama, vit, t5, lstm, int8_mlp, half_mlp)
}
