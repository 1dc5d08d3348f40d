"""Nodes of a cluster without Ray: each is a `BenchNode` in this process, whose arguments and answers are pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inductor_plugin.tuning.environment import environment
from inductor_plugin.version import __version__
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.bench_farm.bench import FarmBench
from inductor_plugin.worker.bench_farm.finder import HeldNode, NodeFinder, NodeLostError
from inductor_plugin.worker.bench_farm.fit import why_not
from inductor_plugin.worker.bench_farm.node import BenchNode, NodeAnswer
from inductor_plugin.worker.jobs import WorkerSettings

RESOURCE = "inductor-plugin:cpu"


class FakeNode:
    """A node that is held, until a test loses it.

    Attributes:
        asked: Names of the methods that were called.
        limits_s: The limit of the last call of each of them.
        kept: Digests of the contents that it was sent.
        ended: True once it was given up.
        lost: True if it does not answer.
        during: Called with the name of a method before it runs.
        answers: What it answers in place of what runs there, by the name of the method.
    """

    def __init__(self, name: str, node: Any) -> None:
        self._name, self._node = name, node
        self.asked: list[str] = []
        self.limits_s: dict[str, float] = {}
        self.kept: list[str] = []
        self.ended = self.lost = False
        self.during: Callable[[str], None] = lambda _: None
        self.answers: dict[str, NodeAnswer] = {}

    @property
    def host(self) -> str:
        return self._name

    def ask(self, what: str, *arguments: Any, limit_s: float) -> Any:
        assert limit_s > 0
        self.asked.append(what)
        self.limits_s[what] = limit_s
        self.during(what)
        if self.lost or self.ended:
            raise NodeLostError(f"{self._name} is gone")
        if what in self.answers:
            return self.answers[what]
        sent = pickle.loads(pickle.dumps(arguments))
        return pickle.loads(pickle.dumps(getattr(self._node, what)(*sent)))

    def keep(self, digest: str, reference: bytes) -> None:
        self.kept.append(digest)
        self.ask("keep", digest, reference, limit_s=1.0)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._node.close()


class FakeBenchCluster:
    """A cluster whose nodes a test names.

    Attributes:
        names: The nodes that have the device.
        nodes: All that have been held, in order.
        limits: The nodes that were to be held, each with the limit of that.
        busy: Called with that limit first.
        put_contents: What was put into the object store.
        hurried: What nodes had been asked when it was to hurry; None before.
        closed: True once it was disconnected.
        alive: False once its connection is lost.
        make: Makes what runs on a node.
        error: Raised where a node is to be held.
    """

    def __init__(self, *names: str, make: Callable[[WorkerSettings], Any] = BenchNode) -> None:
        self.names = list(names)
        self.nodes: list[FakeNode] = []
        self.put_contents: list[bytes] = []
        self.limits: list[tuple[str, float]] = []
        self.busy: Callable[[float], None] = lambda _: None
        self.hurried: list[str] | None = None
        self.closed, self.alive = False, True
        self.make = make
        self.error: Exception | None = None

    def known_by(self, resources: Sequence[str]) -> list[str]:
        assert resources
        return list(self.names)

    def hold(
        self, node: str, resources: Sequence[str], settings: WorkerSettings, limit_s: float
    ) -> HeldNode:
        self.limits.append((node, limit_s))
        self.busy(limit_s)
        if self.error is not None:
            raise self.error
        self.nodes.append(FakeNode(node, self.make(settings)))
        return self.nodes[-1]

    def put(self, content: bytes) -> bytes:
        assert self.alive
        self.put_contents.append(content)
        return content

    def hurry(self) -> None:
        asked = [what for node in self.nodes for what in node.asked]
        self.hurried = asked if self.hurried is None else self.hurried

    def close(self) -> None:
        self.closed = True


class StubNode:
    """What runs on a node, without a process: it answers what a test has set.

    Attributes:
        facts_answer: Its facts.
        measured: The parcels that it was sent.
        answers: What it answers to them.
    """

    facts_answer = NodeAnswer(None)

    def __init__(self, settings: WorkerSettings, answer: Callable[[Any], Any]) -> None:
        self.settings, self._answer = settings, answer
        self.contents: dict[str, bytes] = {}
        self.closed = False

    def facts(self) -> NodeAnswer:
        return self.facts_answer

    def keep(self, digest: str, content: bytes) -> None:
        self.contents[digest] = content

    def measure(self, parcel: Any) -> NodeAnswer:
        assert set(parcel.digests()) <= self.contents.keys()
        return self._answer(parcel)

    def call(self, job: Any, limit_s: float) -> NodeAnswer:
        return self._answer(job)

    def why_not_available(self) -> NodeAnswer:
        return NodeAnswer()

    def pid(self) -> NodeAnswer:
        return NodeAnswer(1)

    def release(self) -> NodeAnswer:
        return NodeAnswer()

    def close(self) -> NodeAnswer:
        self.closed = True
        return NodeAnswer()


def bench_on(
    cluster: FakeBenchCluster | Callable[[], FakeBenchCluster],
    settings: WorkerSettings,
    wanted: Mapping[str, Any] | None = None,
    **more: Any,
) -> FarmBench:
    """Return the worker of a farm whose nodes are fakes.

    Args:
        cluster: The nodes, or what connects to them.
        settings: Of the worker.
        wanted: The environment that a node must have; None takes any node.
        more: Other arguments of `FarmBench`.
    """

    def judged(node: Any) -> str | None:
        return None if wanted is None else why_not(wanted, node, __version__)

    def connect() -> FakeBenchCluster:
        return cluster if isinstance(cluster, FakeBenchCluster) else cluster()

    return FarmBench(settings, NodeFinder(connect, (RESOURCE,), settings, judged), **more)


def environment_here(threads: int) -> dict[str, Any]:
    """Return the environment of this process, with another number of threads."""
    facts, cores = environment("cpu"), len(own_cores())
    device = {name: value for name, value in facts["device"].items() if name != "cores"}
    device |= {"threads": threads, **({"cores": cores} if cores < threads else {})}
    return {**facts, "device": device}
