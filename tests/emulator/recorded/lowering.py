"""Inductor's code for a GPU that is not there, and a recorded candidate of Triton's among those of today."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Protocol, TypeVar
from unittest import mock

import torch
from torch.utils import _triton  # pyright: ignore[reportMissingTypeStubs]

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.cache import Measured
from inductor_plugin.problem.target import Target

OTHER_SOURCE = "its source is another one than recorded, its configuration the same"
"""What is said where `like` finds no candidate of the recorded identity."""
_OF_DEVICE = re.compile(r"NUM_SMS=\d+,? ?")
"""What a configuration says of the GPU alone."""


class Offered(Protocol):
    """A candidate of today."""

    @property
    def candidate_id(self) -> str:
        """Its identity in records."""
        ...

    @property
    def name(self) -> str:
        """Its name in records."""
        ...

    @property
    def description(self) -> str:
        """Its configuration in words."""
        ...


_Offered = TypeVar("_Offered", bound=Offered)


@contextmanager
def lowering(target: Target, precision: str = "") -> Generator[None]:
    """Lower for a GPU that is not there; nothing is kept of it.

    Args:
        target: The GPU.
        precision: Torch's precision of products of float32 meanwhile; empty for the current one.
    """
    has_tma = target.capability[0] >= 9
    before = torch.get_float32_matmul_precision()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}),
        as_target(target),
        mock.patch.object(_triton, "has_triton_tma_device", return_value=has_tma),
    ):
        torch.set_float32_matmul_precision(precision or before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def like(entries: Iterable[_Offered], row: Measured) -> _Offered | None:
    """Return the candidate that is a recorded one: by identity, or else by name and configuration."""
    every = list(entries)
    same = [entry for entry in every if entry.candidate_id == row.candidate]
    alike = [
        entry
        for entry in every
        if entry.name == row.name
        and _OF_DEVICE.sub("", entry.description) == _OF_DEVICE.sub("", row.description)
    ]
    return next(iter([*same, *alike]), None)


def missing(row: Measured, target: Target, reason: str) -> str:
    """Return the message for a candidate that is not among those of today."""
    return (
        f"{row.candidate} ({row.description}) is not offered on {target.name} by this version of torch and of the plugin: "
        f"{reason}; name another candidate, or the GPU of the record"
    )
