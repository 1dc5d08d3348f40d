"""Loads and calls the C function of a compiled CUTLASS kernel, whatever the fields of its call.

``int32_t SYMBOL(int32_t mode, Call* call, uint64_t* workspace_bytes, void* stream)`` returns a status.
`Abi.can_implement` and `Abi.workspace_bytes` need no device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from inductor_plugin.errors import CallRefusedError, KernelError

_CAN_IMPLEMENT, _WORKSPACE_BYTES, _RUN = 0, 1, 2
_OK = 0

CallStruct = TypeVar("CallStruct", bound=ctypes.Structure)


class TensorView(NamedTuple):
    """Sizes, strides and address of an operand.

    Attributes:
        size: Elements along each dimension.
        stride: Strides in elements.
        pointer: Device address; 0 where the call is only checked and not run.
        dtype: The ``torch.dtype``; None where it is not known.
        device: The ``torch.device``; None where it is not known.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    pointer: int = 0
    dtype: Any = None
    device: Any = None


@dataclass(frozen=True)
class KernelFunction(Generic[CallStruct]):
    """A loaded kernel.

    Attributes:
        library: Path of its library.
        symbol: Name of its C function.
        entry: The function.
    """

    library: str
    symbol: str
    entry: Any


@dataclass(frozen=True)
class Abi(Generic[CallStruct]):
    """What differs between families of kernels.

    Statuses are numbered: 0, the refusals, then a workspace that does not fit, a kernel that did not
    start, and a library of another version.

    Attributes:
        call: The structure its functions take.
        refusals: Reasons why a kernel does not take the operands, by status, returned before anything is
            launched; another kernel may take them.
        workspace: The reason of the status for a workspace that does not fit.
        errors: Returns the error numbers of a call that did not start.
        sizes: Returns the sizes of a call for messages.
    """

    call: type[CallStruct]
    refusals: Mapping[IntEnum, str]
    workspace: str
    errors: Callable[[CallStruct], str]
    sizes: Callable[[CallStruct], str]

    def load(self, path: str | Path, symbol: str) -> KernelFunction[CallStruct]:
        """Return a kernel of a shared library.

        The library needs ``libcudart.so.<major>``. A CUDA build of torch has loaded it on import, and
        the loader then resolves it by its name.

        Args:
            path: The shared library.
            symbol: Name of the C function.

        Raises:
            KernelError: The library cannot be loaded or has no such function.
        """
        try:
            entry = getattr(ctypes.CDLL(str(path)), symbol)
        except (OSError, AttributeError) as error:
            hint = "; import a CUDA build of torch first" if "libcudart" in str(error) else ""
            raise KernelError(f"cannot load {symbol} from {path}: {error}{hint}") from error
        entry.argtypes = (
            ctypes.c_int32,
            ctypes.POINTER(self.call),
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_void_p,
        )
        entry.restype = ctypes.c_int32
        return KernelFunction(str(path), symbol, entry)

    def can_implement(self, kernel: KernelFunction[CallStruct], call: CallStruct) -> str | None:
        """Return why a kernel refuses a call, or None if it takes it. Pointers may be missing."""
        status = kernel.entry(_CAN_IMPLEMENT, ctypes.byref(call), None, None)
        return self._why_not(kernel, call, status)

    def workspace_bytes(self, kernel: KernelFunction[CallStruct], call: CallStruct) -> int:
        """Return how much device memory a call needs besides its operands.

        Raises:
            CallRefusedError: The kernel does not take the operands.
            KernelError: The library is of another version.
        """
        size = ctypes.c_uint64(0)
        status = kernel.entry(_WORKSPACE_BYTES, ctypes.byref(call), ctypes.byref(size), None)
        if reason := self._why_not(kernel, call, status):
            raise self._error(status, reason)
        return size.value

    def run(self, kernel: KernelFunction[CallStruct], call: CallStruct, stream: int) -> None:
        """Launch a kernel on a CUDA stream of the call's device; it may still run on return.

        Args:
            kernel: The kernel.
            call: Its operands and workspace.
            stream: Handle of the stream, e.g. ``torch.cuda.current_stream().cuda_stream``;
                everything the kernel launches runs on it.

        Raises:
            CallRefusedError: The kernel does not take the operands.
            KernelError: The workspace does not fit, or the kernel did not start.
        """
        status = kernel.entry(_RUN, ctypes.byref(call), None, ctypes.c_void_p(stream))
        if reason := self._why_not(kernel, call, status):
            fields: Any = call
            if status == len(self.refusals) + 2:
                raise KernelError(reason, getattr(fields, "cuda_error", 0))
            if status == len(self.refusals) + 1:
                needed = self.workspace_bytes(kernel, call)
                reason = f"{reason}: {fields.workspace_bytes} bytes of {needed}"
            raise self._error(status, reason)

    def _error(self, status: int, reason: str) -> KernelError:
        refused = 0 < status <= len(self.refusals)
        return CallRefusedError(reason) if refused else KernelError(reason)

    def _why_not(
        self, kernel: KernelFunction[CallStruct], call: CallStruct, status: int
    ) -> str | None:
        if status == _OK:
            return None
        reasons = (
            *self.refusals.values(),
            self.workspace,
            f"the kernel did not start ({self.errors(call)})",
            "the library is of another version",
        )
        named = 0 < status <= len(reasons)
        reason = reasons[status - 1] if named else f"it returned {status}"
        return f"{kernel.symbol}: {reason} ({self.sizes(call)})"
