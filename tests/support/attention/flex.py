"""Lowers FlexAttention for an absent GPU, forward and backward.

The two operators are called as autograd calls them, because autograd itself asks the driver for the
device. The score is left as it is; the mask is causal.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention.flex_attention import BlockMask

from tests.support.lowering import Arg, Lab

SCALE = 0.1

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

    def operands(self) -> tuple[Arg, Arg, Arg]:
        """Return query, key and value."""
        value = self.value_dim or self.head_dim
        return (
            Arg((self.batch, self.heads, self.queries, self.head_dim), self.dtype, self.stride),
            Arg((self.batch, self.kv_heads, self.keys, self.head_dim), self.dtype),
            Arg((self.batch, self.kv_heads, self.keys, value), self.dtype),
        )

    def blocks(self) -> tuple[torch.Tensor, ...]:
        """Return a mask that leaves no block out: counts and indices, by rows and by columns."""
        rows, columns = -(-self.queries // self.block), -(-self.keys // self.block)
        return tuple(
            tensor
            for own, other in ((rows, columns), (columns, rows))
            for tensor in (
                torch.full([1, 1, own], other, dtype=torch.int32),
                torch.arange(other, dtype=torch.int32).repeat(1, 1, own, 1),
            )
        )

    def forward(self, lab: Lab, **settings: Any) -> str:
        """Return the code of the forward pass: output and LSE in powers of two."""
        operands = (*self.operands(), *self._mask_arguments())
        return _lower(lab, lambda *tensors: self._forward(*tensors), operands, settings)

    def backward(self, lab: Lab, **settings: Any) -> str:
        """Return the code of the backward pass."""
        q, _, v = self.operands()
        out = Arg((*q.size[:3], v.size[3]), self.dtype)
        lse = Arg(q.size[:3], torch.float32)
        operands = (*self.operands(), *self._mask_arguments(), out, lse, out)
        return _lower(lab, lambda *tensors: self._backward(*tensors), operands, settings)

    def _mask_arguments(self) -> tuple[Arg, ...]:
        return tuple(Arg(tuple(tensor.shape), tensor.dtype) for tensor in self.blocks())

    def _forward(self, q: Any, k: Any, v: Any, *blocks: Any) -> Any:
        call: Any = torch.ops.higher_order.flex_attention
        mask = self._mask(*blocks)
        return call(q, k, v, _score, mask, SCALE, _OPTIONS | self.options, (), ())[:2]

    def _backward(self, q: Any, k: Any, v: Any, *others: Any) -> Any:
        call: Any = torch.ops.higher_order.flex_attention_backward
        mask, (out, lse, grad) = self._mask(*others[:4]), others[4:]
        operands = (q, k, v, out, lse, grad, None, _score, _joint)
        return call(*operands, mask, SCALE, _OPTIONS | self.options, (), ())[:3]

    def _mask(self, kv_many: Any, kv_indices: Any, q_many: Any, q_indices: Any) -> Any:
        mask = BlockMask(
            seq_lengths=(self.queries, self.keys),
            kv_num_blocks=kv_many,
            kv_indices=kv_indices,
            full_kv_num_blocks=None,
            full_kv_indices=None,
            q_num_blocks=q_many,
            q_indices=q_indices,
            full_q_num_blocks=None,
            full_q_indices=None,
            BLOCK_SIZE=(self.block, self.block),
            mask_mod=_causal,
        )
        return mask.as_tuple()


def _lower(
    lab: Lab, function: Callable[..., Any], operands: Sequence[Arg], settings: dict[str, Any]
) -> str:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        tensors = [operand.tensor() for operand in operands]
        graph = make_fx(function)(*tensors)
    # The decoding kernel lacks the third output of the forward operator.
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return lab.lower_graph(graph, mode, tensors, **settings)


def _score(score: Any, *_: Any) -> Any:
    return score


def _joint(score: Any, b: Any, h: Any, m: Any, n: Any, grad: Any) -> Any:
    return [grad, None, None, None, None]


def _causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv
