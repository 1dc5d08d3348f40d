"""Where sequences begin in a measured varlen call: random numbers would send a kernel out of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inductor_plugin import compat


def lengths(tokens: Any, longest: Any) -> Callable[[Any], torch.Tensor]:
    """Return what makes the ends of sequences for a node: one as long as the call says, the rest alike.

    A call that says no more than that none is longer than all together is measured with sequences of
    one length: one that has all tokens, and the rest none, is what nobody packs sequences for.

    Args:
        tokens: Tokens of all sequences together.
        longest: Tokens of the longest one, or what it cannot be longer than.
    """

    def generate(node: Any) -> torch.Tensor:
        count, total, most = compat.hints([node.get_size()[0] - 1, tokens, longest])
        ends = torch.tensor([0, *_ends(count, total, most)], dtype=torch.int32)
        return ends.to(node.get_device())

    return generate


def _ends(count: int, total: int, most: int) -> list[int]:
    """Return the ends of ``count`` sequences of ``total`` tokens, the first of them ``most`` long.

    Where ``most`` is no less than ``total``, they are alike.
    """
    if most >= total:
        return [total * (i + 1) // count for i in range(count)]
    first, others, left = most, count - 1, total - most
    return [
        min(first + (left * i // others if others else 0), first + most * i) for i in range(count)
    ]
