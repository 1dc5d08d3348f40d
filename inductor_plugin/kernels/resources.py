"""Resources of a compiled kernel, and whether a GPU has them."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.cache import Resources
from inductor_plugin.problem.target import Target

SPILL_LIMIT_BYTES = 64
"""Bytes of spills per thread that are accepted: 16 registers, as Inductor's ``triton.spill_threshold``."""


@dataclass(frozen=True)
class KernelResources:
    """Resources of one kernel.

    Attributes:
        kernel: Its mangled name.
        arch: Architecture it was compiled for, e.g. ``sm_90a``; empty if the tool does not print it.
        registers: Registers per thread.
        stack_bytes: Local memory per thread: spilled registers and arrays with computed indices.
        spill_store_bytes: Bytes of spill stores per thread, as ptxas counts them; None if unknown.
        spill_load_bytes: Bytes of spill loads per thread; None if unknown.
        static_shared_bytes: Shared memory of a block, without CUDA's reserve.
        dynamic_shared_bytes: Shared memory requested at launch, which the file of a kernel does not contain.
        threads: Threads of a block; None if unknown.
    """

    kernel: str
    arch: str
    registers: int
    stack_bytes: int = 0
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    threads: int | None = None

    @property
    def shared_bytes(self) -> int:
        """All shared memory of a block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes per thread in local memory: spills if known, else the whole stack."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return self.stack_bytes
        return max(self.spill_store_bytes, self.spill_load_bytes)

    def stored(self) -> Resources:
        """Return the part that the kernel cache stores."""
        return Resources(self.registers, self.spilled_bytes, self.shared_bytes, self.threads)


def why_not_on(
    target: Target, kernel: KernelResources, spill_limit_bytes: int = SPILL_LIMIT_BYTES
) -> str | None:
    """Return why a kernel cannot run on a GPU or will be slow there, or None if it fits."""
    if kernel.shared_bytes > target.shared_per_block:
        return (
            f"it needs {kernel.shared_bytes} bytes of shared memory; a block on {target.name} has "
            f"{target.shared_per_block}"
        )
    threads = kernel.threads
    if threads is not None and threads > target.threads_per_block:
        return f"it has {threads} threads; a block on {target.name} has {target.threads_per_block}"
    if threads is not None and target.blocks(threads, kernel.registers, kernel.shared_bytes) == 0:
        return (
            f"its {threads} threads of {kernel.registers} registers need more than the "
            f"{target.registers_per_multiprocessor} of a multiprocessor of {target.name}"
        )
    if kernel.spilled_bytes > spill_limit_bytes:
        what = "spills" if kernel.spill_store_bytes is not None else "uses local memory of"
        return f"it {what} {kernel.spilled_bytes} bytes a thread; {spill_limit_bytes} are accepted"
    return None


def why_not(
    target: Target | None, stored: Resources | None, spill_limit_bytes: int = SPILL_LIMIT_BYTES
) -> str | None:
    """Return why a kernel need not be measured, from its resources in the cache.

    Returns:
        None if it fits, or if the GPU or the kernel's resources are unknown.
    """
    if target is None or stored is None or stored.registers is None:
        return None
    spills = stored.spills or 0
    kernel = KernelResources(
        kernel="",
        arch="",
        registers=stored.registers,
        spill_store_bytes=spills,
        spill_load_bytes=spills,
        dynamic_shared_bytes=stored.shared_bytes or 0,
        threads=stored.threads,
    )
    return why_not_on(target, kernel, spill_limit_bytes)
