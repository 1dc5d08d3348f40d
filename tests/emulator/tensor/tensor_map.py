"""Tensor maps: what TMA knows of a tensor in global memory.

The 128 bytes are opaque in CUDA. Here they are the arguments of ``cuTensorMapEncodeTiled``, in the layout of
``struct Map`` in ``runtime/cudart.c``, of which each eighth byte lies in the same 16 bytes: each 16 bytes have a part of what
``tensormap.replace`` seldom writes, and some that are 0 in all maps, so that a map that was copied or cleared in part is none.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import CudaError, FaultError, UnmodelledError
from tests.emulator.memory.global_view import view_at
from tests.emulator.memory.memory import Memory
from tests.emulator.tensor.shared_operand import WIDE_PIECES, swizzled

SIZE = 128
MAGIC = 0x7E4507A9
LAYOUT = np.dtype(
    [
        ("address", "<u8"),
        ("stride", "<u8", 4),
        ("size", "<u4", 5),
        ("box", "<u2", 5),
        ("step", "u1", 5),
        ("type", "u1"),
        ("rank", "u1"),
        ("interleave", "u1"),
        ("swizzle", "u1"),
        ("fill", "u1"),
        ("rest", "u1", 4),
        ("magic", "<u4"),
        ("pad", "u1", 40),
    ]
)
_PARTS = 8
"""Parts of 16 bytes."""
ELEMENTS: list[str] = [
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bfloat16"),
    *("float32", "float32", "float32"),
]
"""Element of each ``CUtensorMapDataType``; the last three are float32 flushed to zero, tf32 and both."""

_OPERAND_SWIZZLE = {0: 0, 1: 3, 2: 2, 3: 1, 4: WIDE_PIECES}
"""``CUtensorMapSwizzle`` as the swizzle of a matrix descriptor; 4 is ``CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B``."""
_WIDTH = {0: 0, 1: 32, 2: 64, 3: 128, 4: 128}
_MOST_SWIZZLE = 6
"""Those that CUDA has; 5 and 6 are not known here."""
_MAP_ALIGNMENT, _BOX_ALIGNMENT = 64, 128
_MOST_BOX, _MOST_STEP = 256, 8


@dataclass(frozen=True)
class TensorMap:
    """A tensor and the boxes of it that are copied. Dimensions are in CUDA's order: the contiguous one first.

    Attributes:
        address: Of the first element.
        sizes: Elements of each dimension.
        strides: Bytes between neighbours along each dimension.
        box: Elements of a box along each dimension.
        element: Name of the type, ``bfloat16`` or one of numpy's.
        swizzle: ``CUtensorMapSwizzle``: 0 none, 1 of 32 bytes, 2 of 64, 3 of 128, 4 of 128 in pieces of 32.
        nan: Whether elements outside of the tensor are read as NaN, not as 0.
    """

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element: str
    swizzle: int
    nan: bool

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return 2 if self.element == "bfloat16" else np.dtype(self.element).itemsize

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory."""
        return int(np.prod(self.box)) * self.item

    @property
    def word(self) -> str:
        """The numpy type of an element's bits."""
        return f"uint{8 * self.item}"

    def window(self, position: tuple[int, ...]) -> tuple[Array, tuple[slice, ...]] | None:
        """Return the part of a box that is inside of the tensor, and its place in the box; None if none is.

        The arrays' dimensions are in numpy's order, the contiguous one last.
        """
        begin, shape, inside = self.address, list[int](), list[slice]()
        for at, extent, size, stride in zip(
            position, self.box, self.sizes, self.strides, strict=True
        ):
            low, high = max(at, 0), min(at + extent, size)
            if high <= low:
                return None
            begin += low * stride
            shape.append(high - low)
            inside.append(slice(low - at, high - at))
        kind = np.dtype(self.word).str
        view = view_at(begin, tuple(shape[::-1]), kind, self.strides[::-1])
        return view, tuple(inside[::-1])

    def check_window(self, view: Array, memory: Memory, *, written: bool = False) -> None:
        """Check the first and the last element of a window; all others lie between them.

        Raises:
            FaultError: One is not allowed.
        """
        first = int(view.ctypes.data)
        steps = zip(view.shape, view.strides, strict=True)
        last = first + sum((extent - 1) * stride for extent, stride in steps)
        memory.check_global(first, self.item, "TMA", written=written)
        memory.check_global(last, self.item, "TMA", written=written)

    def empty_box(self) -> Array:
        """Return a box of what is read outside of the tensor."""
        shape = self.box[::-1]
        if not self.nan:
            return np.zeros(shape, self.word)
        return np.full(shape, -1, f"int{8 * self.item}").view(self.word)

    def pieces(self, address: int) -> Array:
        """Return the places of a box's pieces of 16 bytes in shared memory, in units of 16 bytes.

        Raises:
            FaultError: The address does not fit the swizzle.
        """
        if address % _BOX_ALIGNMENT:
            raise FaultError(
                f"TMA at shared address {address:#x}, no multiple of {_BOX_ALIGNMENT}",
                CudaError.MISALIGNED_ADDRESS,
            )
        inner, width = self.box[0] * self.item, _WIDTH[self.swizzle]
        if width and inner > width:
            raise FaultError(f"a TMA box {inner} bytes wide, swizzled within {width}")
        if width and inner < width:
            raise UnmodelledError(f"a TMA box {inner} bytes wide, swizzled within {width}")
        addresses = address + 16 * np.arange(self.box_bytes // 16)
        return swizzled(addresses, _OPERAND_SWIZZLE[self.swizzle]) >> 4


def at(address: int) -> TensorMap:
    """Return the tensor map at an address of global (or parameter) memory.

    Raises:
        FaultError: There is none, or it says what the driver would have refused: kernels can change it.
    """
    if address % _MAP_ALIGNMENT:
        raise FaultError(
            f"the tensor map's address {address:#x} is no multiple of {_MAP_ALIGNMENT}",
            CudaError.MISALIGNED_ADDRESS,
        )
    raw: Any = _fields(np.frombuffer(ctypes.string_at(address, SIZE), np.uint8))[0]
    if raw["magic"] != MAGIC or raw["rest"].any() or raw["pad"].any():
        raise FaultError(f"there is no tensor map at {address:#x}", CudaError.ILLEGAL_INSTRUCTION)
    rank = int(raw["rank"])
    _check_fields(raw, rank)
    if raw["interleave"] or (raw["step"][:rank] != 1).any():
        raise UnmodelledError("a tensor map with interleaving, or with element strides")
    if raw["swizzle"] not in _WIDTH:
        raise UnmodelledError(f"a tensor map with swizzle {raw['swizzle']}")
    element = ELEMENTS[int(raw["type"])]
    item = 2 if element == "bfloat16" else np.dtype(element).itemsize
    return TensorMap(
        int(raw["address"]),
        tuple(int(size) for size in raw["size"][:rank]),
        (item, *(int(stride) for stride in raw["stride"][: rank - 1])),
        tuple(int(extent) for extent in raw["box"][:rank]),
        element,
        int(raw["swizzle"]),
        bool(raw["fill"]),
    )


def _check_fields(raw: Any, rank: int) -> None:
    """Check what ``cuTensorMapEncodeTiled`` checks on the host, of the fields that ``tensormap.replace`` writes.

    Raises:
        FaultError: A field has a value that no map can have.
    """
    strides, sizes, box = raw["stride"][: rank - 1], raw["size"][:rank], raw["box"][:rank]
    steps = raw["step"][:rank]
    wrong = {
        "rank": not 1 <= rank <= len(raw["size"]),
        "address": raw["address"] == 0 or raw["address"] % 16 != 0,
        "stride": ((strides % 16 != 0) | (strides >= 1 << 40)).any(),
        "size": (sizes == 0).any(),
        "box": ((box < 1) | (box > _MOST_BOX)).any(),
        "step": ((steps < 1) | (steps > _MOST_STEP)).any(),
        "swizzle": raw["swizzle"] > _MOST_SWIZZLE,
        "type": raw["type"] >= len(ELEMENTS),
    }
    for field, is_wrong in wrong.items():
        if is_wrong:
            raise FaultError(
                f"a tensor map with a {field} that cuTensorMapEncodeTiled refuses: {raw[field]}",
                CudaError.ILLEGAL_INSTRUCTION,
            )


def encoded(tensor: TensorMap) -> bytes:
    """Return a tensor map's bytes, the opposite of `at`."""
    raw = np.zeros(1, LAYOUT)
    rank = len(tensor.sizes)
    raw["address"], raw["rank"], raw["magic"] = tensor.address, rank, MAGIC
    raw["type"], raw["swizzle"] = ELEMENTS.index(tensor.element), tensor.swizzle
    raw["fill"] = int(tensor.nan)
    raw["size"][0, :rank], raw["box"][0, :rank], raw["step"][0, :rank] = tensor.sizes, tensor.box, 1
    raw["stride"][0, : rank - 1] = tensor.strides[1:]
    return _bytes(raw).tobytes()


def _fields(raw: Array) -> Any:
    """Return a map's bytes by their names, as an array of `LAYOUT`; a copy."""
    return np.ascontiguousarray(raw.reshape(_PARTS, -1).T).ravel().view(LAYOUT)


def _bytes(fields: Any) -> Array:
    """Return the bytes of a map, the opposite of `_fields`."""
    return np.ascontiguousarray(fields.view(np.uint8).reshape(-1, _PARTS).T).ravel()


_FIELDS = {
    "global_address": "address",
    "global_dim": "size",
    "global_stride": "stride",
    "box_dim": "box",
    "element_stride": "step",
    "elemtype": "type",
    "interleave_layout": "interleave",
    "swizzle_mode": "swizzle",
    "fill_mode": "fill",
}
_PTX_TYPES = {8: 10, 9: 8, 10: 9}
"""``tensormap.replace`` numbers bfloat16 and both float32 otherwise than the driver."""


_MOST_PTX_SWIZZLE = 3
"""``tensormap.replace`` has the size of the pieces that are exchanged in another field than the width; its 4 is 96 bytes."""


def replace(raw: Array, field: str, place: int, value: int) -> None:
    """Replace one field of a map's bytes (``tensormap.replace``).

    Raises:
        UnmodelledError: The field, or its value, is not known.
    """
    view = _fields(raw)
    if field == "swizzle_mode" and (
        value > _MOST_PTX_SWIZZLE or view["swizzle"][0] > _MOST_PTX_SWIZZLE
    ):
        raise UnmodelledError(
            f"tensormap.replace.swizzle_mode of {int(view['swizzle'][0])} by {value}"
        )
    if field == "rank":
        view["rank"] = value + 1
    elif field == "elemtype":
        view["type"] = _PTX_TYPES.get(value, value)
    elif field in ("global_dim", "global_stride", "box_dim", "element_stride"):
        view[_FIELDS[field]][0, place] = value
    elif field in _FIELDS:
        view[_FIELDS[field]] = value
    else:
        raise UnmodelledError(f"the field {field} of a tensor map is not known")
    view["magic"] = MAGIC
    raw[:] = _bytes(view)
