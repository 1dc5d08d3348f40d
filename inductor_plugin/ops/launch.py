"""Runs a compiled CUTLASS kernel inside a torch operator, or falls back where it cannot run.

    SYMBOL@DIGEST ─► find_kernel ─► workspace ─► the current stream of the output's device
                         │ missing      │ refused, or it does not start
                         └──────────────┴──► the library computes the same, with one warning a kernel

Libraries are searched in the cache directories of this process's compiles, then in the default one.
Where a library is missing (a trimmed cache, a compiled graph from another machine) or refuses the
operands (sizes of another compile, a shifted input), the operator falls back. ``SYMBOL@/a/path`` is the
path of a library, and then there is no fallback.

Nothing here synchronizes, and memory comes from torch's allocator on the stream the kernel runs on:
calls can be captured into a CUDA graph.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch

from inductor_plugin.cache import SecondCache, Store, open_second, open_store
from inductor_plugin.cache.guard import is_folder
from inductor_plugin.cache.trust.policy import trust_or_nobody
from inductor_plugin.config import default_cache_dir, default_cache_read, default_trusted_keys
from inductor_plugin.errors import (
    NAME,
    CacheError,
    CallRefusedError,
    KernelError,
    OptionError,
    expanded,
)
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.abi import Abi, CallStruct, KernelFunction, TensorView
from inductor_plugin.ops.operators import name_of
from inductor_plugin.problem import Operand

LIBRARY_FILE = "kernel.so"

_LOG = logging.getLogger(__name__)
_folders: list[tuple[Path, bool, str]] = []
"""Cache directories, whether each is only read, and whose kernels may be loaded from it."""
_stores: dict[Path, Store] = {}
"""Opened caches: those that are not on the disk keep libraries in temporary folders of this process."""

_added = [0]
"""How many caches were added."""

_warned: set[str] = set()
_GUARD = threading.Lock()
"""Held while the caches or `_retry_at` change, since several threads may compile; calls of a model read them without it."""
_SEARCH_S = 60.0
_retry_at: dict[str, float] = {}
"""Kernels that are not tried before some time (`time.monotonic`): for good if one did not start, as where a GPU is divided
after the compile (MIG, MPS); for a minute if its library was not found, since a search opens caches: 0.4 to 4 ms."""


@dataclass(frozen=True, eq=False)
class KernelFamily(Generic[CallStruct]):
    """What differs between the kernels of products and those of attention.

    Attributes:
        abi: Their C function.
        calls: The function that builds the call of each operator, by the operator's name.
        device_arguments: Returns the keyword arguments of ``calls`` that depend on the device.
        has_work: Whether a call has anything to compute; the kernels take no empty dimension.
        workspace_alignment: Bytes; a workspace that begins elsewhere is not used, and another is allocated.
        fallback: The fallback where a kernel cannot run, in the words of the warning.
    """

    abi: Abi[CallStruct]
    calls: Mapping[str, Callable[..., CallStruct]]
    device_arguments: Callable[[torch.device], Mapping[str, int]]
    has_work: Callable[[CallStruct], bool]
    workspace_alignment: int
    fallback: str


FAMILIES: dict[str, KernelFamily[Any]] = {}
"""The kernels each operator runs, by the operator's name; a module that defines operators adds its own."""


def add_kernel_folder(folder: Path, *, read_only: bool = False, trusted_keys: str = "") -> None:
    """Search libraries in this cache directory too; the latest is searched first.

    Args:
        folder: The directory.
        read_only: True for a second cache (option ``cache_read``), which may be root's.
        trusted_keys: The option of this name.
    """
    place = (folder, read_only, trusted_keys)
    with _GUARD:
        if _folders[:1] != [place]:
            # In one step: a model that runs meanwhile finds its libraries at any time.
            _folders[:] = [place, *(other for other in _folders if other != place)]
        _changed()


def add_kernel_store(store: Store) -> None:
    """Search libraries in this opened cache too, after those on the disk."""
    with _GUARD:
        _stores[store.root] = store
        _changed()


def caches_added() -> int:
    """Return how many caches were added so far: after another, what was not found may be found."""
    return _added[0]


def _changed() -> None:
    """Let kernels be searched that were not found so far; called with the lock held."""
    _added[0] += 1
    for kernel, until in [*_retry_at.items()]:
        if until < math.inf:
            _retry_at.pop(kernel, None)


def _not_before(kernel: str, time_s: float) -> None:
    """Try a kernel again at a time (`time.monotonic`), infinite for never."""
    with _GUARD:
        _retry_at[kernel] = time_s


def workspace_needed(
    family: KernelFamily[CallStruct],
    kernel: OpKernel,
    operands: Sequence[Operand],
    output: Operand,
    device: torch.device,
) -> int:
    """Return how many bytes a call needs besides its operands, 0 for none or if unknown.

    Generated code allocates them with its other memory and passes them as ``workspace=``; without
    it the operator allocates them.

    Args:
        family: The kernel's.
        kernel: The operator, the kernel's name and the arguments after it.
        operands: In the operator's order.
        output: The kernel's output.
        device: Where the kernel will run.
    """
    try:
        function = _lookup(family, str(kernel.args[0]))
        if function is None:
            return 0
        name = name_of(kernel.op)
        call = family.calls[name](
            *(TensorView(operand.size, operand.stride) for operand in operands),
            *kernel.args[1:],
            out=TensorView(output.size, output.stride),
            **family.device_arguments(device),
        )
        return family.abi.workspace_bytes(function, call) if family.has_work(call) else 0
    except KernelError:  # the call itself reports it
        return 0


def run_or_fallback(
    family: KernelFamily[CallStruct],
    kernel: str,
    make_call: Callable[[], CallStruct],
    library: Callable[[], object],
    workspace: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Launch a kernel, or fall back if it is missing, refuses the operands, does not start or has nothing to compute.

    Args:
        family: The kernel's.
        kernel: ``SYMBOL@DIGEST``.
        make_call: Returns the call; may raise `CallRefusedError`.
        library: Writes the same to ``out``.
        workspace: Scratch memory of the kernel, uint8; None to allocate it.
        out: The output.

    Raises:
        KernelError: The kernel did not start, and CUDA works no more in this process; or its library is named by a path.
    """
    function = find_kernel(family, kernel)
    if function is None:
        library()
        return
    try:
        call = make_call()
        if family.has_work(call):
            _start(family, function, call, workspace, out.device)
            return
    except KernelError as error:
        if _names_path(kernel) or error.is_sticky:
            raise
        if not isinstance(error, CallRefusedError):  # other operands may suit it
            _not_before(kernel, math.inf)
        _warn(family, kernel, str(error))
    library()


def find_kernel(family: KernelFamily[CallStruct], kernel: str) -> KernelFunction[CallStruct] | None:
    """Return a kernel by its name, or None, after one warning, where its library is missing or broken.

    Raises:
        KernelError: A library named by its path cannot be loaded.
    """
    retry_at = _retry_at.get(kernel)
    if retry_at is not None and time.monotonic() < retry_at:
        return None
    try:
        return _kernel_or_error(family, kernel)
    except KernelError as error:
        if _names_path(kernel):
            raise
        _not_before(kernel, time.monotonic() + _SEARCH_S)
        _warn(family, kernel, str(error))
        return None


def view_of(tensor: torch.Tensor) -> TensorView:
    """Return what a call and its rules need of a tensor."""
    pointer = tensor.data_ptr()
    return TensorView(tensor.shape, tensor.stride(), pointer, tensor.dtype, tensor.device)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; cached, since every call needs it."""
    return multiprocessors_now(device)


def multiprocessors_now(device: torch.device) -> int:
    """Return the same uncached: while a graph is lowered the device may be replaced."""
    cuda: Any = torch.cuda
    return int(cuda.get_device_properties(device).multi_processor_count)


@functools.lru_cache(maxsize=4096)
def _kernel_or_error(family: KernelFamily[CallStruct], kernel: str) -> KernelFunction[CallStruct]:
    """Return a kernel; a missing one is searched again next time (exceptions are not cached)."""
    function = _lookup(family, kernel)
    if function is None:
        symbol = kernel.partition("@")[0]
        raise KernelError(f"the library of {symbol} is not in the cache any more")
    return function


def _lookup(family: KernelFamily[CallStruct], kernel: str) -> KernelFunction[CallStruct] | None:
    """Return a kernel, or None where no cache directory has its library."""
    symbol, _, place = kernel.partition("@")
    path = place if _names_path(kernel) else library_path(place)
    return None if path is None else _loaded(family, symbol, str(path))


@functools.lru_cache(maxsize=4096)
def _loaded(family: KernelFamily[CallStruct], symbol: str, path: str) -> KernelFunction[CallStruct]:
    return family.abi.load(path, symbol)


def _names_path(kernel: str) -> bool:
    return "@/" in kernel


def library_path(digest: str) -> Path | None:
    """Return where the library of a kernel is, or None where no cache directory has it."""
    entries = (cache.kernel(digest) for cache in opened_caches())
    return next((entry.path(LIBRARY_FILE) for entry in entries if entry is not None), None)


def opened_caches() -> Iterator[Store | SecondCache]:
    """Yield the caches kernels are searched in, those of this process's compiles first; each is opened in its turn."""
    trusted = default_trusted_keys()
    places = [*_folders]
    with suppress(OptionError):  # a compile names it; kernels may be in the other places
        places.append((default_cache_dir(), False, trusted))
    with suppress(OptionError):
        if second := default_cache_read():
            places.append((expanded(second, "option cache_read", OptionError), True, trusted))
    for folder, read_only, trusted_keys in places:
        opened = _opened(folder, trusted_keys, read_only=read_only)
        if opened is not None:
            yield opened
    yield from [*_stores.values()]


def _opened(folder: Path, trusted_keys: str, *, read_only: bool) -> Store | SecondCache | None:
    if not is_folder(folder):  # opening would create it
        return None
    try:
        trust = trust_or_nobody(trusted_keys)
        return open_second(folder, trust) if read_only else open_store(folder, trust=trust)
    except CacheError:
        return None


def _start(
    family: KernelFamily[CallStruct],
    function: KernelFunction[CallStruct],
    call: Any,
    workspace: torch.Tensor | None,
    device: torch.device,
) -> None:
    """Launch a kernel on the current stream of a device."""
    if workspace is not None and (reason := _why_no_workspace(workspace, device)):
        raise KernelError(f"{function.symbol}: {reason}")
    # Inductor's memory planning begins buffers at multiples of 64 bytes, kernels of attention need 128.
    if workspace is None or workspace.data_ptr() % family.workspace_alignment:
        needed = family.abi.workspace_bytes(function, call)
        # From the caching allocator: inside a CUDA graph it comes from the graph's own pool.
        workspace = torch.empty(needed, dtype=torch.uint8, device=device)
    # The kernel's function checks the size before it writes anything.
    call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
    _launch(family.abi, function, call, device)


def _why_no_workspace(memory: torch.Tensor, device: torch.device) -> str | None:
    """Return why a tensor cannot be a workspace, None if it can."""
    if memory.dtype != torch.uint8 or not memory.is_contiguous():
        return f"the workspace must be contiguous uint8, it is {memory.dtype} {memory.stride()}"
    if memory.device != device:
        return f"the workspace is on {memory.device}, the output on {device}"
    return None


def _launch(
    abi: Abi[CallStruct],
    function: KernelFunction[CallStruct],
    call: CallStruct,
    device: torch.device,
) -> None:
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        _LOG.debug("%s on %s, stream %#x", function.symbol, device, stream)
        abi.run(function, call, stream)


def _warn(family: KernelFamily[CallStruct], kernel: str, reason: str) -> None:
    """Warn once why a kernel is not used."""
    symbol = kernel.partition("@")[0]
    if symbol in _warned:
        return
    _warned.add(symbol)
    warnings.warn(
        f"{NAME}{reason}, {family.fallback}; compile the model again to choose anew",
        RuntimeWarning,
        stacklevel=6,
    )
