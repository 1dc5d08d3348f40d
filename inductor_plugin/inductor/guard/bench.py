"""Compiled graphs, sent to the benchmark worker: nothing that a graph does there reaches the user's process."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa
from torch._inductor.output_code import CompiledFxGraphConstantsWithGm
from torch._inductor.runtime.cache_dir_utils import cache_dir

from inductor_plugin.errors import WorkerError
from inductor_plugin.inductor.facts.toolchain import triton_variables
from inductor_plugin.inductor.guard.comparison import Comparison
from inductor_plugin.inductor.guard.description import CannotDescribeError, Described
from inductor_plugin.worker.bench_worker import SETUP_S, BenchWorker
from inductor_plugin.worker.graph_job import (
    TURN_WAIT_S,
    GraphCode,
    GraphJob,
    GraphTimes,
    LoadSettings,
)
from inductor_plugin.worker.jobs import CallJob, JobFailed

logger = logging.getLogger(__name__)

_CHILD = "inductor_plugin.worker.child.graphs"
_CODEGEN = ("cpp.", "triton.", "cuda.", "cutlass.", "cpp_wrapper", "graph_partition")
"""Beginnings of the names of Inductor's options that change how generated code is compiled or loaded."""


_READY: WeakKeyDictionary[BenchWorker, int | None] = WeakKeyDictionary()
"""Workers that have run graphs, and the process in which each did."""
_READY_LOCK = threading.Lock()
"""Threads compile: none adds a worker while another goes through them."""


class NotComparedError(Exception):
    """Graphs were not run in turns; the message says why."""


class CallsTooLongError(NotComparedError):
    """A graph's calls take longer than there is time for.

    Attributes:
        need_s: Seconds that the fewest calls would take.
    """

    def __init__(self, reason: str, need_s: float) -> None:
        """Keep the seconds that are needed."""
        super().__init__(reason)
        self.need_s = need_s


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that Inductor has compiled.

    Attributes:
        code: What Inductor returned, a `CompiledFxGraph`.
        gm: The graph that it was compiled from, which owns the frozen weights.
    """

    code: Any
    gm: fx.GraphModule

    def constants(self) -> Mapping[str, Any]:
        """Return the constants that the generated module reads, by name."""
        if self.code.torchbind_constants:
            name = next(iter(self.code.torchbind_constants))
            raise CannotDescribeError(f"constant {name} is an object of C++")
        unwrapped: Any = CompiledFxGraphConstantsWithGm(self.gm)
        return unwrapped.unwrap(self.code)


@dataclass(frozen=True)
class GraphBench:
    """Runs compiles of one graph in turns, in the benchmark worker.

    Attributes:
        worker: The worker of the graph's device.
        described: The graph's inputs.
        settings: How the worker loads generated code.
        donated: Indices of the inputs in which a graph may write its results: Inductor does not say of them that they are changed.
    """

    worker: BenchWorker
    described: Described
    settings: LoadSettings
    donated: tuple[int, ...] = ()

    def prepare(self) -> None:
        """Let the worker import Inductor, in the background."""
        job = CallJob(_CHILD, "prepare", (self.settings,))
        threading.Thread(
            target=self._try, args=(job, 2 * SETUP_S), name="graph bench", daemon=True
        ).start()

    def compare(self, graphs: Sequence[CompiledGraph], limit_s: float, most_s: float) -> Comparison:
        """Return how long graphs take, in turns.

        Args:
            graphs: The tuned graph, that with library kernels and, if need be, that without autotuning.
            limit_s: Seconds after which no turn begins.
            most_s: Seconds that the fewest calls may take in all.

        Raises:
            CallsTooLongError: They would take longer.
            NotComparedError: They were not run, or the worker broke.
            CannotDescribeError: A constant cannot be carried.
        """
        changed = {index for graph in graphs for index in graph.code.mutated_input_idxs}
        if self.worker.settings.device == "cpu":
            # A GPU is as fast with denormals, and may have no memory for a copy of most of what a backward graph reads.
            changed.update(self.donated)
        job = GraphJob(
            graphs=tuple(
                GraphCode(graph.code.source_code, self.described.constants(graph.constants()))
                for graph in graphs
            ),
            inputs=self.described.inputs,
            changed=tuple(sorted(changed)),
            device=self.worker.settings.device,
            settings=self.settings,
            limit_s=limit_s,
            most_s=most_s,
        )
        # Twice, since the time of one call of one graph decides whether all are run.
        wait_s = SETUP_S + TURN_WAIT_S + 2 * max(limit_s, most_s)
        times = self._try(CallJob(_CHILD, "compare", (job,)), wait_s)
        if isinstance(times, JobFailed):
            raise NotComparedError(f"{times.status}: {times.reason}")
        assert isinstance(times, GraphTimes)
        with _READY_LOCK:
            _READY[self.worker] = self.worker.pid
        logger.debug("graphs were loaded in %.1f s and run in %.1f s", times.load_s, times.run_s)
        if times.reason:
            raise CallsTooLongError(times.reason, times.need_s)
        tuned, library, *plain = times.samples_ms
        plain_ms = plain[0] if plain else ()
        return Comparison(tuned, library, times.disturbed, plain_ms, times.run_s)

    def _try(self, job: CallJob, limit_s: float) -> Any:
        try:
            return self.worker.call(job, limit_s)
        except WorkerError as error:
            return JobFailed("crashed", str(error))


def is_ready(device: str) -> bool:
    """Return True if a worker of a device runs that has run graphs, so that it has imported Inductor."""
    with _READY_LOCK:
        known = [*_READY.items()]
    return any(
        worker.settings.device == device and pid is not None and worker.pid == pid
        for worker, pid in known
    )


def load_settings(device: str) -> LoadSettings:
    """Return how this process compiles generated code now."""
    variables = {"TORCHINDUCTOR_CACHE_DIR": cache_dir()}
    if device != "cpu":
        variables |= dict(triton_variables(torch.device(device)))
    return LoadSettings(
        environment=tuple(sorted(variables.items())),
        options=tuple(_changed_options()),
        isa=_isa(),
    )


def _isa() -> bytes:
    isa = cpu_vec_isa.pick_vec_isa()
    return pickle.dumps(isa) if isa else b""


def _changed_options() -> list[tuple[str, object]]:
    module: Any = inductor_config
    return [
        (name, value)
        for name, value in sorted(module.get_config_copy().items())
        if name.startswith(_CODEGEN) and not module._is_default(name) and _is_plain(value)
    ]


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("Sequence[object]", value)))
    return value is None or isinstance(value, bool | int | float | str)
