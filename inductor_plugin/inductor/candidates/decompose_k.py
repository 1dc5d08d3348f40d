"""Inductor's decompose-K choices: which of its subgraphs they are, and which are worth measuring."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller

from inductor_plugin.config import Config
from inductor_plugin.cost.split_k import worthwhile
from inductor_plugin.problem import Problem

FAMILY = "decompose_k"

_NAME = re.compile(r"decompose_k_mm_(\d+)_split_\d+")


def parts_of(choice: Any) -> int | None:
    """Return into how many parts a choice cuts K, None for what is no decompose-K."""
    subgraph: Any = SubgraphChoiceCaller
    named = _NAME.fullmatch(choice.name) if isinstance(choice, subgraph) else None
    return int(named[1]) if named else None


def allowed(choices: list[Any], config: Config) -> tuple[list[Any], dict[str, str]]:
    """Return the choices without decompose-K where nobody wants it, and then why."""
    reason = None
    if not config.decompose_k:
        reason = "option decompose_k is off"
    elif torch.version.hip is not None:
        reason = "it is not offered on AMD GPUs"
    if reason is None or all(parts_of(one) is None for one in choices):
        return choices, {}
    return [one for one in choices if parts_of(one) is None], {FAMILY: reason}


def promising(choices: list[Any], problem: Problem) -> tuple[list[Any], dict[str, str]]:
    """Return the choices with the few decompose-K that may pay, and why there is none of them."""
    cuts = {parts: one for one in choices if (parts := parts_of(one)) is not None}
    if not cuts:
        return choices, {}
    others = [one for one in choices if parts_of(one) is None]
    found = worthwhile(problem, tuple(cuts))
    if not found.parts and not others:
        return choices, {}
    kept = [cuts[parts] for parts in found.parts]
    return _in_place(choices, others, kept), {} if kept else {FAMILY: found.reason}


def _in_place(choices: Sequence[Any], others: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
    """Return the other choices with the kept ones where decompose-K was offered first."""
    first = next(i for i, one in enumerate(choices) if parts_of(one) is not None)
    return [*others[:first], *kept, *others[first:]]
