"""Operands in the benchmark worker: values from a seed or a file, outputs between guard bytes."""

from __future__ import annotations

import torch

from inductor_plugin.kernels.call import TensorSpec

ZONE_BYTES = (64 << 10, 8 << 20)
"""Least and most guard bytes on each side of an output."""
ZONE_ROWS = 128
"""A tile that forgets its bounds writes up to so many rows too far."""
_ZONE_BYTE = 0xA5
_ZONE_WORD = int.from_bytes(bytes([_ZONE_BYTE] * 8), "little", signed=True)
_UNWRITTEN_BYTE = 0xFF  # NaN in every float format but fnuz, -1 in the integers


class Guarded:
    """An output inside a larger buffer: guard bytes on both sides, and nothing written yet."""

    def __init__(self, spec: TensorSpec) -> None:
        dtype = dtype_of(spec)
        payload = -(-storage_elements(spec) * dtype.itemsize // 64) * 64
        row_bytes = max([0, *spec.stride]) * dtype.itemsize
        zone = min(max(ZONE_ROWS * row_bytes, ZONE_BYTES[0]), ZONE_BYTES[1])
        self._zone = -(-zone // 4096) * 4096
        self._end = self._zone + payload
        self._buffer = torch.empty(self._end + self._zone, dtype=torch.uint8, device=spec.device)
        self._buffer.fill_(_ZONE_BYTE)
        self._buffer[self._zone : self._end].fill_(_UNWRITTEN_BYTE)
        self.tensor = torch.as_strided(
            self._buffer.view(dtype),
            spec.size,
            spec.stride,
            self._zone // dtype.itemsize + spec.offset,
        )

    def seen_as(self, view: TensorSpec) -> torch.Tensor:
        """Return the output, or the buffer it is a view of, as another view of that buffer."""
        values = self._buffer.view(dtype_of(view))
        start = self._zone // dtype_of(view).itemsize + view.offset
        return torch.as_strided(values, view.size, view.stride, start)

    def overrun(self) -> str | None:
        """Return what was written outside, or None."""
        for where, zone in (
            ("before", self._buffer[: self._zone]),
            ("behind", self._buffer[self._end :]),
        ):
            if bool((zone.view(torch.int64) != _ZONE_WORD).any()):  # 100 times as fast as counting
                damaged = int((zone != _ZONE_BYTE).sum().item())
                return f"it wrote {damaged} bytes {where} its output"
        return None


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the torch type a specification names."""
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no dtype {spec.dtype!r}")
    return dtype


def storage_elements(spec: TensorSpec) -> int:
    """Return how many elements the storage of a tensor needs."""
    if 0 in spec.size:
        return max(spec.storage, spec.offset)
    pairs = zip(spec.size, spec.stride, strict=True)
    return max(spec.storage, spec.offset + 1 + sum((size - 1) * stride for size, stride in pairs))


def build(spec: TensorSpec) -> torch.Tensor:
    """Return the operand a specification describes."""
    storage = _from_file(spec) if spec.file is not None else _random(spec)
    dense = torch.as_strided(storage, spec.size, spec.stride, spec.offset)
    if spec.packing is None:
        return dense
    if spec.packing == "mkldnn_linear":
        return torch.ops.mkldnn._reorder_linear_weight(dense, spec.packing_batch)
    if spec.packing == "mkl_linear":
        return torch.ops.mkl._mkl_reorder_linear_weight(dense, spec.packing_batch)
    raise ValueError(f"unknown packing {spec.packing!r}; known are mkldnn_linear and mkl_linear")


def _from_file(spec: TensorSpec) -> torch.Tensor:
    dtype, elements = dtype_of(spec), storage_elements(spec)
    mapped = torch.from_file(
        str(spec.file), shared=False, size=elements * dtype.itemsize, dtype=torch.uint8
    )
    return mapped.clone().view(dtype).to(spec.device)


def _random(spec: TensorSpec) -> torch.Tensor:
    """Return normal floats or small integers; a seed gives the same values in every process."""
    dtype, elements = dtype_of(spec), storage_elements(spec)
    generator = torch.Generator(device=spec.device).manual_seed(spec.seed)
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.complex64 if dtype.is_complex else torch.float32
        values = torch.randn(elements, generator=generator, dtype=drawn, device=spec.device)
        return (values.abs() if spec.dtype == "float8_e8m0fnu" else values).to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (0, 8) if spec.dtype == "uint8" else (-8, 8)
    values = torch.randint(low, high, (elements,), generator=generator, device=spec.device)
    return values.to(dtype)
