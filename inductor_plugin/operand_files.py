"""Operands whose values matter, on their way to the benchmark worker as raw bytes in files.

The files live in memory (``/dev/shm``) where the machine has it, readable by this user alone, and
are removed when the graph that needed them is compiled.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from inductor_plugin.jobs import Tensor

_SHM = Path("/dev/shm")
_SPARE_BYTES = 1 << 30


class OperandFiles:
    """The operand files of one graph."""

    def __init__(self) -> None:
        """Make nothing yet."""
        self._folder: Path | None = None
        self._kept: dict[str, Tensor] = {}

    def keep(self, name: str, tensor: torch.Tensor) -> Tensor:
        """Write a dense CPU tensor and return its operand; a name is written once."""
        if name not in self._kept:
            self._kept[name] = self._write(tensor.detach().cpu())
        return self._kept[name]

    def keep_new(self, tensor: torch.Tensor) -> Tensor:
        """Write a dense CPU tensor that is made for one candidate alone, and return its operand."""
        return self.keep(f"unnamed {len(self._kept)}", tensor)

    def keep_packed(self, name: str, dense: torch.Tensor, packing: str, batch: int) -> Tensor:
        """Write the plain weight behind an opaque packed one; the worker packs it again."""
        plain = self.keep(f"{name} (dense)", dense)
        return replace(plain, packing=packing, packing_batch=batch)

    def remove(self) -> None:
        """Remove the files; the operands made from them are void."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._kept.clear()

    def _write(self, plain: torch.Tensor) -> Tensor:
        nbytes = plain.untyped_storage().nbytes()
        path = self._place(nbytes) / f"{len(self._kept)}.bin"
        if nbytes:
            mapped = torch.from_file(str(path), shared=True, size=nbytes, dtype=torch.uint8)
            mapped.copy_(torch.empty(0, dtype=torch.uint8).set_(plain.untyped_storage()))
        else:
            path.touch()
        return Tensor(
            size=tuple(plain.size()),
            stride=tuple(plain.stride()),
            dtype=str(plain.dtype).removeprefix("torch."),
            device="cpu",
            offset=int(plain.storage_offset()),
            file=str(path),
        )

    def _place(self, nbytes: int) -> Path:
        if self._folder is None:
            roomy = _SHM.is_dir() and shutil.disk_usage(_SHM).free > nbytes + _SPARE_BYTES
            self._folder = Path(
                tempfile.mkdtemp(prefix="inductor-plugin-", dir=str(_SHM) if roomy else None)
            )
        return self._folder
