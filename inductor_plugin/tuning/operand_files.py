"""Operands whose values matter, on their way to the benchmark worker as raw bytes in files.

The files live in memory (``/dev/shm``) where the machine has it, readable by this user alone, and
are removed when the graph that needed them is compiled. What a killed process left there goes when
the next one starts to compile.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.tuning import scratch

_SHM = Path("/dev/shm")
_SPARE_BYTES = 1 << 30
_SWEPT: set[Path] = set()
"""Where this process has looked for what others left: once is enough."""


class OperandFiles:
    """The operand files of one graph."""

    def __init__(self) -> None:
        """Make nothing yet; the first one of a process removes what killed ones left in memory."""
        _sweep(_SHM)
        self._folders: dict[Path, Path] = {}
        self._removals: list[Callable[[], object]] = []
        self._kept: dict[str, TensorSpec] = {}

    def keep(self, name: str, tensor: torch.Tensor) -> TensorSpec:
        """Write a dense CPU tensor and return its operand; a name is written once."""
        if name not in self._kept:
            self._kept[name] = self._write(tensor.detach().cpu())
        return self._kept[name]

    def keep_new(self, tensor: torch.Tensor) -> TensorSpec:
        """Write a dense CPU tensor that is made for one candidate alone, and return its operand."""
        return self.keep(f"unnamed {len(self._kept)}", tensor)

    def keep_packed(self, name: str, dense: torch.Tensor, packing: str, batch: int) -> TensorSpec:
        """Write the plain weight behind an opaque packed one; the worker packs it again."""
        plain = self.keep(f"{name} (dense)", dense)
        return replace(plain, packing=packing, packing_batch=batch)

    def remove(self) -> None:
        """Remove the files; the operands made from them are void."""
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._folders.clear()
        self._kept.clear()

    def _write(self, plain: torch.Tensor) -> TensorSpec:
        storage = plain.untyped_storage()
        path = self._place(storage.nbytes()) / f"{len(self._kept)}.bin"
        with path.open("wb") as file:
            # Not by a mapped file: a full disk would end the process instead of raising.
            if storage.nbytes():
                file.write((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()))
        return TensorSpec(
            size=tuple(plain.size()),
            stride=tuple(plain.stride()),
            dtype=str(plain.dtype).removeprefix("torch."),
            device="cpu",
            offset=int(plain.storage_offset()),
            file=str(path),
        )

    def _place(self, nbytes: int) -> Path:
        roomy = _SHM.is_dir() and shutil.disk_usage(_SHM).free > nbytes + _SPARE_BYTES
        parent = _SHM if roomy else Path(tempfile.gettempdir())
        if parent not in self._folders:
            _sweep(parent)
            folder = scratch.make_folder(parent)
            # A compile that fails half-way removes nothing itself.
            self._removals.append(weakref.finalize(self, _remove, folder, os.getpid()))
            self._folders[parent] = folder
        return self._folders[parent]


def _sweep(parent: Path) -> None:
    """Remove what killed processes left; 0.2 ms beside twenty living folders."""
    if parent not in _SWEPT:
        _SWEPT.add(parent)
        scratch.sweep(parent)


def _remove(folder: Path, pid: int) -> None:
    """Remove a folder, unless this is a fork of the process it serves."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
