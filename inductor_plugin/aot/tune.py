"""Compiles and tunes a model on this machine, for each set of example inputs, and says what was gained."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import nn

from inductor_plugin.activation import observe, record
from inductor_plugin.aot import models
from inductor_plugin.aot.store import store_to_write
from inductor_plugin.config import Config, split
from inductor_plugin.errors import OptionError
from inductor_plugin.tuning.counters import COUNTERS, Stats
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.devices import lookup


@dataclass(frozen=True)
class TuneRequest:
    """What to tune.

    Attributes:
        model: ``module:function``.
        options: Options of the plugin and of Inductor.
        training: Compile the forward and the backward pass; else a forward pass without gradients.
        dynamic: Let all sizes be unknown. Each set of inputs is compiled nevertheless: a decision holds for a class of sizes.
        pin_file: File for the decisions, for ``policy=pinned``; None for none.
    """

    model: str
    options: Mapping[str, object]
    training: bool = False
    dynamic: bool = False
    pin_file: Path | None = None


@dataclass(frozen=True)
class TunedProblem:
    """One problem of the model, and what was chosen.

    Attributes:
        key: Its digest.
        describe: The problem in one line.
        winner: The kernel that runs; None if nothing could be measured.
        library: The library kernel it was compared with, if there is one.
        speedup: Time of the library kernel over that of what runs, 1.0 where it stays; None if one of them is not known.
        known: True if nothing had to be measured for the first set of inputs that has it.
        provisional: True if a later compile measures it again, since other work has prolonged samples, or the tuning
            budget ended before the finals.
        rejected_speedup: Where the library kernel stays, its time over that of the fastest other candidate, if both are known.
    """

    key: str
    describe: str
    winner: str | None
    library: str | None
    speedup: float | None
    known: bool
    provisional: bool
    rejected_speedup: float | None = None


@dataclass(frozen=True)
class TuneReport:
    """What tuning a model did.

    Attributes:
        model: ``module:function``.
        device: Where it was tuned: ``cpu``, ``cuda``, ``npu:0`` ...
        sets: Number of sets of inputs.
        frozen: True if the weights were constants of the compiled graphs.
        seconds: Seconds of all compiles and first calls.
        problems: The problems, each once, those that gained most first.
        stats: Counters of the plugin.
        unwritten: Number of results that could not be written to the cache, and are lost with this process.
    """

    model: str
    device: str
    sets: int
    frozen: bool
    seconds: float
    problems: tuple[TunedProblem, ...]
    stats: Stats
    unwritten: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


def tune(request: TuneRequest, say: Callable[[str], None] = print) -> TuneReport:
    """Compile a model for each set of its inputs; every decision is in the cache afterwards.

    It is compiled where the model or its inputs are; from the CPU it is moved to a GPU, or to a device that a package describes, if there
    is one.

    Args:
        request: What to tune.
        say: Called with each line of progress.

    Raises:
        OptionError: There is no such model, or it has no output with a gradient to train on.
        CacheError: The cache cannot be written to, or is off.
    """
    model, sets = models.load_sets(request.model)
    device = device_of(model, sets)
    store = store_to_write(Config.load(split(request.options)[0]))
    lost = store.unwritten
    model, sets = model.to(device).train(request.training), models.moved(sets, device)
    frozen = device == "cpu" and not request.training
    tickets, known = dict[str, TuningTicket](), dict[str, bool]()

    def keep(decided: Sequence[TuningTicket]) -> None:
        for ticket in decided:
            tickets[ticket.digest] = ticket
            known.setdefault(ticket.digest, ticket.hit)

    before, started = COUNTERS.snapshot(), time.perf_counter()
    pinning = record(request.pin_file) if request.pin_file else contextlib.nullcontext()
    with pinning, observe(keep), _lowered_again(frozen=frozen):
        for number, inputs in enumerate(sets, start=1):
            _call(_compiled(model, request), model, inputs, request)
            say(f"inputs {number} of {len(sets)}: {len(tickets)} problems so far")
    return TuneReport(
        model=request.model,
        device=device,
        sets=len(sets),
        frozen=frozen,
        seconds=time.perf_counter() - started,
        problems=_problems(list(tickets.values()), known),
        stats=COUNTERS.snapshot().since(before),
        unwritten=store.unwritten - lost,
    )


def device_of(model: nn.Module, sets: Sequence[models.Inputs]) -> str:
    """Return the device on which a model is tuned.

    That of its parameters, its buffers or its inputs, the first that is not the CPU; else the current CUDA device, else the first
    device of this machine that a package describes, else the CPU.
    """
    tensors = (*model.parameters(), *model.buffers(), *models.tensors(sets))
    own = [tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")]
    if own:
        return str(own[0])
    if torch.cuda.is_available():
        return "cuda"
    return next(iter(lookup.present()), "cpu")


def _compiled(model: nn.Module, request: TuneRequest) -> Callable[..., Any]:
    """Return the model, to be compiled at its next call: a graph of other sizes neither serves these nor makes them dynamic."""
    torch._dynamo.reset()  # pyright: ignore[reportUnknownMemberType]
    options: dict[str, Any] = dict(request.options)
    return torch.compile(model, backend="inductor_plugin", options=options, dynamic=request.dynamic)


@contextlib.contextmanager
def _lowered_again(*, frozen: bool) -> Generator[None]:
    """Let each graph be lowered, even if it is in Inductor's cache: a graph that is not lowered decides nothing.

    Args:
        frozen: Let weights be constants. On a CPU Inductor has several kernels to choose from only then; Dynamo reads
            the option before those of a compile apply.
    """
    switches: dict[str, Any] = {"fx_graph_cache": False}
    if frozen:
        switches["freezing"] = True
    config: Any = inductor_config  # typed partly
    with config.patch(switches):
        yield


def _call(compiled: Any, model: nn.Module, inputs: models.Inputs, request: TuneRequest) -> None:
    if not request.training:
        with torch.no_grad():
            models.call(compiled, inputs)
        return
    outputs = models.tensors(models.call(compiled, inputs))
    means = [output.float().mean() for output in outputs if output.requires_grad]
    if not means:
        raise OptionError(
            f"model {request.model!r} has no output with a gradient; leave out --training"
        )
    torch.stack(means).sum().backward()  # pyright: ignore[reportUnknownMemberType]
    model.zero_grad()


def _problems(
    tickets: Sequence[TuningTicket], known: Mapping[str, bool]
) -> tuple[TunedProblem, ...]:
    problems = [
        TunedProblem(
            key=ticket.digest,
            describe=ticket.problem.describe(),
            winner=ticket.verdict.winner,
            library=ticket.verdict.library,
            speedup=ticket.verdict.speedup,
            known=known[ticket.digest],
            provisional=ticket.verdict.provisional,
            rejected_speedup=ticket.verdict.rejected_speedup,
        )
        for ticket in tickets
        if ticket.verdict is not None
    ]
    return tuple(sorted(problems, key=lambda problem: (-(problem.speedup or 1.0), problem.key)))
