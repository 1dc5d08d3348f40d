"""Operands whose values matter, sent to the benchmark worker as raw bytes in files.

The files are in memory (``/dev/shm``) where the machine has it, readable only by this user, and
are removed when the graph that needs them is compiled. Files left by a killed process are removed
when the next process starts to compile.
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
from inductor_plugin.problem import dtype_name
from inductor_plugin.tuning import scratch

_SHM = Path("/dev/shm")
_SPARE_BYTES = 1 << 30


class OperandFiles:
    """The operand files of one graph."""

    def __init__(self) -> None:
        """Create nothing yet; the first instance of a process removes the files of killed processes."""
        scratch.sweep_once(_SHM)
        self._folders: dict[Path, Path] = {}
        self._removals: list[Callable[[], object]] = []
        self._kept: dict[str, TensorSpec] = {}

    def keep(self, name: str, tensor: torch.Tensor) -> TensorSpec:
        """Write a dense CPU tensor and return its operand; a name is written once."""
        if name not in self._kept:
            self._kept[name] = self._write(tensor.detach().cpu())
        return self._kept[name]

    def keep_new(self, tensor: torch.Tensor) -> TensorSpec:
        """Write a dense CPU tensor used by a single candidate, and return its operand."""
        return self.keep(f"unnamed {len(self._kept)}", tensor)

    def keep_packed(self, name: str, dense: torch.Tensor, packing: str, batch: int) -> TensorSpec:
        """Write the plain weight of an opaque packed weight; the worker packs it again."""
        plain = self.keep(f"{name} (dense)", dense)
        return replace(plain, packing=packing, packing_batch=batch)

    def remove(self) -> None:
        """Remove the files; operands that refer to them are no longer valid."""
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._folders.clear()
        self._kept.clear()

    def _write(self, plain: torch.Tensor) -> TensorSpec:
        storage = plain.untyped_storage()
        path = self._place(storage.nbytes()) / f"{len(self._kept)}.bin"
        with path.open("wb") as file:
            # Not through a mapped file: a full disk would kill the process instead of raising.
            if storage.nbytes():
                file.write((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()))
        return TensorSpec(
            size=tuple(plain.size()),
            stride=tuple(plain.stride()),
            dtype=dtype_name(plain.dtype),
            device="cpu",
            offset=int(plain.storage_offset()),
            file=str(path),
        )

    def _place(self, nbytes: int) -> Path:
        roomy = _SHM.is_dir() and shutil.disk_usage(_SHM).free > nbytes + _SPARE_BYTES
        parent = _SHM if roomy else Path(tempfile.gettempdir())
        if parent not in self._folders:
            scratch.sweep_once(parent)
            folder = scratch.make_folder(parent)
            # A compile that fails does not call `remove`.
            self._removals.append(weakref.finalize(self, _remove, folder, os.getpid()))
            self._folders[parent] = folder
        return self._folders[parent]


def _remove(folder: Path, pid: int) -> None:
    """Remove a folder, unless this is a fork of the process it serves."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
