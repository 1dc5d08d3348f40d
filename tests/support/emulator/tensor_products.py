"""Kernels that multiply with ``tcgen05.mma``: one block, or a pair of blocks that compute half of the rows each.

Where D lies in tensor memory is written as the PTX ISA describes it ("Data path layout organization").
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.machine.schedule import EAGER, Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.snippet import run
from tests.support.emulator.matrices import values
from tests.support.emulator.shared_memory import (
    COPY,
    IMAGE,
    LAYOUTS,
    descriptor,
    image,
    names,
    store,
)

_BEGIN = """
  .reg .b32 %d<COUNT>; .reg .b32 %tmem, %a_tmem, %bar, %warp, %lanes, %rank; .reg .pred %one, %done, %first;
  .reg .b64 %image, %part; .reg .b16 %mask;
  .shared .align 8 .b64 mbar; .shared .align 4 .b32 where;
  mov.u32 %bar, mbar; mov.u32 %tid, %tid.x; setp.eq.u32 %one, %tid, 0; shr.u32 %warp, %tid, 5;
  setp.eq.u32 %first, %warp, 0; mov.u32 %rank, %cluster_ctarank; mov.u16 %mask, 3;
  mul.wide.u32 %image, %rank, IMAGE; mul.wide.u32 %part, %rank, PART;
  @%one mbarrier.init.shared::cta.b64 [%bar], 1;
  @%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], ALLOCATED;
  bar.sync 0;
  ld.shared.b32 %tmem, [where]; add.u32 %a_tmem, %tmem, WIDTH;
  setp.ne.u32 %keep, 0, 0;
"""
_INTO_TENSOR_MEMORY = """
  .reg .b32 %a<8>; ld.param.u64 %from, [p0]; mad.wide.u32 %from, %tid, 32, %from;
  ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%from]; ld.global.v4.b32 {%a4, %a5, %a6, %a7}, [%from+16];
  shl.b32 %lanes, %warp, 21; add.u32 %lanes, %lanes, %a_tmem;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%lanes], {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7};
  tcgen05.wait::st.sync.aligned; bar.sync 0;
"""
_TOGETHER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%bar];"
_COMMIT_OF_A_PAIR = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar], %mask;"
_CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
_RESULTS = {"f16": (0, np.float16), "f32": (1, np.float32), "s32": (2, np.int32)}
_LAYOUTS = {0: 0, 1: 2, 2: 4, 3: 6, 4: 1}
"""How a descriptor of sm_100 numbers the swizzles."""


@dataclass(frozen=True)
class Product:
    """What is multiplied: [rows, k] by [columns, k]; A is in tensor memory if it has no layout.

    Of a ``pair`` each block has half of the rows of both.
    """

    kind: str
    a: str
    b: str
    k: int
    rows: int = 128
    columns: int = 32
    d: str = "f32"
    layout_a: str = "128 bytes"
    layout_b: str = "128 bytes"
    pair: bool = False

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A and B."""
        return values((self.rows, self.k), self.a, 1), values((self.columns, self.k), self.b, 2)

    @property
    def blocks(self) -> int:
        """How many blocks compute it."""
        return 2 if self.pair else 1

    @property
    def _is_folded(self) -> bool:
        """Whether 64 rows of a block have half of the columns in lanes 64 and up."""
        return self.pair and self.rows == 128

    @property
    def width(self) -> int:
        """Columns of tensor memory that D takes."""
        return self.columns // 2 if self._is_folded else self.columns

    @property
    def arrays(self) -> list[Array]:
        """The kernel's arguments: what is copied to shared memory of each block, and the result."""
        left, right = (each.chunk(self.blocks) for each in self.operands)
        result = np.zeros((self.blocks, 128, self.width), np.uint32)
        first = np.concatenate([self._image_of_a(part) for part in left])
        return [
            first,
            np.concatenate([image(part, LAYOUTS[self.layout_b]) for part in right]),
            result,
        ]

    def _image_of_a(self, part: torch.Tensor) -> Array:
        if self.layout_a:
            return image(part, LAYOUTS[self.layout_a])
        if self._is_folded:  # each half of the lanes multiplies its own columns
            part = torch.cat([part, part])
        room = np.zeros(IMAGE, np.uint8)
        raw = part.contiguous().view(torch.uint8).numpy().reshape(-1)
        room[: raw.size] = raw
        return room

    @property
    def body(self) -> str:
        """The kernel: it multiplies and gives each thread's lane of tensor memory."""
        turned_a = bool(self.layout_a) and LAYOUTS[self.layout_a].turned
        turned_b = LAYOUTS[self.layout_b].turned
        instruction = _RESULTS[self.d][0] << 4 | _CODES[self.a] << 7 | _CODES[self.b] << 10
        instruction |= turned_a << 15 | turned_b << 16
        instruction |= self.columns // 8 << 17 | self.rows // 16 << 24
        left = "%da" if self.layout_a else "[%a_tmem]"
        allocated = max(64, 1 << (self.width + 7).bit_length())  # D, and A behind it
        begin = _BEGIN
        for name, value in (
            ("COUNT", self.width),
            ("IMAGE", IMAGE),
            ("PART", 512 * self.width),
            ("ALLOCATED", allocated),
            ("WIDTH", self.width),
        ):
            begin = begin.replace(name, str(value))
        loads = [
            f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {names(32, first)}, [%lanes{f'+{first}' if first else ''}];"
            for first in range(0, self.width, 32)
        ]
        lines = [
            COPY.replace("mov.u32 %tid, %tid.x;", begin),
            self._descriptor("%da", "%left", self.layout_a)
            if self.layout_a
            else _INTO_TENSOR_MEMORY,
            self._descriptor("%db", "%right", self.layout_b),
            f"@%one tcgen05.mma.cta_group::1.kind::{self.kind} [%tmem], {left}, %db, {instruction:#x}, %keep;",
            f"@%one {COMMIT}",
            "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT;",
            "shl.b32 %lanes, %warp, 21; add.u32 %lanes, %lanes, %tmem;",
            *loads,
            "tcgen05.wait::ld.sync.aligned;",
            f"bar.sync 0; @%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, {allocated};",
            store(self.width),
        ]
        return _of_a_pair("\n".join(lines)) if self.pair else "\n".join(lines)

    def _descriptor(self, register: str, address: str, name: str) -> str:
        layout = LAYOUTS[name]
        version = 1 << 46
        return descriptor(register, address, layout, version | _LAYOUTS[layout.swizzle] << 61)

    def of(self, result: Array) -> torch.Tensor:
        """Return D [rows, columns] from the lanes of tensor memory; f16 lies in the lower half of each column."""
        dtype = _RESULTS[self.d][1]
        words = result.astype(np.uint16) if self.d == "f16" else result
        got = torch.from_numpy(words.view(dtype)).double()
        if self._is_folded:
            return torch.cat([got[:, :64], got[:, 64:]], 2).reshape(self.rows, self.columns)
        if self.rows == 64:  # the first 16 lanes of each warp's 32
            return got.reshape(4, 32, self.width)[:, :16].reshape(64, self.width)
        return got.reshape(self.rows, self.width)

    def run(self, body: str, schedule: Schedule = EAGER) -> tuple[torch.Tensor, Launch]:
        """Run a kernel, and return D and the launch."""
        arrays, blocks = self.arrays, self.blocks
        done = run(
            body,
            arrays,
            block=128,
            grid=blocks,
            cluster=blocks,
            target="sm_100a",
            schedule=schedule,
        )
        return self.of(arrays[2]), done

    def is_right(self, got: torch.Tensor) -> bool:
        """Return whether D is the product of A and B."""
        left, right = self.operands
        tolerance = 5e-3 if self.d == "f16" else 1e-5
        wanted = left.double() @ right.double().T
        return torch.allclose(got, wanted, rtol=tolerance, atol=tolerance * 10)


def _of_a_pair(body: str) -> str:
    """Return the kernel for two blocks: each copies its own half, and the first one multiplies for both."""
    for place, moved in (("[p0];", "%image"), ("[p1];", "%image"), ("[p2];", "%part")):
        body = body.replace(place, f"{place} add.u64 %from, %from, {moved};")
    lead = ".reg .pred %lead; setp.eq.and.u32 %lead, %rank, 0, %one;"
    body = body.replace("@%one tcgen05.mma", f"{_TOGETHER} {lead} @%lead tcgen05.mma")
    body = body.replace(f"@%one {COMMIT}", f"@%lead {_COMMIT_OF_A_PAIR}")
    body = body.replace("bar.sync 0; @%first tcgen05.d", f"{_TOGETHER} @%first tcgen05.d")
    return body.replace("cta_group::1", "cta_group::2")
