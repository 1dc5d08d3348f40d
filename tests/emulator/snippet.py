"""Small kernels for tests: some instructions for each element of some arrays, or a whole body."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.machine.schedule import EAGER, Schedule
from tests.emulator.memory.allowed import Allowed
from tests.emulator.runtime.launch import Conditions, Launch, launch
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.threads.lanes import Shape

_THREADS = 256
_HEAD = ".version 8.7\n.target {target}\n.address_size 64\n"
_INDEX = """
  .reg .b32 %i<4>; .reg .b64 %at<32>;
  mov.u32 %i1, %tid.x; mov.u32 %i2, %ctaid.x; mov.u32 %i3, %ntid.x; mad.lo.u32 %i0, %i2, %i3, %i1;
"""
_NUMPY = {"b16": "uint16", "b32": "uint32", "b64": "uint64", "f32": "float32", "f64": "float64"}


def module(body: str, parameters: int, target: str = "sm_90a", before: str = "") -> str:
    """Return a module with one kernel ``k``, whose parameters are addresses ``p0``, ``p1`` ..."""
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    head = _HEAD.format(target=target)
    return f"{head}{before}\n.visible .entry k({listed})\n{{\n{body}\n  ret;\n}}\n"


def run(
    body: str,
    arrays: Sequence[Array],
    *,
    block: int = 32,
    grid: int = 1,
    cluster: int = 1,
    shared_bytes: int = 0,
    schedule: Schedule = EAGER,
    target: str = "sm_90a",
    before: str = "",
    limit_s: float = 20.0,
    only_read: bool = False,
) -> Launch:
    """Run a body with the addresses of arrays as parameters; it may touch nothing else, and with ``only_read`` write nothing."""
    loaded = LoadedModule(module(body, len(arrays), target, before))
    allowed = Allowed([]).with_arrays(arrays)
    if only_read:
        allowed = Allowed(
            [], [(each.ctypes.data, each.ctypes.data + each.nbytes) for each in arrays]
        )
    return launch(
        loaded,
        "k",
        Shape((grid, 1, 1), (block, 1, 1), (cluster, 1, 1)),
        [struct.pack("<Q", array.ctypes.data) for array in arrays],
        shared_bytes=shared_bytes,
        conditions=Conditions(schedule, allowed, limit_s=limit_s),
    )


def evaluate(
    text: str, operands: Mapping[str, tuple[str, Array]], results: Mapping[str, str]
) -> list[Array]:
    """Return what instructions compute for each element of arrays of one length.

    Args:
        text: The instructions; they name the operands and results as registers.
        operands: Type and values of each operand, by its register's name; values are taken as bits.
        results: Type of each result (``b16``, ``b32``, ``b64``, ``f32``, ``f64``).
    """
    count = len(next(iter(operands.values()))[1])
    length = -(-count // _THREADS) * _THREADS
    arrays: list[Array] = []
    lines = [_INDEX]
    for place, (name, (kind, values)) in enumerate(operands.items()):
        padded = np.resize(np.ascontiguousarray(values), length)
        arrays.append(padded)
        lines += [f"  .reg .{kind} {name};", *_address(place, padded.itemsize)]
        lines.append(f"  ld.global.b{8 * padded.itemsize} {name}, [%at{place}];")
    lines += [f"  .reg .{kind} {name};" for name, kind in results.items()]
    lines.append(text)
    for place, (name, kind) in enumerate(results.items(), len(operands)):
        output = np.zeros(length, _NUMPY[kind])
        arrays.append(output)
        lines += _address(place, output.itemsize)
        lines.append(f"  st.global.b{8 * output.itemsize} [%at{place}], {name};")
    run("\n".join(lines), arrays, block=_THREADS, grid=length // _THREADS)
    return [array[:count] for array in arrays[len(operands) :]]


def _address(place: int, size: int) -> list[str]:
    own = f"%at{place + 16}"
    return [
        f"  ld.param.u64 %at{place}, [p{place}];",
        f"  mul.wide.u32 {own}, %i0, {size}; add.s64 %at{place}, %at{place}, {own};",
    ]
