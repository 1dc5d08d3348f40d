"""Inductor's decompose-K choices: how they are recognized, and which are worth measuring."""

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
    """Return into how many parts a choice splits K, None if it is not a decompose-K choice."""
    subgraph: Any = SubgraphChoiceCaller
    match = _NAME.fullmatch(choice.name) if isinstance(choice, subgraph) else None
    return int(match[1]) if match else None


def allowed(choices: list[Any], config: Config) -> tuple[list[Any], dict[str, str]]:
    """Return the choices, without decompose-K where it is off, and then why."""
    reason = None
    if not config.decompose_k:
        reason = "option decompose_k is off"
    elif torch.version.hip is not None:
        reason = "it is not offered on AMD GPUs"
    if reason is None or all(parts_of(choice) is None for choice in choices):
        return choices, {}
    return [choice for choice in choices if parts_of(choice) is None], {FAMILY: reason}


def promising(choices: list[Any], problem: Problem) -> tuple[list[Any], dict[str, str]]:
    """Return the choices with only the promising decompose-K choices, and why if there are none."""
    by_parts = {parts: choice for choice in choices if (parts := parts_of(choice)) is not None}
    if not by_parts:
        return choices, {}
    others = [choice for choice in choices if parts_of(choice) is None]
    splits = worthwhile(problem, tuple(by_parts))
    if not splits.parts and not others:
        return choices, {}
    kept = [by_parts[parts] for parts in splits.parts]
    return _in_place(choices, others, kept), {} if kept else {FAMILY: splits.reason}


def _in_place(choices: Sequence[Any], others: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
    """Return the other choices with the kept ones inserted at the first decompose-K choice."""
    first = next(i for i, choice in enumerate(choices) if parts_of(choice) is not None)
    return [*others[:first], *kept, *others[first:]]
