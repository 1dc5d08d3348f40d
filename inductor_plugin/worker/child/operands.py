"""Operands in the benchmark worker: values from a seed or a file, outputs between guard bytes."""

from __future__ import annotations

import functools
import stat
from collections.abc import Iterable
from pathlib import Path

import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem.strides import storage_elements
from inductor_plugin.worker.child.magnitude import runs
from inductor_plugin.worker.devices.lookup import device_of

ZONE_BYTES = (64 << 10, 8 << 20)
"""Minimum and maximum guard bytes on each side of an output."""
ZONE_ROWS = 128
"""A tile without bounds checks writes up to this many rows too far."""
_ZONE_BYTE = 0xA5
_ZONE_WORD = int.from_bytes(bytes([_ZONE_BYTE] * 8), "little", signed=True)
NOT_A_NUMBER = 0xFF
"""Byte of NaN in every float format but fnuz; -1 in the integers, True in truth values."""
_COLUMNS, _STEP = 1024, 0x9E3779B97F4A7C15 - (1 << 64)
"""Words in a row of a checksum; a factor that spreads the places over all 64 bits (Knuth, 6.4)."""
DRAWN = 1 << 24
"""Random numbers that are drawn together: 64 MiB in float32. Other parts would be other numbers on a GPU."""
_FINITE = 0x4B
"""Byte of a finite number in every format: 1.3e7 in float32 and bfloat16, 14.6 in float16, 75 in int8."""


class GuardedOutput:
    """An output inside a larger buffer, with guard bytes on both sides and a fill pattern inside.

    The elements of the buffer between those of the output (the padding of rows, the other parts of a concatenation)
    keep the pattern.
    """

    def __init__(self, spec: TensorSpec) -> None:
        dtype = dtype_of(spec)
        payload = -(-elements_of(spec) * dtype.itemsize // 64) * 64
        row_bytes = max([0, *spec.stride]) * dtype.itemsize
        zone = min(max(ZONE_ROWS * row_bytes, ZONE_BYTES[0]), ZONE_BYTES[1])
        self._zone = -(-zone // 4096) * 4096
        self._end = self._zone + payload
        self._buffer = torch.empty(self._end + self._zone, dtype=torch.uint8, device=spec.device)
        self._buffer.fill_(_ZONE_BYTE)
        self._pattern = NOT_A_NUMBER
        self._payload = self._buffer[self._zone : self._end]
        self._payload.fill_(self._pattern)
        self._spec = spec
        self.tensor = torch.as_strided(
            self._buffer.view(dtype),
            spec.size,
            spec.stride,
            self._zone // dtype.itemsize + spec.offset,
        )

    def refill(self) -> None:
        """Overwrite the output, NaN at first, with numbers that a kernel may by mistake add to."""
        self._pattern = 0 if self.tensor.dtype == torch.bool else _FINITE
        self._payload.fill_(self._pattern)

    def seen_as(self, view: TensorSpec) -> torch.Tensor:
        """Return another view of the output's buffer."""
        values = self._buffer.view(dtype_of(view))
        start = self._zone // dtype_of(view).itemsize + view.offset
        return torch.as_strided(values, view.size, view.stride, start)

    def overrun(self) -> str | None:
        """Return how much was written outside the output, or None."""
        for where, zone in (
            ("before", self._buffer[: self._zone]),
            ("behind", self._buffer[self._end :]),
        ):
            if bool((zone.view(torch.int64) != _ZONE_WORD).any()):  # 100 times as fast as counting
                damaged = int((zone != _ZONE_BYTE).sum().item())
                return f"it wrote {damaged} bytes {where} its output"
        gaps = self._gaps
        if gaps is None:
            return None
        elements = self._payload.view(-1, self.tensor.element_size())
        damaged = int(((elements != self._pattern).any(-1) & gaps).sum().item())
        return f"it wrote {damaged} elements between those of its output" if damaged else None

    @functools.cached_property
    def _gaps(self) -> torch.Tensor | None:
        """Which elements of the payload are not the output's; None if there are none."""
        count = self._payload.numel() // self.tensor.element_size()
        if self.tensor.numel() == count:
            return None
        return ~covered(count, [self._spec], self.tensor.device)


def covered(elements: int, views: Iterable[TensorSpec], device: torch.device | str) -> torch.Tensor:
    """Return which elements of a storage are part of any of its views, as truth values."""
    mask = torch.zeros(elements, dtype=torch.bool, device=device)
    for view in views:
        torch.as_strided(mask, view.size, view.stride, view.offset).fill_(True)  # noqa: FBT003
    return mask


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the torch dtype of a specification."""
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no dtype {spec.dtype!r}")
    return dtype


def elements_of(spec: TensorSpec) -> int:
    """Return the number of elements of a tensor's storage."""
    return max(spec.storage, storage_elements(spec.size, spec.stride, spec.offset))


def checksum(tensor: torch.Tensor) -> int:
    """Return a number that depends on the bytes of a tensor's storage and on their places.

    0 for a packed tensor, which has no bytes to read.
    """
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return 0
    data = storage_bytes(tensor)
    whole = data.numel() // (8 * _COLUMNS) * 8 * _COLUMNS
    words = data[:whole].view(torch.int64).view(-1, _COLUMNS)
    sums = [data[whole:].to(torch.int64), words.sum(0), words.sum(1)]
    return sum(
        (index + 1) * int((part * _weights(part)).sum().item()) for index, part in enumerate(sums)
    )


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _weights(values: torch.Tensor) -> torch.Tensor:
    """Return odd numbers, another for each place: a sum with them changes where two values change places."""
    places = torch.arange(values.numel(), device=values.device, dtype=torch.int64)
    return (places * _STEP) | 1


def build(spec: TensorSpec, amplitude: float = 1.0) -> torch.Tensor:
    """Build the operand that a specification describes; random floats are multiplied by ``amplitude``."""
    storage = _from_file(spec) if spec.file is not None else _random(spec, amplitude)
    dense = torch.as_strided(storage, spec.size, spec.stride, spec.offset)
    if spec.packing is None:
        return dense
    if spec.packing == "mkldnn_linear":
        return torch.ops.mkldnn._reorder_linear_weight(dense, spec.packing_batch)
    if spec.packing == "mkl_linear":
        return torch.ops.mkl._mkl_reorder_linear_weight(dense, spec.packing_batch)
    if spec.packing == "onednn_qlinear":
        return torch.ops.onednn.qlinear_prepack(dense, [spec.packing_batch, spec.size[1]])
    known = "mkldnn_linear, mkl_linear and onednn_qlinear"
    raise ValueError(f"unknown packing {spec.packing!r}; known are {known}")


def _from_file(spec: TensorSpec) -> torch.Tensor:
    dtype, elements = dtype_of(spec), elements_of(spec)
    path, nbytes = Path(str(spec.file)), elements * dtype.itemsize
    status = path.stat()  # opening a named pipe would wait for a writer
    if not stat.S_ISREG(status.st_mode) or status.st_size < nbytes:
        raise ValueError(
            f"the operand file {path} is not a file of {nbytes} bytes; what was written for this "
            "compile has been replaced or cut, compile again"
        )
    mapped = torch.from_file(str(path), shared=False, size=nbytes, dtype=torch.uint8)
    return mapped.clone().view(dtype).to(spec.device)


def _random(spec: TensorSpec, amplitude: float) -> torch.Tensor:
    """Return normal floats or small integers; a seed gives the same values in every process.

    They are drawn in float32, or in int64, and rounded part by part: drawn at once they would take three times the
    memory of an operand in 16 bits, and nine times that of one in 8.
    """
    dtype, elements = dtype_of(spec), elements_of(spec)
    described = device_of(spec.device)
    where = spec.device if described is None or described.draws else "cpu"
    generator = torch.Generator(device=where).manual_seed(spec.seed)
    values = torch.empty(elements, dtype=dtype, device=spec.device)
    for part in runs(values, DRAWN):
        part.copy_(_drawn(spec, part.numel(), generator, amplitude))
    return values


def _drawn(
    spec: TensorSpec, count: int, generator: torch.Generator, amplitude: float
) -> torch.Tensor:
    """Return random numbers in the type they are drawn in, on the generator's device."""
    dtype, device = dtype_of(spec), generator.device
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        values = torch.randn(count, generator=generator, dtype=wide, device=device)
        if amplitude != 1.0:
            values *= amplitude
        return values.abs_() if spec.dtype == "float8_e8m0fnu" else values
    low, high = (0, 2) if dtype == torch.bool else (0, 8) if spec.dtype == "uint8" else (-8, 8)
    return torch.randint(low, high, (count,), generator=generator, device=device)
