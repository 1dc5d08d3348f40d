"""What a GPU does not start: code for another one, blocks or grids that are too large, too much shared memory."""

from __future__ import annotations

from inductor_plugin.problem.target import Target
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.runtime.devices import Attribute, attributes, runs_on
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.threads.lanes import Shape

_GRID = (Attribute.MAX_GRID_DIM_X, Attribute.MAX_GRID_DIM_Y, Attribute.MAX_GRID_DIM_Z)
_BLOCK = (Attribute.MAX_BLOCK_DIM_X, Attribute.MAX_BLOCK_DIM_Y, Attribute.MAX_BLOCK_DIM_Z)


def check(module: LoadedModule, name: str, shape: Shape, shared_bytes: int, target: Target) -> None:
    """Check that a GPU starts a launch.

    Args:
        module: The module.
        name: The kernel.
        shape: Grid and block.
        shared_bytes: Dynamic shared memory of a block.
        target: The GPU.

    Raises:
        FaultError: It does not.
    """
    if not runs_on(module.target, target):
        reason = f"{name} is for {module.target}, the device is {target.name}"
        raise FaultError(reason, CudaError.NO_KERNEL_IMAGE_FOR_DEVICE)
    static, most = module.kernel(name).static_shared, target.shared_per_block
    if static + shared_bytes > most:
        reason = f"{name}: {static} + {shared_bytes} bytes of shared memory of {most}"
        raise FaultError(reason, CudaError.INVALID_VALUE)
    facts = attributes(target)
    for what, extents, names in (("grid", shape.grid, _GRID), ("block", shape.block, _BLOCK)):
        limits = tuple(facts[each] for each in names)
        if any(extent > limit for extent, limit in zip(extents, limits, strict=True)):
            reason = f"{name}: a {what} of {extents}, at most {limits}"
            raise FaultError(reason, CudaError.INVALID_CONFIGURATION)
    if shape.threads > target.threads_per_block:
        reason = f"{name}: {shape.threads} threads of a block, at most {target.threads_per_block}"
        raise FaultError(reason, CudaError.INVALID_CONFIGURATION)
