"""Triton kernels whose PTX runs on emulated GPUs: those of Inductor with the code around them, and functions of Triton's.

A module that Inductor generated is unchanged; ``kernel.run`` compiles for the GPU's architecture and emulates the launch.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import functools
import math
import struct
import tempfile
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from inductor_plugin.problem.target import Target
from tests.emulator.kernels.storages import Storages
from tests.emulator.machine.schedule import Schedule
from tests.emulator.memory.allowed import Allowed
from tests.emulator.runtime import limits
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
def _generated(source: str, capability: tuple[int, int]) -> _Compiled:
    """Compile a kernel of Inductor's; those of the last graphs are kept, since each runs in several schedules."""
    with tempfile.TemporaryDirectory() as folder:
        function, facts = interpreter.function_of(source, Path(folder))
        meta = facts["triton_meta"]
        names: list[str] = function.arg_names
        signature = {name: meta["signature"][name] for name in names}
        constants = {(names.index(name),): value for name, value in meta["constants"].items()}
        return _compiled(
            function,
            signature,
            constants,
            meta["configs"][0],
            capability,
            {"num_warps": facts["num_warps"], "num_stages": facts["num_stages"]},
        )


def _compiled(
    function: Any,
    signature: dict[str, str],
    constants: dict[tuple[int, ...], Any],
    attributes: dict[tuple[int, ...], list[Any]],
    capability: tuple[int, int],
    options: dict[str, Any],
) -> _Compiled:
    """Compile a function of Triton's for an architecture; the arguments are those of ``ASTSource`` and ``triton.compile``."""
    import triton  # heavy, and only these tests need it
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")
        kernel = triton.compile(
            ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes),
            target=GPUTarget("cuda", capability[0] * 10 + capability[1], 32),
            options=options,
        )
    metadata: Any = kernel.metadata
    scratch = int(getattr(metadata, "global_scratch_size", 0) or 0)
    module = LoadedModule(str(kernel.asm["ptx"]))
    return _Compiled(module, signature, int(metadata.shared), scratch)


_EDITS: list[Callable[[str], str]] = []


@contextlib.contextmanager
def edited(edit: Callable[[str], str]) -> Generator[None]:
    """Change the PTX of generated kernels before it is parsed, as `Runtime.edited` does for libraries."""
    _EDITS.append(edit)
    try:
        yield
    finally:
        _EDITS.remove(edit)
        _parsed.cache_clear()


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> LoadedModule:
    """Parse an edited text; it runs in several schedules."""
    return LoadedModule(text)


def _with_edits(kernel: _Compiled) -> _Compiled:
    text = kernel.module.text
    for edit in _EDITS:
        text = edit(text)
    return kernel if text == kernel.module.text else replace(kernel, module=_parsed(text))


_SPOILS: list[Callable[[list[Any]], None]] = []


@contextlib.contextmanager
def spoiled(spoil: Callable[[list[Any]], None]) -> Generator[None]:
    """Change the arguments of generated kernels before each launch; the last three are the grid."""
    _SPOILS.append(spoil)
    try:
        yield
    finally:
        _SPOILS.remove(spoil)


class EmulatedKernel:
    """Replaces a compiled kernel: the last three of its arguments are the grid."""

    def __init__(self, source: str, target: Target, schedule: Schedule, done: list[Launch]) -> None:
        self._kernel = _with_edits(_generated(source, target.capability))
        self._target, self._schedule, self._done = target, schedule, done

    def run(self, *arguments: Any, stream: int) -> None:
        """Emulate a launch."""
        del stream
        listed = list(arguments)
        for spoil in _SPOILS:
            spoil(listed)
        *operands, x, y, z = listed
        grid = int(x), int(y), int(z)
        tensors = [value for value in operands if isinstance(value, torch.Tensor)]
        allowed = Allowed(map(_range, tensors), (_range(tensor, _AFTER) for tensor in tensors))
        self._done.append(
            _launched(self._kernel, operands, grid, self._target, self._schedule, allowed)
        )


def _launched(
    compiled: _Compiled,
    operands: Sequence[Any],
    grid: tuple[int, int, int],
    target: Target,
    schedule: Schedule,
    allowed: Allowed,
) -> Launch:
    """Emulate a launch; ``operands`` are those that are no constants, ``allowed`` what it may touch besides scratch memory.

    Raises:
        FaultError: The GPU does not start it, or it touches something else, or worse.
    """
    kinds = [kind for kind in compiled.signature.values() if kind != "constexpr"]
    data = [_bytes(value, kind) for value, kind in zip(operands, kinds, strict=False)]
    (name,) = compiled.module.entries
    kernel = compiled.module.kernel(name)
    size = compiled.scratch * math.prod(grid)
    scratch = torch.zeros(size + _SCRATCH_ALIGNMENT, dtype=torch.uint8)
    begin = scratch.data_ptr() + -scratch.data_ptr() % _SCRATCH_ALIGNMENT
    # Behind the operands: scratch memory, and that of the profiler, which is off.
    hidden = [struct.pack("<Q", begin), struct.pack("<Q", 0)]
    data += hidden[: len(kernel.parameters) - len(data)]
    threads = kernel.limit("reqntid")[0]
    shape = Shape(grid, (threads, 1, 1))
    limits.check(compiled.module, name, shape, compiled.shared, target)
    allowed = allowed.with_arrays([scratch.numpy()])
    conditions = Conditions(schedule, allowed, target.multiprocessors)
    return launch(
        compiled.module, name, shape, data, shared_bytes=compiled.shared, conditions=conditions
    )


_KINDS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_DIVISOR = 16


class Program:
    """A function of Triton's with its constants, compiled once for each architecture."""

    def __init__(
        self,
        function: Any,
        constants: Mapping[str, Any],
        writes: Collection[str],
        warps: int = 4,
        stages: int = 3,
    ) -> None:
        """Take a function.

        Args:
            function: The function.
            constants: Its constants by name.
            writes: Names of the tensors that it may write; all others it may only read.
            warps: Warps of a block.
            stages: Steps of a loop that are in flight.
        """
        self._function, self._constants, self._writes = function, dict(constants), set(writes)
        self._options = {"num_warps": warps, "num_stages": stages}
        self._compiled: dict[tuple[int, int], _Compiled] = {}

    def run(
        self,
        arguments: Mapping[str, Any],
        grid: tuple[int, int, int],
        target: Target,
        schedule: Schedule,
    ) -> Launch:
        """Emulate a launch; nothing but the storages of the tensors may be touched.

        Args:
            arguments: Tensors, integers and floats by their names, all that are no constants; as when Triton starts a
                kernel itself, what is divisible by 16 is known to be so. The same sizes in all calls.
            grid: Programs along each axis.
            target: The GPU.
            schedule: Order of warps and asynchronous operations.

        Raises:
            FaultError: The GPU does not start it, or it touches something else, or worse.
        """
        if target.capability not in self._compiled:
            names: list[str] = self._function.arg_names
            signature = {
                name: "constexpr" if name in self._constants else _kind(arguments[name])
                for name in names
            }
            self._compiled[target.capability] = _compiled(
                self._function,
                signature,
                {(names.index(name),): value for name, value in self._constants.items()},
                {
                    (names.index(name),): [["tt.divisibility", _DIVISOR]]
                    for name, value in arguments.items()
                    if _is_divisible(value)
                },
                target.capability,
                self._options,
            )
        compiled = self._compiled[target.capability]
        ordered = [arguments[name] for name in self._function.arg_names if name in arguments]
        tensors = {
            name: _range(value)
            for name, value in arguments.items()
            if isinstance(value, torch.Tensor)
        }
        written = [range_ for name, range_ in tensors.items() if name in self._writes]
        allowed = Allowed(written, tensors.values())
        return _launched(compiled, ordered, grid, target, schedule, allowed)


def _kind(value: Any) -> str:
    """Return Triton's name of an argument's type."""
    if isinstance(value, torch.Tensor):
        return _KINDS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _is_divisible(value: Any) -> bool:
    number = value.data_ptr() if isinstance(value, torch.Tensor) else value
    return isinstance(number, int) and number % _DIVISOR == 0


def _bytes(value: Any, kind: str) -> bytes:
    if isinstance(value, torch.Tensor):
        return struct.pack("<Q", value.data_ptr())
    return struct.pack(_FORMATS[kind], value)


def _range(tensor: torch.Tensor, after: int = 0) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes() + after


@dataclass(frozen=True)
class Computed:
    """What generated modules computed.

    Attributes:
        results: The results of each.
        launches: What they launched.
        changed: Bytes that changed and are no elements of a result, nor of a buffer that a module has allocated.
    """

    results: list[tuple[torch.Tensor, ...]]
    launches: list[Launch]
    changed: int


def outputs(
    cases: Sequence[tuple[str, Sequence[torch.Tensor]]], target: Target, schedule: Schedule
) -> Computed:
    """Return what generated modules compute, each called with its tensors.

    As `interpreter.outputs`, with the kernels' PTX in place of Triton's interpreter.

    Raises:
        FaultError: The GPU does not start a kernel, or it touches something else than its operands, or worse.
    """
    from torch._inductor.async_compile import AsyncCompile  # heavy

    done: list[Launch] = []
    storages, buffers, empty = Storages(), list[torch.Tensor](), interpreter.dirty
    for _, tensors in cases:
        for tensor in tensors:
            storages.add(tensor)

    def buffer(*facts: Any) -> torch.Tensor:
        buffers.append(empty(*facts))
        storages.add(buffers[-1])
        return buffers[-1]

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
        mock.patch.object(interpreter, "dirty", buffer),
    ):
        results = [
            interpreter.loaded(code, Path(folder), kernel)(list(tensors)) for code, tensors in cases
        ]
    written = (*buffers, *(tensor for result in results for tensor in result))
    return Computed(results, done, storages.changed(written))
