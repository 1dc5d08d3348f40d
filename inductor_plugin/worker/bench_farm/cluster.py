"""Ray, as measuring on nodes uses it: an actor on each node that is held, with the GPU that Ray gives it."""

from __future__ import annotations

import logging
import os
import platform
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.bench_farm.finder import HeldNode, NodeLostError
from inductor_plugin.worker.bench_farm.node import BenchNode
from inductor_plugin.worker.farm.connection import ANSWER_S, Connection, Result, reason_of
from inductor_plugin.worker.farm.resource import GPU, reserved
from inductor_plugin.worker.jobs import WorkerSettings

Entry = TypeVar("Entry")

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_KEEP_S = 300.0
"""Limit of sending one content: 10 GB at 0.3 Gbit/s."""


class BenchCluster:
    """A connection to a Ray cluster, and nodes of it that measure."""

    def __init__(self, farm: str, *, on_gpu: bool) -> None:
        """Connect.

        Args:
            farm: Option ``bench_farm``.
            on_gpu: Whether what is measured is one of Ray's GPUs.

        Raises:
            OptionError: Ray is not installed.
            WorkerError: The cluster cannot be reached.
        """
        self._connection = Connection(farm, "bench_farm")
        self._on_gpu = on_gpu
        self._closed = False
        try:
            self._actor = self._connection.ray.remote(BenchNode)
        except Exception as error:  # as of connecting
            raise self._connection.failed(error) from error

    def known_by(self, resources: Sequence[str]) -> list[str]:
        """Return the nodes that have one of these resources, those that have the first of them first.

        Each process begins with another one, so that they do not all ask for the same devices.

        Raises:
            WorkerError: The cluster cannot be asked.
        """
        self._connection.check()
        known = [(node, node["Resources"]) for node in self._asked()]
        exact = [n for n, all_ in known if all_.get(resources[0], 0) > 0]
        rest = [
            n for n, all_ in known if n not in exact and any(all_.get(r, 0) > 0 for r in resources)
        ]
        return [node["NodeID"] for group in (exact, rest) for node in rotated(group, _own_number())]

    def hold(
        self, node: str, resources: Sequence[str], settings: WorkerSettings, limit_s: float
    ) -> HeldNode:
        """Reserve a device of a node, and start a `BenchNode` there within a limit.

        Raises:
            NodeLostError: The node has gone, or others have its devices.
            WorkerError: The connection has ended.
        """
        self._connection.check()
        facts = {each["NodeID"]: each for each in self._asked()}.get(node)
        if facts is None:
            raise NodeLostError("it has left the cluster")
        needed = reserved(facts["Resources"], resources, on_gpu=self._on_gpu)
        try:
            options: dict[str, Any] = {
                "num_cpus": 0,
                "num_gpus": needed.pop(GPU, 0.0),
                "resources": needed or None,
                "scheduling_strategy": self._connection.only_on(node),
                "max_restarts": 0,
            }
            actor = self.within(ANSWER_S, lambda: self._actor.options(**options).remote(settings))
        except Exception as error:  # whatever Ray raises, this node does not measure
            raise NodeLostError(reason_of(error)) from error
        held = RayNode(self, actor, str(facts["NodeManagerHostname"]))
        try:
            held.ask("pid", limit_s=limit_s)
        except NodeLostError as error:
            held.end()
            raise NodeLostError(f"no process starts there, or others measure ({error})") from error
        return held

    def put(self, content: bytes) -> Any:
        """Put a content into the object store, and return its reference.

        Raises:
            WorkerError: The connection has ended.
        """
        try:
            return self.within(_KEEP_S, lambda: self._connection.ray.put(content))
        except WorkerError:
            raise
        except Exception as error:  # a full store, a lost connection
            raise WorkerError(f"the farm's object store: {reason_of(error)}") from error

    def hurry(self) -> None:
        """Let calls end within a few seconds; see `Connection.hurry`."""
        self._connection.hurry()

    def close(self) -> None:
        """Disconnect, unless the user's program had connected before; what waits for an answer gets `NodeLostError`."""
        self._closed = True
        self._connection.close()

    @property
    def alive(self) -> bool:
        """False once it is closed, or the connection has ended."""
        return not self._closed and self._connection.alive

    def within(self, limit_s: float, do: Callable[[], Result]) -> Result:
        """Call Ray, with a limit; see `Connection.within`."""
        return self._connection.within(limit_s, do)

    @property
    def ray(self) -> Any:
        """Ray."""
        return self._connection.ray

    def _asked(self) -> list[dict[str, Any]]:
        try:
            return self._connection.nodes()
        except Exception as error:  # as of connecting
            raise self._connection.failed(error) from error


def rotated(nodes: Sequence[Entry], number: int) -> list[Entry]:
    """Return nodes in the order of a process, which has this number. Pure."""
    start = number % max(1, len(nodes))
    return [*nodes[start:], *nodes[:start]]


def _own_number() -> int:
    """Return a number that hardly two processes share, on one machine or on two."""
    return zlib.crc32(f"{platform.node()} {os.getpid()}".encode())


class RayNode:
    """A node that is held, by the actor on it."""

    def __init__(self, cluster: BenchCluster, actor: Any, host: str) -> None:
        self._cluster = cluster
        self._actor = actor
        self._host = host
        self._ended = False

    @property
    def host(self) -> str:
        """The machine."""
        return self._host

    def ask(self, what: str, *arguments: Any, limit_s: float) -> Any:
        """Call a method of the actor.

        Raises:
            NodeLostError: It has ended, or has not answered within the limit.
        """
        try:
            return self._answer(what, arguments, limit_s)
        except NodeLostError:
            raise
        except Exception as error:  # the actor has died, its node is gone, or it raised: it is not trusted any more
            raise NodeLostError(reason_of(error)) from error

    def keep(self, digest: str, reference: Any) -> None:
        """Send a content from the object store.

        Raises:
            NodeLostError: The actor has ended, or its disk is full.
        """
        self.ask(
            "keep", digest, reference, limit_s=_KEEP_S
        )  # Ray passes the content of the reference

    def end(self) -> None:
        """Kill the actor."""
        self._ended = True
        if not self._cluster.alive:
            return
        try:
            self._cluster.within(ANSWER_S, lambda: self._cluster.ray.kill(self._actor))
        except Exception as error:  # noqa: BLE001  it has ended, or the cluster has
            logger.debug("%s is not ended: %s", self._host, reason_of(error))

    def _answer(self, what: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
        self._check()
        ray, ends = self._cluster.ray, time.monotonic() + limit_s
        within = self._cluster.within
        answer = within(ANSWER_S, lambda: getattr(self._actor, what).remote(*arguments))
        while not within(ANSWER_S, lambda: ray.wait([answer], timeout=_LOOK_S)[0]):
            self._check()
            if time.monotonic() > ends:
                raise NodeLostError(f"no answer within {limit_s:.0f} s")
        return within(_KEEP_S, lambda: ray.get(answer))

    def _check(self) -> None:
        if self._ended or not self._cluster.alive:
            raise NodeLostError("it was given up")
