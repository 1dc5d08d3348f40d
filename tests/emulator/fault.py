"""What a kernel does wrong, with the number of CUDA's error for it."""

from __future__ import annotations

from enum import IntEnum


class CudaError(IntEnum):
    """Errors of the CUDA runtime (``cudaError_t`` of driver_types.h)."""

    SUCCESS = 0
    INVALID_VALUE = 1
    INVALID_CONFIGURATION = 9
    INVALID_MEMCPY_DIRECTION = 21
    INVALID_DEVICE_FUNCTION = 98
    INVALID_DEVICE = 101
    NO_KERNEL_IMAGE_FOR_DEVICE = 209
    ILLEGAL_ADDRESS = 700
    LAUNCH_OUT_OF_RESOURCES = 701
    LAUNCH_TIMEOUT = 702
    ASSERT = 710
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    INVALID_ADDRESS_SPACE = 717
    LAUNCH_FAILURE = 719
    NOT_SUPPORTED = 801


class FaultError(Exception):
    """A kernel did what no GPU allows.

    Attributes:
        reason: What it did.
        error: What the CUDA runtime would report.
        place: Kernel, PTX line, source line and threads; empty until the machine has added it.
    """

    def __init__(
        self, reason: str, error: CudaError = CudaError.LAUNCH_FAILURE, place: str = ""
    ) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)
        self.reason, self.error, self.place = reason, error, place

    def at(self, place: str) -> FaultError:
        """Return the same fault with its place."""
        return type(self)(self.reason, self.error, place)


class DeadlockError(FaultError):
    """No thread can go on; the reason names the barriers and who waits for them."""


class UnmodelledError(FaultError):
    """The kernel may be right: it does what this emulator does not know."""

    def __init__(
        self, reason: str, error: CudaError = CudaError.NOT_SUPPORTED, place: str = ""
    ) -> None:
        super().__init__(reason, error, place)
