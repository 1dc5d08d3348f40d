"""One process that compiles small graphs again and again while everything around it fails.

Started as ``python -m tests.support.processes.long``. It compares every result with eager's, takes stock of
what the process holds after the first rounds and after the last, and prints that as one JSON line.
With ``--stock`` it compiles the same with Inductor alone, undisturbed: what torch itself keeps.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor

import inductor_plugin
from inductor_plugin.tuning import scratch
from tests.support.candidates import changing_faults, faults
from tests.support.graphs.small import Small, graphs

INTERRUPT_POLL_S = 0.002
"""Seconds until Ctrl-C is tried again where the plugin does not run."""
_PLUGIN = str(Path(inductor_plugin.__file__).parent)
ROUNDS = 3
"""Numbers under which faulty candidates come back, so that records end to grow."""
CHANCES = {
    "new candidates": 20,
    "costly candidate": 8,
    "killed worker": 10,
    "damaged file": 12,
    "removed file": 8,
    "interrupt": 8,
    "removed cache": 1,
    "": 33,
}
"""What is done to a compile, and how often, in percent."""


@dataclass(frozen=True)
class Stock:
    """What the process holds while nothing is compiled and no worker runs.

    Attributes:
        descriptors: Open files, by what they are.
        threads: Names of threads.
        children: Processes that outlive a SIGKILL to all workers.
        objects: Living objects of the plugin's own classes.
        rss_bytes: Resident memory after a collection.
        temporary: Files in the temporary folder and in memory.
        inductor: Files in Inductor's cache.
        unfinished: Files in the plugin's cache that belong to no entry.
        locks: Lock files there.
    """

    descriptors: dict[str, int]
    threads: dict[str, int]
    children: int
    objects: dict[str, int]
    rss_bytes: int
    temporary: list[str]
    inductor: int
    unfinished: list[str]
    locks: int


def children() -> list[int]:
    """Return the numbers of this process's children."""
    pids: list[int] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            pids += map(int, listing.read_text(encoding="ascii").split())
    return pids


def kill_workers(within_s: float = 30.0) -> int:
    """Kill all children, and return how many are left after some seconds."""
    ends = time.monotonic() + within_s
    while (pids := children()) and time.monotonic() < ends:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return len(pids)


def stock(cache_dir: Path) -> Stock:
    """Take stock, with all workers killed."""
    left = kill_workers()
    time.sleep(0.5)  # their reapers close what they held
    for _ in range(3):
        gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    kinds: list[Any] = [type(thing) for thing in gc.get_objects()]
    objects = Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if str(kind.__module__).startswith("inductor_plugin") or kind.__name__ == "GraphLowering"
    )
    layout = cache_dir
    return Stock(
        descriptors=dict(Counter(_descriptors())),
        threads=dict(Counter(thread.name for thread in threading.enumerate())),
        children=left,
        objects=dict(objects),
        rss_bytes=rss_bytes(),
        temporary=[*_files(Path(tempfile.gettempdir())), *_shared()],
        inductor=len(_files(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))),
        unfinished=_files(layout / "private"),
        locks=len(_files(layout / "locks")),
    )


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _descriptors() -> list[str]:
    kinds: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            kinds.append(str(entry.readlink()).partition(":[")[0])
    return kinds


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if not path.is_dir())


def _shared() -> list[str]:
    """Return the folders of operands that this process has in memory."""
    process = scratch.process_id(os.getpid())
    assert process is not None
    return sorted(map(str, Path("/dev/shm").glob(f"{process.prefix}*")))


@dataclass
class Report:
    """How the compiles went.

    Attributes:
        done: What was done to them, by name.
        interrupted: Compiles that an interrupt ended.
        wrong: Results that differ from eager's.
        stocks: What the process held after the first rounds, and after the last.
        closed: What it held with the plugin's workers and pipelines closed.
        counters: The plugin's counters.
        statuses: How candidates ended, by the records of the end.
        seconds: Duration of the compiles.
    """

    done: Counter[str] = field(default_factory=Counter[str])
    interrupted: int = 0
    wrong: list[str] = field(default_factory=list[str])
    stocks: list[Stock] = field(default_factory=list[Stock])
    closed: Stock | None = None
    counters: dict[str, Any] = field(default_factory=dict[str, Any])
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0


class Day:
    """The compiles of a process, in an order and with mishaps that a seed decides."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.cache_dir = Path(arguments.cache_dir)
        self.plain = bool(arguments.stock)
        self.chance = random.Random(arguments.seed)
        self.smalls = graphs(arguments.graphs)
        self.expected = [small.results() for small in self.smalls]
        self.rounds = arguments.compiles // arguments.graphs
        self.report = Report()
        self.template: changing_faults.ChangingFaults | None = None

    def run(self) -> Report:
        """Compile each graph once a round; take stock after a third of the rounds, and at the end."""
        started = time.monotonic()
        with nullcontext() if self.plain else changing_faults.offered() as self.template:
            for number in range(self.rounds):
                order = list(range(len(self.smalls)))
                self.chance.shuffle(order)
                for index in order:
                    (what,) = self.chance.choices([*CHANCES], [*CHANCES.values()])
                    self.step(index, what, random.Random(self.chance.random()))
                say(
                    f"round {number + 1}: {rss_bytes() >> 20} MiB, {len(_descriptors())} descriptors"
                )
                # A round more than a third: all graphs have met an interrupt, an emptied cache, a killed worker.
                if number in (self.rounds // 3, self.rounds - 1):
                    torch._dynamo.reset()
                    self.report.stocks.append(stock(self.cache_dir))
                    say(f"after round {number + 1}: {self.report.stocks[-1].rss_bytes >> 20} MiB")
        self.report.seconds = time.monotonic() - started
        return self.report

    def step(self, index: int, what: str, chance: random.Random) -> None:
        """Compile a graph with a mishap, and compare."""
        began = time.monotonic()
        self.report.done[what] += 1
        self.prepare(what, chance)
        timer: threading.Timer | None = None
        if what == "killed worker" and not self.plain:
            timer = threading.Timer(chance.uniform(0.0, 1.5), self.kill_one, [chance.random()])
            timer.start()
        if what == "interrupt" and not self.plain:
            self.interrupt(index, chance.uniform(0.01, 0.5))
        self.check(index, what)
        if timer is not None:
            timer.cancel()
            timer.join()
        say(f"{self.smalls[index].name}: {what or 'nothing'}, {time.monotonic() - began:.1f} s")

    def prepare(self, what: str, chance: random.Random) -> None:
        """Do what is done before a compile."""
        if self.template is None:
            return
        if what in ("new candidates", "costly candidate"):
            names = [f"random_faults::{name}" for name in changing_faults.CHEAP]
            picked = chance.sample([*names, *changing_faults.OF_PRODUCTS], 2)
            if what == "costly candidate":
                picked.append(chance.choice(changing_faults.COSTLY))
            self.template.faults, self.template.round = tuple(picked), chance.randrange(ROUNDS)
        elif what == "removed cache":
            shutil.rmtree(self.cache_dir, ignore_errors=True)
        elif what in ("damaged file", "removed file"):
            self.harm(what, chance)

    def harm(self, what: str, chance: random.Random) -> None:
        """Damage or remove a record, a quarantine entry or a kernel."""
        places = [
            *self.cache_dir.glob("records/*/*/*.json"),
            *self.cache_dir.glob("quarantine/*/*.json"),
            *self.cache_dir.glob("kernels/*/*/*"),
        ]
        if not places:
            return
        path = chance.choice(sorted(places))
        if what == "removed file":
            shutil.rmtree(path.parent) if "kernels" in path.parts else path.unlink()
            return
        data = bytearray(path.read_bytes())
        if chance.random() < 0.5 and data:
            data[chance.randrange(len(data))] ^= 0x20
        else:
            del data[chance.randrange(len(data) + 1) :]
        other = path.with_name("new")  # not in place: a loaded library is mapped
        other.write_bytes(data)
        other.replace(path)

    def kill_one(self, number: float) -> None:
        """Kill a worker."""
        pids = sorted(children())
        if pids:
            with suppress(ProcessLookupError):
                os.kill(pids[int(number * len(pids))], signal.SIGKILL)

    def interrupt(self, index: int, after_s: float) -> None:
        """Compile a graph, and press Ctrl-C when the plugin runs, some seconds after its start."""
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s, INTERRUPT_POLL_S)
            self.compiled(index)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        except KeyboardInterrupt:
            self.report.interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def check(self, index: int, what: str) -> None:
        """Compile a graph, and compare its results with eager's."""
        got = self.compiled(index)
        for ours, theirs in zip(got, self.expected[index], strict=True):
            if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
                self.report.wrong.append(f"{self.smalls[index].name} ({what})")

    def compiled(self, index: int) -> list[Tensor]:
        """Return the results of a graph, compiled anew."""
        torch._dynamo.reset()
        small: Small = self.smalls[index]
        options: dict[str, Any] = {"max_autotune": True}
        if not self.plain:
            options |= {
                "cache_dir": str(self.cache_dir),
                "bench_timeout_s": 2,
                "worker_memory_bytes": faults.MEMORY_BYTES,
                "compile_workers": 1,
            }
        backend = "inductor" if self.plain else "inductor_plugin"
        with inductor_config.patch(freezing=small.frozen):
            function: Callable[..., Tensor] = torch.compile(
                small.function, backend=backend, options=options
            )
            return small.results(function)


def press_in_plugin(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt if the main thread runs code of the plugin, or waits in a function that this called.

    Inside of torch's dispatch an interrupt may leave a mode set, and the destructor that finds two of them ends the
    process ("trying to set the current FakeTensorMode, but one already exists").
    """
    while frame is not None:
        path = frame.f_code.co_filename
        if f"{os.sep}torch{os.sep}" in path or path.startswith("<"):
            return
        if path.startswith(_PLUGIN):
            raise KeyboardInterrupt
        frame = frame.f_back


def say(text: str) -> None:
    logging.getLogger("long").info("%s", text)


def main() -> None:
    """Compile, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache-dir", required=True)
    parser.add_argument("--compiles", type=int, default=300)
    parser.add_argument("--graphs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stock", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("long").setLevel(logging.INFO)
    torch.set_num_threads(1)
    inductor_config.fx_graph_cache = False
    inductor_config.compile_threads = 1
    signal.signal(signal.SIGALRM, press_in_plugin)
    report = Day(arguments).run()
    if not arguments.stock:
        from inductor_plugin.cache import open_store
        from inductor_plugin.tuning.runtime import RUNTIME

        report.counters = inductor_plugin.stats().to_dict()
        records = open_store(arguments.cache_dir).iter_records()
        report.statuses = dict(Counter(m.status for r in records for m in r.candidates.values()))
        RUNTIME.close()
        report.closed = stock(Path(arguments.cache_dir))
    text = json.dumps(report, default=vars)
    print(text, flush=True)


if __name__ == "__main__":
    main()
