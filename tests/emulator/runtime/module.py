"""A module that is loaded: its variables have addresses, its kernels are compiled when they are first launched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tests.emulator.arithmetic.arrays import U8, Array
from tests.emulator.codegen.compiler import compiled
from tests.emulator.machine.program import Program
from tests.emulator.memory.memory import SYSTEM_SHARED_BYTES
from tests.emulator.ptx.parser import parse
from tests.emulator.ptx.syntax import Variable

_ALIGNMENT = 128


@dataclass(frozen=True)
class Kernel:
    """An entry of a module.

    Attributes:
        program: Its code.
        parameters: Offset and size of each parameter.
        parameter_bytes: Bytes of all.
        static_shared: Bytes of shared memory with a size that is known.
        local_bytes: Bytes of local memory of a thread.
        steals: Whether blocks take over the work of clusters that have not started.
    """

    program: Program
    parameters: tuple[tuple[int, int], ...]
    parameter_bytes: int
    static_shared: int
    local_bytes: int
    steals: bool

    @property
    def name(self) -> str:
        """Its mangled name."""
        return self.program.function.name

    def limit(self, name: str) -> tuple[int, ...]:
        """Return the numbers of a directive (``reqntid``), empty if there is none."""
        return self.program.function.limits.get(name, ())


def _laid_out(variables: Iterable[Variable], begin: int = 0) -> tuple[dict[str, int], int]:
    """Return the offset of each variable, and the end."""
    places: dict[str, int] = {}
    position = begin
    for variable in variables:
        position = -(-position // variable.align) * variable.align
        places[variable.name] = position
        position += variable.size
    return places, position


class LoadedModule:
    """One PTX text with memory for its variables.

    Attributes:
        target: The architecture it is for.
        text: The PTX.
        memory: Arrays of its global variables; a kernel may touch them.
        constants: Arrays of its constants; a kernel may only read them.
    """

    def __init__(self, text: str) -> None:
        """Parse a text.

        Raises:
            PtxError: It is no PTX that is known.
        """
        self.text = text
        self._module = parse(text)
        self.target = self._module.target
        self.memory: list[Array] = []
        self.constants: list[Array] = []
        self._symbols: dict[str, tuple[str, int]] = {}
        for variable in self._module.variables.values():
            data = np.zeros(variable.size + 2 * _ALIGNMENT, U8)
            begin = -data.ctypes.data % _ALIGNMENT
            data[begin : begin + len(variable.initial)] = np.frombuffer(variable.initial, U8)
            (self.constants if variable.space == "const" else self.memory).append(data)
            self._symbols[variable.name] = ("global", data.ctypes.data + begin)
        shared = self._module.shared.values()
        places, self._static = _laid_out(each for each in shared if each.size)
        # Dynamic shared memory begins behind all that has a size.
        for variable in shared:
            if not variable.size:
                align = max(variable.align, _ALIGNMENT)
                places[variable.name] = -(-self._static // align) * align
        for name, place in places.items():
            self._symbols[name] = ("shared", SYSTEM_SHARED_BYTES + place)
        self._kernels: dict[str, Kernel] = {}

    @property
    def entries(self) -> list[str]:
        """Names of the kernels."""
        return [function.name for function in self._module.functions.values() if function.entry]

    def kernel(self, name: str) -> Kernel:
        """Return a kernel, compiled once.

        Raises:
            KeyError: There is none of this name.
            PtxError: It has an instruction that is not known.
        """
        if name not in self._kernels:
            self._kernels[name] = self._compiled(name)
        return self._kernels[name]

    def _compiled(self, name: str) -> Kernel:
        function = self._module.functions[name]
        symbols = dict(self._symbols)
        shared, static = _laid_out(function.shared.values(), self._static)
        parameters, parameter_bytes = _laid_out(function.parameters)
        local, local_bytes = _laid_out(function.locals.values())
        for variable, place in shared.items():
            symbols[variable] = ("shared", SYSTEM_SHARED_BYTES + place)
        symbols |= {variable: ("param", place) for variable, place in parameters.items()}
        symbols |= {variable: ("local", place) for variable, place in local.items()}
        program = compiled(function, symbols)
        return Kernel(
            program,
            tuple((parameters[each.name], each.size) for each in function.parameters),
            parameter_bytes,
            static,
            local_bytes,
            "cluster_launch.try_cancel" in program.text,
        )
