"""Lowers FlexAttention for a GPU that is not there, forward and backward.

The two operators are called as autograd calls them, because autograd itself asks the driver for the
device. The score is left as it is; the mask is causal.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from tests.cuda_lowering import Arg, Lab

_OPTIONS = {
    "BACKEND": "AUTO",
    "PRESCALE_QK": False,
    "ROWS_GUARANTEED_SAFE": False,
    "BLOCKS_ARE_CONTIGUOUS": False,
    "WRITE_DQ": True,
    "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}


@dataclass(frozen=True)
class Flex:
    """One call: sizes of its operands, and what the user asks of the kernel."""

    head_dim: int = 128
    value_dim: int = 0
    dtype: torch.dtype = torch.bfloat16
    batch: int = 2
    heads: int = 8
    kv_heads: int = 8
    queries: int = 1024
    keys: int = 1024
    block: int = 128
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    stride: tuple[int, ...] | None = None

    def arguments(self) -> tuple[Arg, Arg, Arg]:
        """Return query, key and value."""
        value = self.value_dim or self.head_dim
        return (
            Arg((self.batch, self.heads, self.queries, self.head_dim), self.dtype, self.stride),
            Arg((self.batch, self.kv_heads, self.keys, self.head_dim), self.dtype),
            Arg((self.batch, self.kv_heads, self.keys, value), self.dtype),
        )

    def forward(self, lab: Lab, **settings: Any) -> str:
        """Return the code of the forward pass."""
        traced: Any = lambda q, k, v: self._forward(q, k, v)  # noqa: E731  fx counts a method's self
        return lab.lower(traced, *self.arguments(), **settings)

    def backward(self, lab: Lab, **settings: Any) -> str:
        """Return the code of the backward pass."""
        q, _, v = self.arguments()
        out = Arg((*q.size[:3], v.size[3]), self.dtype)
        lse = Arg(q.size[:3], torch.float32)
        traced: Any = lambda *given: self._backward(*given)  # noqa: E731
        return lab.lower(traced, *self.arguments(), out, lse, out, **settings)

    def _forward(self, q: Any, k: Any, v: Any) -> Any:
        call: Any = torch.ops.higher_order.flex_attention
        options = _OPTIONS | self.options
        return call(q, k, v, _score, self._mask(q), 0.1, options, (), ())[:2]

    def _backward(self, q: Any, k: Any, v: Any, out: Any, lse: Any, grad: Any) -> Any:
        call: Any = torch.ops.higher_order.flex_attention_backward
        options = _OPTIONS | self.options
        mask = self._mask(q)
        made = call(
            q, k, v, out, lse, grad, None, _score, _joint, mask, 0.1, options, (), ()
        )  # fmt: skip
        return made[:3]

    def _mask(self, like: Any) -> Any:
        rows, columns = self.queries // self.block, self.keys // self.block
        facts: dict[str, Any] = {"dtype": torch.int32, "device": like.device}
        many = torch.ones([1, 1, rows], **facts)
        indices = torch.zeros([1, 1, rows, columns], **facts)
        mask = BlockMask.from_kv_blocks(
            many,
            indices,
            BLOCK_SIZE=self.block,
            mask_mod=_causal,
            seq_lengths=(self.queries, self.keys),
        )
        return mask.as_tuple()


def _score(score: Any, *_: Any) -> Any:
    return score


def _joint(score: Any, b: Any, h: Any, m: Any, n: Any, grad: Any) -> Any:
    return [grad, None, None, None, None]


def _causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv
