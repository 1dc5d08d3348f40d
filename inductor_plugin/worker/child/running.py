"""A candidate that runs in the benchmark worker: its call, its operands, and what it may write."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.kernels.call import ExternKernel, TensorSpec
from inductor_plugin.worker.child.garbage import garbage_in_new_memory
from inductor_plugin.worker.child.inductor import BoundSequence
from inductor_plugin.worker.child.launch import bind
from inductor_plugin.worker.child.operands import (
    NOT_A_NUMBER,
    GuardedOutput,
    dtype_of,
    elements_of,
    storage_bytes,
)
from inductor_plugin.worker.child.state import ProblemState
from inductor_plugin.worker.child.stress import Stress, flat
from inductor_plugin.worker.echo import Echoed, behind_others, in_new_memory
from inductor_plugin.worker.jobs import BenchCandidate, Event
from inductor_plugin.worker.timer import timer_for

Emit = Callable[[Event], None]

_ALIGNMENT = 64
"""Of memory that torch allocates on a CPU."""
_ECHOED_BYTES = 64 << 20
"""Operands and output up to which a call has an echo. More of them take 5 ms to read, beside which 0.1 ms for code is little."""


@dataclass(frozen=True)
class Running:
    """A candidate that has run.

    Attributes:
        candidate: The candidate.
        call: Its call.
        inputs: Its operands.
        result: Its output.
        guarded: The memory of that, where the call does not return new one.
        written: The inputs it writes besides its output, by index.
        echo: The same kernel on other operands (`Echoed`).
        allocates: Whether a graph's kernels of this problem all allocate their results.
    """

    candidate: BenchCandidate
    call: BoundCall
    inputs: Sequence[torch.Tensor]
    result: torch.Tensor
    guarded: GuardedOutput | None
    written: dict[int, GuardedOutput]
    echo: Running | None = None
    allocates: bool = False

    @property
    def timed(self) -> BoundCall:
        """Its call as a timer takes it."""
        call, echo = self.call, None if self.echo is None else self.echo.launch
        if self.allocates:
            call = in_new_memory(call, self.written)
            echo = echo and behind_others(echo)
        return call if echo is None else Echoed(call, echo)

    def launch(self) -> object:
        """Call it. A reference to this method keeps the memory alive that the kernel uses; ``call`` may hold addresses alone."""
        return self.call()

    def repeat(self, emit: Emit) -> torch.Tensor:
        """Overwrite the outputs, run the candidate again and return its output."""
        for zone in self.zones():
            zone.refill()
        emit(Event("start", self.candidate.candidate_id))
        with garbage_in_new_memory():
            value = self.call()
            timer_for(self.candidate.output.device).synchronize()
        emit(Event("build", self.candidate.candidate_id))
        return value if isinstance(value, torch.Tensor) and not self.guarded else self.result

    @property
    def others(self) -> dict[str, torch.Tensor]:
        """What it writes besides its output, by name."""
        return {name: zone.tensor for name, zone in self._scratch.items()}

    def again(self) -> None:
        """Overwrite the outputs and call the candidate once more: one that writes nothing must not keep what it wrote."""
        for zone in self.zones():
            zone.refill()
        self.call()
        timer_for(self.candidate.output.device).synchronize()

    @property
    def outputs(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Its output, and what it writes besides it, by name."""
        return self.result, self.others

    def shares(self, before: Running) -> str:
        """Return which memory of others a returned tensor is in, empty if none.

        Generated code takes it for new memory, and may write to it while it still reads the other.
        """
        if self.guarded is not None:
            return ""
        own = _address(self.result)
        if own and own == _address(before.result):
            return "it returns the memory of its previous result"
        for index, operand in enumerate(self.inputs):
            if own and own == _address(operand):
                return f"it returns the memory of its operand {index}"
        return ""

    def rearranged(self, library: torch.Tensor) -> str:
        """Return the strides of a returned tensor if they are neither those asked for nor the library kernel's."""
        spec, own = self.candidate.output, self.result.stride()
        if self.guarded is not None or len(own) != len(spec.stride):
            return ""
        long = [dim for dim, size in enumerate(spec.size) if size > 1]
        known = (spec.stride, library.stride())
        if any(all(own[dim] == strides[dim] for dim in long) for strides in known):
            return ""
        return f"it returns strides {own}, asked for are {spec.stride}"

    def overrun(self) -> str:
        """Return what was written outside of the outputs, empty if nothing was."""
        zones = self.zones() + (self.echo.zones() if self.echo is not None else [])
        return next(filter(None, (zone.overrun() for zone in zones)), "")

    def damage(self, problem: ProblemState) -> str:
        """Return what was written that is not an output, empty if nothing was."""
        return self.overrun() or problem.changed(self.read())

    def writes(self, problem: ProblemState) -> bool:
        """Return True if it has written anything that is not an output."""
        return bool(self.overrun()) or problem.first_changed(self.read()) is not None

    def read(self) -> list[TensorSpec]:
        """Return the operands that it may not write."""
        return [s for i, s in enumerate(self.candidate.inputs) if i not in self.written]

    def zones(self) -> list[GuardedOutput]:
        """Return all memory that it may write."""
        outputs = [self.guarded] if self.guarded else []
        return [*outputs, *self.written.values(), *self._scratch.values()]

    @property
    def _scratch(self) -> Mapping[str, GuardedOutput]:
        return self.call.scratch if isinstance(self.call, BoundSequence) else {}


def bound(
    candidate: BenchCandidate,
    inputs: Sequence[torch.Tensor],
    written: dict[int, GuardedOutput],
    emit: Emit,
    output: GuardedOutput | None = None,
) -> Running:
    """Report a candidate to the parent, bind it to its operands and an output, and run it once.

    Args:
        candidate: The candidate.
        inputs: Its operands.
        written: The inputs it writes besides its output, by index.
        emit: Sends events.
        output: The memory of its output. None for new memory. Unused where the call returns its own.

    Raises:
        TypeError: It returned no tensor, or one of another type.
    """
    kernel = candidate.kernel
    returns = isinstance(kernel, ExternKernel) and not kernel.has_out
    guarded = None if returns else output or GuardedOutput(candidate.output)
    emit(Event("start", candidate.candidate_id))
    with garbage_in_new_memory():
        call = bind(candidate, inputs, None if guarded is None else guarded.tensor)
        value = call()
        timer_for(candidate.output.device).synchronize()
    result = value if guarded is None else guarded.tensor
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"{candidate.candidate_id} returned {type(result).__name__}, not a tensor")
    if result.dtype != dtype_of(candidate.output):
        raise TypeError(f"{candidate.candidate_id} returned {result.dtype}")
    return Running(candidate, call, inputs, result, guarded, written)


def echoed(running: Running, problem: ProblemState, emit: Emit, *, cold: bool) -> Running:
    """Return a candidate with the call that a timer takes: on a CPU, where caches are evicted before it, one with an echo.

    The candidate is reported to the parent as what runs next, so that limits of time begin anew. The echo has the same output: a
    library kernel that returns new memory returns what its echo has freed, which is in the caches, too.

    Args:
        running: The candidate, which has run.
        problem: Its problem.
        emit: Sends events.
        cold: Whether caches are evicted.
    """
    candidate = running.candidate
    specs = (*candidate.inputs, candidate.output)
    if problem.is_small is None:
        nbytes = sum(elements_of(spec) * dtype_of(spec).itemsize for spec in specs)
        problem.is_small = nbytes <= _ECHOED_BYTES
    if cold and candidate.output.device == "cpu" and problem.is_small:
        emit(Event("build", candidate.candidate_id))
        written = {index: GuardedOutput(candidate.inputs[index]) for index in running.written}
        inputs = [
            written[index].tensor if index in written else problem.echo(spec)
            for index, spec in enumerate(candidate.inputs)
        ]
        echo = bound(candidate, inputs, written, emit, running.guarded)
        running = replace(running, echo=echo, allocates=problem.attention is not None)
    emit(Event("start", candidate.candidate_id))
    return running


def moved(
    running: Running,
    stress: Stress,
    emit: Emit,
    memory: MutableMapping[TensorSpec, torch.Tensor] | None = None,
    *,
    aligned: bool = False,
) -> Running:
    """Run a candidate on changed copies of its operands, with another output.

    They are in other memory: a kernel that has kept an address of its first call (a descriptor, a captured graph) reads
    or writes the wrong one. Where the copies hold the same numbers, the operands themselves are NaN meanwhile.

    Args:
        running: The candidate, which has run.
        stress: How the copies are changed.
        emit: Sends events.
        memory: The copies of an earlier run, which get the numbers of this run: a kernel that has kept numbers by their
            address (a packed weight) has those of the earlier run. Receives the copies. None for new ones.
        aligned: Whether the copies are aligned as torch's own memory is, also on a CPU: some library kernels ask for it.
    """
    candidate = running.candidate
    emit(Event("build", candidate.candidate_id))
    written = {index: GuardedOutput(candidate.inputs[index]) for index in running.written}
    pairs = zip(candidate.inputs, running.inputs, strict=True)
    kept = dict[TensorSpec, torch.Tensor]() if memory is None else memory
    copies = {
        spec: _copied(spec, tensor, kept, aligned=aligned)
        for index, (spec, tensor) in enumerate(pairs)
        if index not in written
    }
    stress.apply(copies)
    inputs = [
        written[index].tensor if index in written else copies[spec]
        for index, spec in enumerate(candidate.inputs)
    ]
    with nullcontext() if stress.exponent else _overwritten(running.inputs):
        return bound(candidate, inputs, written, emit)


@contextmanager
def _overwritten(tensors: Sequence[torch.Tensor]) -> Generator[None]:
    """Fill the storage of tensors with NaN, and restore it."""
    storages = {address: each for each in tensors if (address := _address(each))}
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor in storages.values():
        data = storage_bytes(tensor)
        saved.append((data, data.clone()))
        data.fill_(NOT_A_NUMBER)
    try:
        yield
    finally:
        for data, before in saved:
            data.copy_(before)


def _address(tensor: torch.Tensor) -> int:
    """Return where a tensor's storage begins; 0 for a packed one, and for one without elements."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _copied(
    spec: TensorSpec,
    tensor: torch.Tensor,
    kept: MutableMapping[TensorSpec, torch.Tensor],
    *,
    aligned: bool,
) -> torch.Tensor:
    """Return an operand with a copy of its storage, in the memory that is kept for it if any; a packed one as it is."""
    if spec.packing is not None or tensor.layout is not torch.strided:
        return tensor
    numbers = flat(spec, tensor)
    if spec not in kept:
        new = torch.empty_like if aligned or spec.device != "cpu" else _unaligned
        memory = new(numbers)
        kept[spec] = torch.as_strided(memory, spec.size, spec.stride, spec.offset)
    flat(spec, kept[spec]).copy_(numbers)
    return kept[spec]


def _unaligned(like: torch.Tensor) -> torch.Tensor:
    """Return new memory of the CPU at an address that is a multiple of its elements' size only, as that of ``x[1:]``."""
    itemsize, count = like.element_size(), like.numel()
    if not count:
        return torch.empty_like(like)
    data = bytearray(itemsize * count + 2 * _ALIGNMENT)
    start = -torch.frombuffer(data, dtype=torch.uint8).data_ptr() % _ALIGNMENT + itemsize
    memory = torch.frombuffer(data, dtype=torch.uint8, count=itemsize * count, offset=start)
    return memory.view(like.dtype)
