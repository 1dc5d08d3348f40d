"""Whole compiled graphs in the benchmark worker: loads their modules, builds what they read, runs them in turns.

What a graph does to this process (an abort for an index out of bounds, a hang) costs the comparison alone. Functions for
`jobs.CallJob`.
"""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from inductor_plugin.config import process_environment, set_environment
from inductor_plugin.device import BoundCall, Timer
from inductor_plugin.worker.child import inductor, memory
from inductor_plugin.worker.child.operands import build, dtype_of, elements_of
from inductor_plugin.worker.devices.lookup import uuid_of
from inductor_plugin.worker.graph_job import (
    FEWEST_TURNS,
    MKLDNN_CONVOLUTION,
    TURN_WAIT_S,
    GraphCode,
    GraphJob,
    GraphTensor,
    GraphTimes,
    Input,
    LoadSettings,
)
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import release_timers, repeats_for, timer_for
from inductor_plugin.worker.turn import Turn, turn

_SMALL = 0.1
"""Standard deviation of random values: products of thousands of them stay finite in half precision."""
_MOST_INTEGER = 8
_MOST_TURNS = 30
FEWEST_CALLS = 3 + FEWEST_TURNS
"""Of each graph: two to warm up, the one that finds how many calls make a sample, and the fewest turns."""
_SAMPLING = Sampling(
    warmup=2, samples=1, min_sample_ms=5.0, max_total_s=0.0, cold_cache=False, retake_s=0.0
)

_PACKED_BY = {
    "mkldnn_linear": ("mkldnn", "_reorder_linear_weight"),
    "mkl_linear": ("mkl", "_mkl_reorder_linear_weight"),
    MKLDNN_CONVOLUTION: ("mkldnn", "_reorder_convolution_weight"),
    "onednn_qlinear": ("onednn", "qlinear_prepack"),
}
"""Operators that pack a weight, by `GraphTensor.packing`."""


def prepare(settings: LoadSettings) -> float:
    """Import Inductor, which takes 3 s, and let it load what the parent has compiled; return the seconds it took."""
    started = time.monotonic()
    _apply(settings)
    return time.monotonic() - started


def compare(job: GraphJob) -> GraphTimes:
    """Run graphs in turns, and free what they took."""
    memory.mark_start(job.device)
    try:
        return _compared(job)
    finally:
        memory.give_back(_drop)


def _compared(job: GraphJob) -> GraphTimes:
    started = time.monotonic()
    patched, timer = _apply(job.settings), timer_for(job.device)
    tensors: dict[GraphTensor, torch.Tensor] = {}
    with patched, torch.no_grad(), _turn_on(job.device) as mine:
        inputs = [built(value, tensors) for value in job.inputs]
        calls = [functools.partial(_call, loaded(code, tensors), inputs) for code in job.graphs]
        restore = _restore(job, inputs)
        loaded_at, least = time.monotonic(), len(calls) * FEWEST_CALLS
        load_s, once_s = loaded_at - started, _call_s(timer, calls[-1])
        if least * once_s > job.most_s:
            # Only the first call creates oneDNN's primitives, touches new pages, and lets Triton choose tiles of its kernels.
            once_s = _call_s(timer, calls[-1])
        if least * once_s > job.most_s:
            reason = f"{least} calls of {once_s:.2g} s take longer than {job.most_s:.2g} s"
            run_s = time.monotonic() - loaded_at
            return GraphTimes(reason=reason, load_s=load_s, run_s=run_s, need_s=least * once_s)
        repeats = max(repeats_for(timer, call, _SAMPLING) for call in calls)
        turns = _turns(timer, calls, repeats, restore, loaded_at + job.limit_s)
        alone = bool(mine)
    rows, disturbed = counted([(row, late or not alone) for row, late in turns])
    run_s = time.monotonic() - loaded_at
    return GraphTimes(tuple(zip(*rows, strict=True)), disturbed, load_s=load_s, run_s=run_s)


def counted(
    turns: Sequence[tuple[tuple[float, ...], bool]],
) -> tuple[list[tuple[float, ...]], bool]:
    """Return the samples of the turns that count, and whether they are disturbed: calm turns, or all where those are too few.

    Args:
        turns: The samples of each turn, and whether other work has prolonged one of them.
    """
    calm = [row for row, disturbed in turns if not disturbed]
    if len(calm) < FEWEST_TURNS:
        return [row for row, _ in turns], True
    return calm, False


@contextmanager
def _turn_on(device: str) -> Generator[Turn]:
    """Hold a GPU inside the block; the turn is true while no other process measures there."""
    with turn(uuid_of(device), TURN_WAIT_S, most_s=TURN_WAIT_S) as mine:
        yield mine


def _call(graph: Callable[[list[Any]], object], inputs: Sequence[Any]) -> object:
    return graph([*inputs])


def _call_s(timer: Timer, call: BoundCall) -> float:
    """Return the seconds that a call takes."""
    started = time.monotonic()
    call()
    timer.synchronize()
    return time.monotonic() - started


def _turns(
    timer: Timer, calls: Sequence[BoundCall], repeats: int, restore: BoundCall, until: float
) -> list[tuple[tuple[float, ...], bool]]:
    """Return the samples of all calls in each turn, and whether any was disturbed."""
    turns: list[tuple[tuple[float, ...], bool]] = []
    while len(turns) < _MOST_TURNS and (len(turns) < FEWEST_TURNS or time.monotonic() < until):
        order = range(len(calls)) if len(turns) % 2 else reversed(range(len(calls)))
        samples, disturbed = [0.0] * len(calls), False
        for index in order:
            restore()
            samples[index] = timer.sample(calls[index], repeats, cold=False)
            disturbed |= timer.disturbed
        turns.append((tuple(samples), disturbed))
    return turns


def _restore(job: GraphJob, inputs: Sequence[Any]) -> BoundCall:
    """Return what gives the inputs that a graph changes their first values: decayed ones become denormal, and slow."""
    first = [(inputs[index], inputs[index].clone()) for index in job.changed]

    def restore() -> None:
        for tensor, before in first:
            tensor.copy_(before)

    return restore


def loaded(
    code: GraphCode, tensors: dict[GraphTensor, torch.Tensor]
) -> Callable[[list[Any]], object]:
    """Return the function of a compiled graph; it empties the list of inputs that it is given.

    Args:
        code: The graph.
        tensors: Those that are built; receives its constants.
    """
    cache = inductor.code_cache()
    constants = {name: built(value, tensors) for name, value in code.constants}
    key, path = cache.write(code.source)
    return cache.load_by_key_path(key, path, attrs=constants).call


def built(value: Input, tensors: dict[GraphTensor, torch.Tensor]) -> Any:
    """Return an input or a constant; of the same tensor the same memory."""
    if not isinstance(value, GraphTensor):
        return value
    if value not in tensors:
        tensors[value] = _packed(value, _plain(value))
    return tensors[value]


def _plain(value: GraphTensor) -> torch.Tensor:
    spec, dtype = value.spec, dtype_of(value.spec)
    if value.data is None and (dtype.is_floating_point or dtype.is_complex):
        return build(spec, _SMALL)
    count = elements_of(spec)
    if value.data is not None:
        memory = torch.frombuffer(bytearray(value.data) or bytearray(1), dtype=torch.uint8)
        memory = memory[: len(value.data)].clone().view(dtype)  # torch aligns it
    elif dtype == torch.bool:
        memory = torch.ones(count, dtype=dtype)
    else:  # no zeros, which divide, where what they index is long enough
        high = max(1, min(value.below, _MOST_INTEGER))
        generator = torch.Generator().manual_seed(spec.seed)
        memory = torch.randint(min(1, high - 1), high, (count,), generator=generator).to(dtype)
    return memory.to(spec.device).as_strided(spec.size, spec.stride, spec.offset)


def _packed(value: GraphTensor, plain: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the opaque layout of oneDNN or MKL."""
    if not value.packing:
        return plain
    namespace, name = _PACKED_BY[value.packing]
    return getattr(getattr(torch.ops, namespace), name)(plain, *value.packing_arguments)


def _apply(settings: LoadSettings) -> Any:
    """Let this process load kernels as the parent compiled them; return the patch of Inductor's options."""
    set_environment(process_environment() | dict(settings.environment))
    inductor.load_inductor()
    if settings.isa:
        isa = pickle.loads(settings.isa)  # noqa: S301 - from the parent's pipe, never from disk
        inductor.use_instruction_set(isa)
    # No pool of processes is started: all kernels are there.
    return inductor.patched_options({**dict(settings.options), "compile_threads": 1})


def _drop() -> None:
    """Forget the modules of graphs, and free the buffers of timers."""
    inductor.forget_modules()
    release_timers()
