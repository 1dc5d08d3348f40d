"""Whole storages of tensors before a generated kernel runs, padding included, and what it changed of them besides its outputs."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable

import torch


class Storages:
    """Bytes of the storages of tensors, as they were when each was added."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Keep a tensor's storage, all of it, and a copy."""
        whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        self._kept[whole.data_ptr()] = whole, whole.clone()

    def changed(self, outputs: Iterable[torch.Tensor]) -> int:
        """Return how many bytes are others now, without those of elements of outputs."""
        changed = {address: now != before for address, (now, before) in self._kept.items()}
        for output in outputs:
            mask = changed.get(output.untyped_storage().data_ptr())
            if mask is not None:
                _leave_out(mask, output)
        return sum(int(mask.sum()) for mask in changed.values())


def _leave_out(mask: torch.Tensor, output: torch.Tensor) -> None:
    """Clear a mask of a storage's bytes where they are elements of a tensor."""
    item = output.element_size()
    step = tuple(stride * item for stride in output.stride())
    mask.as_strided((*output.shape, item), (*step, 1), output.storage_offset() * item).zero_()
