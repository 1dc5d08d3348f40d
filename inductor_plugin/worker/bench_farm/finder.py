"""Finds a node that measures for a device of this machine, and holds it: one at a time, which no other process gets meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.bench_farm.fit import NodeFacts
from inductor_plugin.worker.farm.resource import start_command
from inductor_plugin.worker.jobs import WorkerSettings
from inductor_plugin.worker.process import START_S

logger = logging.getLogger(__name__)

FACTS_S = 2 * START_S
"""Limit of a node's first answer, for which its worker starts."""
RELEASE_S = 15.0
_SEARCH_S = 120.0
"""After so long no further node is asked: somebody waits for the search."""
_LEAST_S = 20.0
"""A node has an equal share of the rest to reserve a device and to start a process, but no less than this."""
_AGAIN_S = 60.0
"""Seconds after a search in vain in which there is no other: each graph would wait for its own."""


class NodeLostError(WorkerError):
    """A node does not answer any more: it, or the process on it, has ended."""


class HeldNode(Protocol):
    """A node that is held; see `BenchNode`, which runs there."""

    @property
    def host(self) -> str:
        """Its name, for people."""
        ...

    def ask(self, what: str, *arguments: Any, limit_s: float) -> Any:
        """Call a method of its `BenchNode`.

        Raises:
            NodeLostError: It has ended, or has not answered within the limit.
        """
        ...

    def keep(self, digest: str, reference: Any) -> None:
        """Send a content that has been put into the object store.

        Raises:
            NodeLostError: It has ended.
        """
        ...

    def end(self) -> None:
        """End the process there at once; what waits for an answer gets `NodeLostError`."""
        ...


class BenchNodes(Protocol):
    """What measuring needs of a cluster; see `BenchCluster`."""

    def known_by(self, resources: Sequence[str]) -> list[str]:
        """Return the nodes that have one of these resources, those that have the first of them first.

        Raises:
            WorkerError: The cluster cannot be asked.
        """
        ...

    def hold(
        self, node: str, resources: Sequence[str], settings: WorkerSettings, limit_s: float
    ) -> HeldNode:
        """Reserve a device of a node, and start a `BenchNode` there within a limit.

        Raises:
            NodeLostError: The node has gone, or others have its devices.
        """
        ...

    def put(self, content: bytes) -> Any:
        """Put a content into the object store, and return a reference to it.

        Raises:
            WorkerError: The connection has ended.
        """
        ...

    @property
    def alive(self) -> bool:
        """False once the connection has ended."""
        ...

    def hurry(self) -> None:
        """Let calls end within a few seconds, those that wait included: it is about to be closed."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class NodeFinder:
    """Finds and holds one fitting node for a device.

    Safe to use from several threads: those that need the node wait while it is searched for.

    Attributes:
        connections: How often it has connected; what is in the object store of a former connection is lost.
    """

    def __init__(
        self,
        connect: Callable[[], BenchNodes],
        resources: Sequence[str],
        settings: WorkerSettings,
        why_not: Callable[[NodeFacts], str | None],
    ) -> None:
        """Search for nothing yet.

        Args:
            connect: Connects to the cluster; raises `WorkerError` where that fails.
            resources: By which nodes with the device are known.
            settings: Of the benchmark worker.
            why_not: Returns why a node may not measure, None if it may.
        """
        self._connect = connect
        self._resources = tuple(resources)
        self._settings = settings
        self._why_not = why_not
        self._lock = threading.RLock()
        self._nodes: BenchNodes | None = None
        self._held: HeldNode | None = None
        self._searched: HeldNode | None = None
        self._name, self._last = "", set[str]()
        self._failed: tuple[float, str] | None = None  # when the last search was in vain, and why
        self._closed, self.connections = False, 0

    @property
    def held(self) -> HeldNode | None:
        """The node that is held, if any."""
        return self._held

    def node(self) -> HeldNode:
        """Return the node that is held; one is searched for if there is none, unless that was in vain less than a minute ago.

        Raises:
            WorkerError: There is none that fits, with the reason of each, or this was closed.
        """
        with self._lock:
            self._check()
            node = self._held
            if node is None:
                node = self._held = self._new_node()
            if self._closed:  # meanwhile, by a thread that has seen no node
                self._held = None
                node.end()
            self._check()
            return node

    def put(self, content: bytes) -> Any:
        """Put a content into the cluster's object store, and return a reference to it.

        Raises:
            WorkerError: The cluster cannot be reached.
        """
        return self._cluster().put(content)

    def lose(self, node: HeldNode) -> None:
        """Give up a node that does not answer."""
        with self._lock:
            if self._held is node:
                self._held = self._failed = None
                self._last.add(self._name)
        node.end()

    def release(self) -> None:
        """Give the node back: others may measure there."""
        with self._lock:
            node, self._held = self._held, None
        if node is not None:
            _released(node)

    def hurry(self) -> None:
        """Let calls of the cluster end within a few seconds: this is about to be closed."""
        nodes = self._nodes
        if nodes is not None:
            nodes.hurry()

    def close(self) -> None:
        """Give the node back, and search for no other; may be called from any thread at any time.

        It does not wait for the lock, which a search has for minutes: that gives back itself what it comes by later.
        """
        self._closed = True
        self.hurry()
        for node in filter(None, (self._searched, self._held)):
            node.end()  # a thread that waits for its answer need not
        nodes, self._held, self._nodes = self._nodes, None, None
        if nodes is not None:
            nodes.close()

    def _check(self) -> None:
        if self._closed:
            raise WorkerError("the benchmark worker on nodes of the farm is closed")

    def _cluster(self) -> BenchNodes:
        with self._lock:
            self._check()
            nodes = self._nodes
            if nodes is not None and not nodes.alive:
                self._nodes = None
                nodes.close()
                nodes = None
            if nodes is None:
                nodes = self._nodes = self._connect()
                self.connections += 1
            if self._closed:  # while it was connected
                self._nodes = None
                nodes.close()
            self._check()
            return nodes

    def _new_node(self) -> HeldNode:
        """Search for a node, unless that was in vain a moment ago.

        Raises:
            WorkerError: There is none.
        """
        if self._failed is not None and time.monotonic() - self._failed[0] < _AGAIN_S:
            raise WorkerError(self._failed[1])
        try:
            node = self._search()
        except WorkerError as error:
            self._failed = time.monotonic(), str(error)
            raise
        self._failed = None
        return node

    def _search(self) -> HeldNode:
        reasons: list[str] = []
        nodes, ends = self._cluster(), time.monotonic() + _SEARCH_S
        # A cluster knows late that a node has gone; one whose process alone was lost may be the only one.
        names = sorted(nodes.known_by(self._resources), key=lambda name: name in self._last)
        for number, name in enumerate(names):
            self._check()
            rest_s = ends - time.monotonic()
            if rest_s <= 0:  # the next search begins with the others
                self._last = set(names[:number])
                reasons.append(f"{len(names) - number} others were not asked in {_SEARCH_S:.0f} s")
                break
            limit_s = max(_LEAST_S, rest_s / (len(names) - number))
            try:
                node = nodes.hold(name, self._resources, self._settings, limit_s)
                self._searched = node
            except NodeLostError as error:
                reasons.append(f"{name}: {error}")
                continue
            reason = self._why_not_held(node)
            self._searched = None
            if reason is None:
                logger.info("%s measures", node.host)
                self._name = name
                return node
            reasons.append(f"{node.host}: {reason}")
            logger.debug("%s does not measure: %s", node.host, reason)
        self._check()
        listed = "; ".join(dict.fromkeys(reasons))
        resource = self._resources[0]
        raise WorkerError(
            f"no node of the farm measures: {listed}"
            if listed
            else f"no node of the farm has the resource {resource!r}; start one with `{start_command(resource)}`"
        )

    def _why_not_held(self, node: HeldNode) -> str | None:
        """Return why a node does not measure, and give it back; None if it does."""
        try:
            answer = node.ask("facts", limit_s=FACTS_S)
        except NodeLostError as error:
            node.end()
            return str(error)
        reason = answer.error or self._why_not(answer.result)
        if reason is not None:
            _released(node)
        return reason


def _released(node: HeldNode) -> None:
    """End a node's worker and its files, then the process."""
    try:
        node.ask("close", limit_s=RELEASE_S)
    except NodeLostError as error:
        logger.debug("%s is given back: %s", node.host, error)
    node.end()
