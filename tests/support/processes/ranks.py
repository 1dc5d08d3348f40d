"""One rank of a job on gloo, in a process of its own; the store's server is the process that starts the ranks, or rank 0.

    python -m tests.support.processes.ranks RANK WORLD PORT FOLDER JSON

Prints JSON: what runs for each problem and which rank has decided it, the largest error, losses, what was spent, and the
report of `verify_ranks`. The fields of the argument are those of `Order`.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportPrivateUsage=false

# torch does not export its stores' names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import inductor_plugin
from inductor_plugin.tuning import race, selection
from inductor_plugin.tuning.runtime import RUNTIME, DeviceContext
from tests.support.candidates.fast_templates import rivals_offered
from tests.support.processes.pinned import difference, rivals_win

START_S = 900.0
"""Longest time in which other ranks start, or end: they import torch and compile on two busy cores."""


@dataclass(frozen=True)
class Order:
    """What a rank is to do.

    Attributes:
        model: ``products``: graphs of a few products each; ``fsdp`` and ``tensor``: two training steps.
        graphs: Number of graphs, which each rank compiles in another order.
        products: Products of each.
        timeout_s: The option ``ranks_timeout_s``.
        kill: The rank that kills itself when it begins to tune its second problem.
        stop: The rank that stops itself then.
        skip: The rank that leaves the last graph out.
        verify: Whether the ranks are compared at the end.
        record: Name of the file that decisions are recorded to, which may have ``{rank}``; none are without it.
        parts: Name of a file to which each rank records only the graph that it compiles first, as a stage of a pipeline does.
        taste: Whether ranks with an odd number decide for the rivals, so that what runs depends on who has decided.
        shared_cache: Whether the ranks have one cache directory.
        later_port: Port of a second store.
        host: Whether rank 0 serves the store, as without ``torchrun``. It ends after the others, unless it is the one that is lost.
        again: Whether the process group is destroyed, and initialized again on that store with the ranks in reverse; caches are empty then.
        odd: The rank that compiles with `odd_options`.
        odd_options: Options of that rank.
    """

    model: str = "products"
    graphs: int = 2
    products: int = 2
    timeout_s: float = 60.0
    kill: int = -1
    stop: int = -1
    skip: int = -1
    verify: bool = False
    record: str = ""
    parts: str = ""
    taste: bool = False
    shared_cache: bool = False
    later_port: int = 0
    host: bool = False
    again: bool = False
    odd: int = -1
    odd_options: dict[str, Any] = field(default_factory=dict[str, Any])


class Products(nn.Module):
    """Some products of different sizes, none of which another graph has."""

    def __init__(self, graph: int, count: int) -> None:
        super().__init__()
        first = graph * count
        self.layers = nn.ModuleList(nn.Linear(16 + first + i, 8) for i in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x[:, : layer.in_features]) for layer in self.layers])


def at_second_problem(signal_number: int) -> None:
    """Send a signal to this process when it begins to tune its second problem."""
    start, count = DeviceContext.start, [0]

    def started(context: DeviceContext, ticket: Any) -> None:
        start(context, ticket)
        count[0] += 1
        if count[0] == 2:
            os.kill(os.getpid(), signal_number)

    DeviceContext.start = started  # type: ignore[method-assign]


def recorded(folder: Path, name: str, rank: int) -> AbstractContextManager[Any]:
    """Return a block that records, if there is a name."""
    return inductor_plugin.record(folder / name.format(rank=rank)) if name else nullcontext()


def run_products(
    order: Order, rank: int, world: int, options: dict[str, Any], folder: Path
) -> float:
    """Compile and run the graphs; return the largest error, as a part of the largest value; infinite if a value is NaN."""
    torch.manual_seed(0)
    models = [Products(graph, order.products) for graph in range(order.graphs)]
    x, worst = torch.randn(4, 16 + order.graphs * order.products), 0.0
    begin = rank * order.graphs // world
    for number, model in enumerate(models[begin:] + models[:begin]):
        if rank == order.skip and model is models[-1]:
            continue
        compiled: Any = torch.compile(model, backend="inductor_plugin", options=options)
        with torch.no_grad(), recorded(folder, "" if number else order.parts, rank):
            worst = max(worst, difference(compiled(x), model(x)))
    return worst


class Block(nn.Module):
    """A layer of a user's: Dynamo does not compile a module of torch alone."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(32, 48), nn.GELU(), Block(48, 32))


def train(model: Any, function: Any, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Return the losses of two steps, and of the model after them."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), list[float]()
    for _ in range(2):
        loss = (function(x) - y).square().mean()
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    losses.append(float((function(x) - y).square().mean().detach()))
    return losses


def run_training(order: Order, rank: int, world: int, options: dict[str, Any]) -> list[list[float]]:
    """Return the losses of the job's model, and those of the same model in one process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(1)
    x, y = torch.randn(8 * world, 32), torch.randn(8 * world, 32)
    alone = train(plain := network(), plain, x, y)
    mesh, model = init_device_mesh("cpu", (world,)), network()
    if order.model == "tensor":
        parallelize_module(
            model, mesh, {"0.linear": ColwiseParallel(), "2.linear": RowwiseParallel()}
        )
    else:
        for layer in (model[0], model[2]):  # the blocks: FSDP2's hooks around them are not compiled
            layer.compile(backend="inductor_plugin", options=options)
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
    whole = order.model == "tensor"
    function = torch.compile(model, backend="inductor_plugin", options=options) if whole else model
    losses = torch.tensor(train(model, function, x, y))
    if order.model == "fsdp":  # each rank has seen its part of the batch
        dist.all_reduce(losses)
        losses /= world
    return [losses.tolist(), alone]


class Warnings(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def join(port: int, rank: int, world: int, announced: Path | None = None) -> Any:
    """Initialize the process group on a store, and return that.

    Args:
        port: The port of its server.
        rank: This rank.
        world: Number of ranks.
        announced: The file that has the port instead, which rank 0 writes: it is the server then.
    """
    serves = announced is not None and rank == 0
    if announced is not None:
        port = 0 if serves else read_port(announced)
    store = dist.TCPStore("127.0.0.1", port, world, is_master=serves, wait_for_workers=False)
    if announced is not None and serves:  # the group waits for the others, who need the port
        announced.with_suffix(".part").write_text(str(store.port))
        announced.with_suffix(".part").replace(announced)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(minutes=10)
    )
    return store


def read_port(file: Path) -> int:
    """Wait for a file with a port."""
    ends = time.monotonic() + START_S
    while not file.exists():
        assert time.monotonic() < ends, "rank 0 has not started"
        time.sleep(0.05)
    return int(file.read_text())


def tune_products(
    order: Order,
    rank: int,
    world: int,
    options: dict[str, Any],
    folder: Path,
    decisions: dict[str, list[Any]],
) -> dict[str, Any]:
    """Run the products, in a second process group again if so ordered. Return the error, and the first group's decisions."""
    error = run_products(order, rank, world, options, folder)
    if not order.again:
        return {"error": error}
    before = {**decisions}
    dist.destroy_process_group()
    torch._dynamo.reset()
    join(order.later_port, world - 1 - rank, world)
    later = options | {"cache_dir": str(folder / f"later-{rank}")}
    return {"error": max(error, run_products(order, rank, world, later, folder)), "before": before}


def leave(store: Any, rank: int, world: int) -> None:
    """End no earlier than the others where this rank serves their store."""
    count, ends = store.add("left", 1), time.monotonic() + START_S
    while rank == 0 and count < world:
        assert time.monotonic() < ends, "another rank does not end"
        time.sleep(0.05)
        count = store.add("left", 0)


def main(arguments: Sequence[str]) -> None:
    rank, world, port = map(int, arguments[:3])
    folder, order = Path(arguments[3]), Order(**json.loads(arguments[4]))
    torch.set_num_threads(1)
    store = join(port, rank, world, folder / "port" if order.host else None)
    warnings = Warnings()
    logging.getLogger("inductor_plugin").addHandler(warnings)
    if rank in (order.kill, order.stop):
        at_second_problem(signal.SIGKILL if rank == order.kill else signal.SIGSTOP)
    if order.taste and rank % 2:
        selection.decide = rivals_win
        race.LEAD = (
            math.inf
        )  # a rival that is far behind would be measured a few times, and not be chosen
    decisions: dict[str, list[Any]] = {}

    def take(tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            winner = ticket.verdict.winner if ticket.verdict else None
            by = ticket.agreed.rank if ticket.agreed else None
            why = ticket.verdict.reason if ticket.verdict else ""
            decisions[f"{ticket.problem.op}/{ticket.digest}"] = [winner, by, why]

    cache = folder / ("cache" if order.shared_cache else f"cache-{rank}")
    options: dict[str, Any] = {"cache_dir": str(cache), "ranks_timeout_s": order.timeout_s}
    if rank == order.odd:
        options |= order.odd_options
    said: dict[str, Any] = {"rank": rank, "decisions": decisions}
    started = time.monotonic()
    with (
        rivals_offered(),
        inductor_plugin.observe(take),
        recorded(folder, order.record, rank),
    ):
        if order.model == "products":
            said |= tune_products(order, rank, world, options, folder, decisions)
        else:
            said["losses"] = run_training(order, rank, world, options)
    said["seconds"] = time.monotonic() - started
    if order.verify:
        said["report"] = asdict(inductor_plugin.verify_ranks(timeout_s=120.0))
    said["stats"] = asdict(inductor_plugin.stats())
    RUNTIME.close()  # as `atexit` does, which `os._exit` leaves out: what is to be warned of is said then
    said["warnings"] = warnings.texts
    print(json.dumps(said), flush=True)
    if order.host and 0 not in (order.kill, order.stop):
        leave(store, rank, world)
    os._exit(0)  # a process group of which ranks are dead takes minutes to end


if __name__ == "__main__":
    main(sys.argv[1:])
