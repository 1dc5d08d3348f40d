"""Measures for a GPU that this machine lacks, on a node of a cluster that has it (option ``bench_farm``).

target ─► a node whose GPU and software are the target's ─► lowered as for that very GPU ─► records under its environment
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from inductor_plugin.aot.fake_device import as_target, replaced
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.problem.target import Target
from inductor_plugin.tuning.environment import environment, worker_settings
from inductor_plugin.version import __version__
from inductor_plugin.worker.bench_farm.bench import finder_of
from inductor_plugin.worker.bench_farm.fit import NodeFacts, why_not_target
from inductor_plugin.worker.devices import cuda

_DEVICE = "cuda:0"


def node_of(gpu: Target, config: Config) -> NodeFacts:
    """Return what a node says that has a GPU, and the software with which kernels are made here.

    Raises:
        OptionError: No cluster is named, or Ray is not installed.
        WorkerError: The cluster cannot be reached, or no node of it fits, with the reason of each.
    """
    if not config.bench_farm:
        raise OptionError(
            f"a machine without the {gpu.name} measures on nodes of a cluster that have it; set option bench_farm "
            "(INDUCTOR_PLUGIN_BENCH_FARM=ray://HOST:PORT), or leave out --measure"
        )
    with as_target(gpu):
        wanted, settings = environment(_DEVICE), worker_settings(config, "bench", _DEVICE)
    fitting: list[NodeFacts] = []

    def why_not(node: NodeFacts) -> str | None:
        reason = why_not_target(wanted, node, __version__)
        fitting.extend([node] if reason is None else [])
        return reason

    finder = finder_of(config.bench_farm, settings, gpu.device_name, why_not)
    try:
        finder.node()
        finder.release()
    finally:
        finder.close()
    return fitting[-1]


@contextmanager
def as_node(gpu: Target, node: NodeFacts) -> Generator[None]:
    """Lower for the GPU of a node within the block, so that records are those of its environment; see `as_target`."""
    device, software = node.environment["device"], node.environment["software"]
    with (
        as_target(gpu, facts={"total_memory": device["memory_bytes"]}),
        replaced(cuda, "_driver", lambda: software["driver"]),
    ):
        yield
