"""Limits of fused kernels that are set by options, whatever the predicted times and resources. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.config import Config
from inductor_plugin.config.value import limit_of
from inductor_plugin.problem.epilogue import Access, Epilogue


@dataclass(frozen=True)
class Limits:
    """Limits of a fused kernel, from the options; 0 for none.

    Attributes:
        buffers: Unique tensors it reads and writes.
        arguments: Pointers of the kernel, and of a kernel combined of several.
        registers: Registers of a thread.
    """

    buffers: int = 0
    arguments: int = 0
    registers: int = 0


def limits_of(config: Config, device_type: str) -> Limits:
    """Return the limits that the options set for a type of device, ``cuda`` or ``cpu``."""
    return Limits(
        buffers=limit_of(config.max_fusion_buffers, device_type),
        arguments=limit_of(config.max_kernel_arguments, device_type),
        registers=limit_of(config.max_fusion_registers, device_type),
    )


def guard(epilogue: Epilogue, limits: Limits, operands: int = 2) -> str | None:
    """Return which limit of the options a fused kernel would exceed, or None.

    Args:
        epilogue: The epilogue that is fused.
        limits: The limits.
        operands: Tensors the kernel alone reads.
    """
    written = len(_names(epilogue.writes)) + (1 if epilogue.readers else 0)
    tensors = operands + len(_names(epilogue.reads)) + written
    if limits.buffers and tensors > limits.buffers:
        return (
            f"the fused kernel would read and write {tensors} tensors; "
            f"max_fusion_buffers is {limits.buffers}"
        )
    if limits.arguments and tensors > limits.arguments:
        return (
            f"the fused kernel would take {tensors} pointers; "
            f"max_kernel_arguments is {limits.arguments}"
        )
    return None


def guard_registers(registers: int, limits: Limits) -> str | None:
    """Return why a fused kernel has too many registers for the options, or None.

    Args:
        registers: Registers of a thread, predicted or compiled.
        limits: The limits.
    """
    if limits.registers and registers > limits.registers:
        return f"{registers} registers a thread; max_fusion_registers is {limits.registers}"
    return None


def _names(accesses: Sequence[Access]) -> set[str]:
    """Return the distinct tensors of accesses; one without a name counts as distinct."""
    return {access.buffer or f"#{at}" for at, access in enumerate(accesses)}
