"""A Ray cluster on this machine: each node is a raylet with one CPU if nothing else is said, and processes of its own."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_STORE_BYTES = 100 << 20
_START_S = 200
"""How long Ray's core waits for a raylet on a machine that is busy."""


@contextmanager
def cluster(
    nodes: int, resources: Mapping[str, float] | None = None, cpus: int = 1
) -> Generator[Any]:
    """Start a cluster, and connect to it; skip the test where Ray is not installed.

    Args:
        nodes: Its nodes.
        resources: Custom resources of each.
        cpus: CPUs of each.
    """
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(_START_S))  # read when it is imported
    ray: Any = pytest.importorskip("ray")
    utilities: Any = importlib.import_module("ray.cluster_utils")
    started = utilities.Cluster()
    try:
        for _ in range(nodes):
            add_node(started, resources, cpus)
        ray.init(address=started.address, log_to_driver=False, configure_logging=False)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def add_node(
    started: Any,
    resources: Mapping[str, float] | None = None,
    cpus: int = 1,
    memory_bytes: int | None = None,
    attempts: int = 3,
) -> Any:
    """Add a node, and return it.

    Ray gives a node up that has not started within 30 s, as on a machine with ten times as many processes as cores.

    Args:
        started: The cluster.
        resources: Custom resources of the node.
        cpus: Its CPUs.
        memory_bytes: Its memory for tasks; None for what the machine has.
        attempts: How often it is tried.
    """
    memory = {} if memory_bytes is None else {"memory": memory_bytes}
    try:
        return started.add_node(
            num_cpus=cpus,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            resources=dict(resources or {}),
            **memory,
        )
    except Exception:  # what Ray raises has no class of its own
        if attempts == 1:
            raise
        return add_node(started, resources, cpus, memory_bytes, attempts - 1)


def compiling_processes(place: str) -> list[int]:
    """Return the numbers of worker processes that run a compile now; see `ray_processes`."""
    return ray_processes(place, b"ray::compile")


def ray_processes(place: str, beginning: bytes) -> list[int]:
    """Return the numbers of worker processes of a name, on the nodes whose raylet was started with a text.

    Args:
        place: A cluster's address, or the name of a node's socket (``raylet_socket_name``).
        beginning: Of their names, which Ray makes of what they run: ``ray::BenchNode``.
    """
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if not (folder / "cmdline").read_bytes().startswith(beginning):
                continue
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            raylet = Path(f"/proc/{parent}/cmdline").read_text()
        except OSError:
            continue
        if place in raylet:  # not another test's
            pids.append(int(folder.name))
    return pids


def kill(pid: int) -> None:
    """End a process without a chance to say anything."""
    os.kill(pid, signal.SIGKILL)
