"""The matrix products of well-known models, used by the benchmarks and the coverage report.

A layer is C[m, n] = A[m, k] @ W[n, k].T (+ bias[n]), m being the rows (tokens) of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROWS = (1, 16, 64, 256, 1024, 4096, 8192)
"""Tokens of one step: decoding with batch 1, 16, 64, 256, and prefill."""

SOURCES = {
    "llama3-8b": "https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json",
    "llama3-70b": "https://huggingface.co/meta-llama/Meta-Llama-3-70B/blob/main/config.json",
    "qwen2.5-7b": "https://huggingface.co/Qwen/Qwen2.5-7B/blob/main/config.json",
    "mixtral-8x7b": "https://huggingface.co/mistralai/Mixtral-8x7B-v0.1/blob/main/config.json",
    "dit-xl": "https://github.com/facebookresearch/DiT/blob/main/models.py",
}
"""Source of a model's sizes (DiT-XL: ``DiT_XL_2`` with ``mlp_ratio=4``)."""


@dataclass(frozen=True)
class Layer:
    """One linear layer, or one GPU's part of it.

    Attributes:
        model: A key of `SOURCES`.
        name: ``qkv``, ``o``, ``gate_up`` ...
        n: Features out.
        k: Features in.
        parallel: GPUs that share the layer (tensor parallelism).
        bias: Whether it has a bias.
        groups: Experts of a grouped product; 0 for a plain one.
        per_token: Experts that see each token.
    """

    model: str
    name: str
    n: int
    k: int
    parallel: int = 1
    bias: bool = False
    groups: int = 0
    per_token: int = 1

    @property
    def label(self) -> str:
        """Its name in tables: ``llama3-70b/tp8 qkv``."""
        shared = f"/tp{self.parallel}" if self.parallel > 1 else ""
        return f"{self.model}{shared} {self.name}"


@dataclass(frozen=True)
class Shape:
    """One product: a layer and the rows of a step.

    Attributes:
        layer: The layer.
        rows: Tokens.
    """

    layer: Layer
    rows: int

    @property
    def m(self) -> int:
        """Rows of A: tokens, each once for every expert that sees it."""
        return self.rows * self.layer.per_token

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.layer.n

    @property
    def k(self) -> int:
        """The dimension that is summed."""
        return self.layer.k

    @property
    def label(self) -> str:
        """Its name in tables: ``llama3-8b qkv m64``."""
        return f"{self.layer.label} m{self.rows}"


def _decoder(
    model: str,
    *,
    hidden: int,
    inner: int,
    heads: int,
    kv_heads: int,
    parallel: int = 1,
    qkv_bias: bool = False,
) -> tuple[Layer, ...]:
    """Return the layers of a decoder block: heads of 128, q, k and v as one, gate and up as one.

    With tensor parallelism q, k, v, gate and up are cut along n, o and down along k (Megatron-LM,
    https://arxiv.org/abs/1909.08053, section 3).
    """
    qkv = (heads + 2 * kv_heads) * 128
    return (
        Layer(model, "qkv", qkv // parallel, hidden, parallel, qkv_bias),
        Layer(model, "o", hidden, heads * 128 // parallel, parallel),
        Layer(model, "gate_up", 2 * inner // parallel, hidden, parallel),
        Layer(model, "down", hidden, inner // parallel, parallel),
    )


LAYERS: tuple[Layer, ...] = (
    *_decoder("llama3-8b", hidden=4096, inner=14336, heads=32, kv_heads=8),
    *_decoder("llama3-70b", hidden=8192, inner=28672, heads=64, kv_heads=8),
    *_decoder("llama3-70b", hidden=8192, inner=28672, heads=64, kv_heads=8, parallel=8),
    *_decoder("qwen2.5-7b", hidden=3584, inner=18944, heads=28, kv_heads=4, qkv_bias=True),
    Layer("mixtral-8x7b", "expert_w1", 14336, 4096),
    Layer("mixtral-8x7b", "expert_w2", 4096, 14336),
    Layer("mixtral-8x7b", "grouped_w13", 28672, 4096, groups=8, per_token=2),
    Layer("mixtral-8x7b", "grouped_w2", 4096, 14336, groups=8, per_token=2),
    Layer("dit-xl", "qkv", 3456, 1152, bias=True),
    Layer("dit-xl", "proj", 1152, 1152, bias=True),
    Layer("dit-xl", "fc1", 4608, 1152, bias=True),
    Layer("dit-xl", "fc2", 1152, 4608, bias=True),
)
"""All layers. Mixtral's attention has the sizes of Llama-3 8B's."""


def shapes(layers: Iterable[Layer] = LAYERS, rows: Iterable[int] = ROWS) -> tuple[Shape, ...]:
    """Return every product of the layers, each with every number of rows."""
    counts = tuple(rows)
    return tuple(Shape(layer, count) for layer in layers for count in counts)


def by_interest() -> tuple[Shape, ...]:
    """Return all products, the most informative first: one layer of each kind, few rows and many."""
    first = {
        label: rank
        for rank, label in enumerate(
            (
                "llama3-8b gate_up",
                "llama3-8b o",
                "llama3-70b/tp8 qkv",
                "llama3-8b down",
                "mixtral-8x7b grouped_w13",
                "qwen2.5-7b qkv",
                "dit-xl fc1",
            )
        )
    }
    order = (4096, 16, 1, 256, 64, 1024, 8192)

    def rank(shape: Shape) -> tuple[int, int, int]:
        layer = first.get(shape.layer.label, len(first))
        return order.index(shape.rows) // 2 + layer, order.index(shape.rows), layer

    return tuple(sorted(shapes(), key=rank))
