"""What Inductor generates around Triton kernels, run with the kernels' PTX on emulated GPUs.

The generated module is unchanged; ``kernel.run`` compiles for the GPU's architecture and emulates the launch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import functools
import struct
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from inductor_plugin.problem.target import Target
from tests.emulator.machine.schedule import Schedule
from tests.emulator.memory.allowed import Allowed
from tests.emulator.runtime.launch import Conditions, Launch, launch
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.threads.lanes import Shape
from tests.support.triton import interpreter

_FORMATS = {
    "i1": "<B",
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "fp64": "<d",
}
_SCRATCH_ALIGNMENT = 128
_AFTER = 1 << 12
"""Bytes behind a tensor's storage that may be read: padding that loads without a mask reach."""


@dataclass(frozen=True)
class _Compiled:
    """What Triton makes of a generated kernel for an architecture.

    Attributes:
        module: The PTX, parsed.
        signature: Types of the arguments by name.
        shared: Bytes of shared memory of a block.
        scratch: Bytes of global memory of a program.
    """

    module: LoadedModule
    signature: dict[str, str]
    shared: int
    scratch: int


@functools.lru_cache(maxsize=8)
def _compiled(source: str, capability: tuple[int, int]) -> _Compiled:
    """Compile a kernel; those of the last graphs are kept, since each runs in several schedules."""
    import triton  # heavy, and only these tests need it
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")
        function, facts = interpreter.function_of(source, Path(folder))
        meta = facts["triton_meta"]
        names: list[str] = function.arg_names
        signature = {name: meta["signature"][name] for name in names}
        constants = {(names.index(name),): value for name, value in meta["constants"].items()}
        kernel = triton.compile(
            ASTSource(
                fn=function, signature=signature, constexprs=constants, attrs=meta["configs"][0]
            ),
            target=GPUTarget("cuda", capability[0] * 10 + capability[1], 32),
            options={"num_warps": facts["num_warps"], "num_stages": facts["num_stages"]},
        )
    metadata: Any = kernel.metadata
    scratch = int(getattr(metadata, "global_scratch_size", 0) or 0)
    module = LoadedModule(str(kernel.asm["ptx"]))
    return _Compiled(module, signature, int(metadata.shared), scratch)


class EmulatedKernel:
    """Replaces a compiled kernel: the last three of its arguments are the grid."""

    def __init__(self, source: str, target: Target, schedule: Schedule, done: list[Launch]) -> None:
        self._kernel = _compiled(source, target.capability)
        self._target, self._schedule, self._done = target, schedule, done

    def run(self, *arguments: Any, stream: int) -> None:
        """Emulate a launch."""
        del stream
        *operands, x, y, z = arguments
        kinds = [kind for kind in self._kernel.signature.values() if kind != "constexpr"]
        data = [_bytes(value, kind) for value, kind in zip(operands, kinds, strict=False)]
        tensors = [value for value in operands if isinstance(value, torch.Tensor)]
        module = self._kernel.module
        (name,) = module.entries
        kernel = module.kernel(name)
        blocks = int(x) * int(y) * int(z)
        size = self._kernel.scratch * blocks
        scratch = torch.zeros(size + _SCRATCH_ALIGNMENT, dtype=torch.uint8)
        begin = scratch.data_ptr() + -scratch.data_ptr() % _SCRATCH_ALIGNMENT
        # Behind the operands: scratch memory, and that of the profiler, which is off.
        hidden = [struct.pack("<Q", begin), struct.pack("<Q", 0)]
        data += hidden[: len(kernel.parameters) - len(data)]
        threads = kernel.limit("reqntid")[0]
        allowed = Allowed(_range(tensor) for tensor in (*tensors, scratch))
        shape = Shape((int(x), int(y), int(z)), (threads, 1, 1))
        conditions = Conditions(self._schedule, allowed, self._target.multiprocessors)
        shared = self._kernel.shared
        self._done.append(
            launch(module, name, shape, data, shared_bytes=shared, conditions=conditions)
        )


def _bytes(value: Any, kind: str) -> bytes:
    if isinstance(value, torch.Tensor):
        return struct.pack("<Q", value.data_ptr())
    return struct.pack(_FORMATS[kind], value)


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes() + _AFTER


def outputs(
    cases: Sequence[tuple[str, Sequence[torch.Tensor]]], target: Target, schedule: Schedule
) -> tuple[list[tuple[torch.Tensor, ...]], list[Launch]]:
    """Return the results of generated modules, each called with its tensors, and what they launched.

    As `interpreter.outputs`, with the kernels' PTX in place of Triton's interpreter.
    """
    from torch._inductor.async_compile import AsyncCompile  # heavy

    done: list[Launch] = []

    def kernel(source: str, _folder: Path) -> EmulatedKernel:
        return EmulatedKernel(source, target, schedule, done)

    def guard(*device: Any) -> Any:
        return contextlib.nullcontext()

    def nothing(*arguments: Any) -> None:
        """Replace what asks for a device."""

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(AsyncCompile, "triton"),
        mock.patch.object(AsyncCompile, "wait"),
        mock.patch.object(torch.cuda, "_DeviceGuard", guard),
        mock.patch.object(torch.cuda, "set_device", nothing),
    ):
        results = [
            interpreter.loaded(code, Path(folder), kernel)(list(tensors)) for code, tensors in cases
        ]
    return results, done
