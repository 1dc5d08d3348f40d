"""One attention call: extents, mask, scale. Pure facts, read from a `Problem`.

    out = softmax(cap(scale * q @ k.T) + bias, where the mask keeps) @ v

The plugin has two operators for it, whichever of torch's operators was traced:

``attention``
    Operands, in this order: q, k, v, then, where present, ``bias``, ``cu_q``, ``cu_k``, ``lse``.
    Output: out. ``lse`` is written.
``attention_backward``
    Operands: do, q, k, v, out, lse, delta, then, where present, ``bias``, ``cu_q``, ``cu_k``, then dq
    and dv, which are written. Output: dk.

Shapes: q, out, do, dq [B, H, Sq, D]; k, dk [B, Hkv, Sk, D]; v, dv [B, Hkv, Sk, Dv]; bias broadcast to
[B, H, Sq, Sk]; lse and delta = sum(out * do) [B, H, Sq] in float32, lse in natural logarithms. With
``cu_q`` and ``cu_k`` (int32 [B + 1], where each sequence begins and where the last one ends) the
tokens of all sequences are concatenated: q [Tq, H, D], k [Tk, Hkv, D], lse [H, Tq].

A row whose mask keeps nothing: out = 0 and lse = +inf, as in FlashAttention 2
(flash_attn_interface.py, 2.8) and CUTLASS (examples/88_hopper_fmha/collective/fmha_collective_softmax.hpp).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inductor_plugin.problem.definition import Problem

FORWARD = "attention"
BACKWARD = "attention_backward"
DIRECTIONS = (FORWARD, BACKWARD)
NARROW = "float8_e4m3fn"
"""The 8-bit dtype: forward only, and the output is bfloat16."""


@dataclass(frozen=True)
class Mask:
    """Which keys j a query i sees: ``i + shift - left <= j <= i + shift + right``.

    Attributes:
        left: Keys before the diagonal; negative: all.
        right: Keys after it; negative: all; 0 is a causal mask.
        bottom_right: Whether shift = Sk - Sq of each sequence (the last query sees the last key);
            otherwise shift = 0 (the first query sees the first key).
    """

    left: int = -1
    right: int = -1
    bottom_right: bool = False

    @property
    def limited(self) -> bool:
        """Return whether any key is hidden from any query."""
        return self.left >= 0 or self.right >= 0

    @property
    def may_be_altered(self) -> bool:
        """Return whether there are sizes for which FlashAttention 2 computes another window (`altered_by_flash`)."""
        return self.right > 0 or (self.left >= 0 > self.right)

    def altered_by_flash(self, queries: int, keys: int) -> bool:
        """Return whether FlashAttention 2 computes another window, where the diagonal ends at the last key.

        It replaces a side that is no limit, or not less than ``keys``, by ``keys``; a query sees all keys then only while
        ``queries <= keys + 1`` (mha_fwd and set_params_fprop in aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp).

        Args:
            queries: Queries of the longest sequence.
            keys: Keys of the longest.
        """
        is_replaced = self.right >= keys or (0 <= self.left < keys and self.right < 0)
        return queries > keys + 1 and is_replaced


@dataclass(frozen=True)
class Attention:
    """One attention, forward or backward; dynamic extents by the sizes it is measured at.

    Attributes:
        backward: Whether it is the gradient.
        batch: Sequences.
        heads: Heads of q.
        kv_heads: Heads of k and v; divides ``heads``.
        queries: Sq, or with varlen Tq, all sequences together.
        keys: Sk, or Tk.
        head_dim: D.
        value_dim: Dv.
        scale: Factor of q @ k.T.
        mask: Which keys a query sees.
        softcap: Scores become softcap * tanh(score / softcap) before the bias; 0 for no cap.
        operands: Names of the operands, in their order.
        dtype: Type of q, k and v without ``torch.``.
    """

    backward: bool
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int
    scale: float
    mask: Mask
    softcap: float
    operands: tuple[str, ...]
    dtype: str

    @property
    def varlen(self) -> bool:
        """Return whether sequences of different lengths are concatenated."""
        return "cu_q" in self.operands

    @property
    def biased(self) -> bool:
        """Return whether a bias is added to the scores."""
        return "bias" in self.operands

    def index(self, name: str) -> int | None:
        """Return the index of an operand among the inputs, None if the call has no such operand."""
        return self.operands.index(name) if name in self.operands else None

    @property
    def written(self) -> str:
        """Return the type of out, and of gradients."""
        return "bfloat16" if self.dtype == NARROW else self.dtype

    @property
    def flops(self) -> int:
        """Return multiplications and additions of its matrix products: 2 forward, 5 backward.

        A causal mask halves them, as in the benchmarks of FlashAttention and Triton; a window changes
        nothing. The sequences of a varlen call are assumed to have equal lengths.
        """
        scores = self.heads * self.queries * self.keys
        scores = scores // self.batch if self.varlen else scores * self.batch
        by_d, by_dv = (3, 2) if self.backward else (1, 1)
        whole = 2 * scores * (by_d * self.head_dim + by_dv * self.value_dim)
        return whole // 2 if self.mask.right == 0 else whole


def arguments(
    *, scale: float, mask: Mask, softcap: float = 0.0, operands: tuple[str, ...]
) -> dict[str, Any]:
    """Return the keyword arguments of a library kernel, and so of a `Problem`, for an attention."""
    return {"scale": scale, "softcap": softcap, "operands": ",".join(operands), **asdict(mask)}


def operands_of(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of an attention's operands, in their order.

    Args:
        arguments: The keyword arguments of a library kernel, or those of a problem or a record, whose texts are in quotes.

    Raises:
        KeyError: They are not those of an attention.
    """
    return tuple(str(arguments["operands"]).strip("'\"").split(","))


def attention_of(problem: Problem) -> Attention:
    """Return the attention of a problem.

    Raises:
        ValueError: The problem is no attention.
    """
    if problem.op not in DIRECTIONS:
        raise ValueError(f"{problem.op} is no attention; those are {FORWARD} and {BACKWARD}")
    arguments = {name: ast.literal_eval(text) for name, text in problem.arguments}
    names = operands_of(arguments)
    operands = dict(zip(names, problem.inputs, strict=True))
    q, k, v = operands["q"], operands["k"], operands["v"]
    varlen = "cu_q" in operands
    return Attention(
        backward=problem.op == BACKWARD,
        batch=operands["cu_q"].size[0] - 1 if varlen else q.size[0],
        heads=q.size[1],
        kv_heads=k.size[1],
        queries=q.size[0] if varlen else q.size[2],
        keys=k.size[0] if varlen else k.size[2],
        head_dim=q.size[-1],
        value_dim=v.size[-1],
        scale=float(arguments["scale"]),
        mask=Mask(int(arguments["left"]), int(arguments["right"]), bool(arguments["bottom_right"])),
        softcap=float(arguments["softcap"]),
        operands=names,
        dtype=q.dtype,
    )
