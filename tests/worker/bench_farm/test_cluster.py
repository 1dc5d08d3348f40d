"""A device of a cluster is reserved, asked and given back; Ray is a module that takes its place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.bench_farm import cluster as cluster_module
from inductor_plugin.worker.bench_farm.cluster import BenchCluster
from inductor_plugin.worker.bench_farm.finder import NodeLostError
from inductor_plugin.worker.farm.connection import Connection
from inductor_plugin.worker.jobs import WorkerSettings
from tests.support.fakes.ray import FakeRay

SETTINGS = WorkerSettings((), "bench")
OWN, TYPE = "inductor-plugin:H200", "accelerator_type:H200"


class Actor:
    """What Ray returns for an actor: a method is called by ``remote``, and a reference is its name and arguments."""

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: object) -> tuple[str, tuple[object, ...]]:
            return name, arguments

        return SimpleNamespace(remote=remote)


class RayWithActors(FakeRay):
    """Ray, whose actors answer what a test has set.

    Attributes:
        known: The nodes.
        chosen: With which options actors were started.
        answers: What their methods return or raise, by name; one that is not here never answers.
        asked: The references that were waited for.
        killed: The actors that were ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: list[dict[str, Any]] = []
        self.chosen: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {"pid": 7}
        self.asked: list[Any] = []
        self.killed: list[Any] = []

    def nodes(self) -> list[dict[str, Any]]:
        return self.known

    def remote(self, function: Callable[..., object]) -> Any:
        def start(_settings: WorkerSettings) -> Actor:
            return Actor()

        def options(**chosen: Any) -> Any:
            self.chosen.append(chosen)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        (reference,) = references
        self.asked.append(reference)
        return (references, []) if reference[0] in self.answers else ([], references)

    def get(self, reference: Any) -> Any:
        answer = self.answers[reference[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def add(self, name: str, **resources: float) -> None:
        """Add a node; OWN and TYPE name the resources by which it is known."""
        named = {{"OWN": OWN, "TYPE": TYPE}.get(n, n): count for n, count in resources.items()}
        node = {"NodeID": name, "NodeManagerHostname": f"host of {name}"}
        self.known.append({**node, "Alive": True, "Resources": named})


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RayWithActors:
    fake = RayWithActors()

    def only_on(_: Connection, node: str) -> str:
        return f"only on {node}"

    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(Connection, "only_on", only_on)
    monkeypatch.setattr(cluster_module, "_own_number", lambda: 0)
    return fake


def test_nodes_are_known_once_and_those_with_the_exact_device_first(ray: RayWithActors) -> None:
    ray.add("type", TYPE=1.0)
    ray.add("both", OWN=2.0, TYPE=1.0)
    ray.add("none left", OWN=0.0)
    ray.add("head", CPU=8.0)
    cluster = BenchCluster("ray:auto", on_gpu=True)
    assert cluster.known_by((OWN, TYPE)) == ["both", "type"]
    cluster.close()
    with pytest.raises(WorkerError, match="has ended"):
        cluster.known_by((OWN, TYPE))


@pytest.mark.parametrize(
    ("resources", "on_gpu", "gpus", "reserved"),
    [
        ({"OWN": 2.0, "TYPE": 1.0, "GPU": 2.0}, True, 1.0, {OWN: 1.0}),
        ({"TYPE": 1.0, "GPU": 2.0}, True, 1.0, None),
        ({"OWN": 1.0, "GPU": 2.0}, False, 0.0, {OWN: 1.0}),  # a CPU is measured
    ],
)
def test_one_device_is_reserved_by_an_actor_that_does_not_move(
    ray: RayWithActors,
    resources: dict[str, float],
    gpus: float,
    reserved: dict[str, float] | None,
    *,
    on_gpu: bool,
) -> None:
    ray.add("another", OWN=1.0)
    ray.add("x", **resources)
    cluster = BenchCluster("ray:auto", on_gpu=on_gpu)
    node = cluster.hold("x", (OWN, TYPE), SETTINGS, 5.0)
    assert node.host == "host of x"
    assert ray.asked == [("pid", ())]  # it has started
    assert ray.chosen == [
        {
            "num_cpus": 0,
            "num_gpus": gpus,
            "resources": reserved,
            "scheduling_strategy": "only on x",
            "max_restarts": 0,
        }
    ]
    cluster.close()


def test_a_device_that_cannot_be_had_is_asked_for_no_longer(ray: RayWithActors) -> None:
    """Ray would start the actor once the device is free, and nobody would give it back."""
    ray.add("x", OWN=1.0)
    cluster = BenchCluster("ray:auto", on_gpu=True)
    with pytest.raises(NodeLostError, match="it has left the cluster"):
        cluster.hold("y", (OWN,), SETTINGS, 5.0)
    ray.answers.clear()
    with pytest.raises(NodeLostError, match=r"others measure \(no answer within 0 s\)"):
        cluster.hold("x", (OWN,), SETTINGS, 0.02)
    assert len(ray.killed) == 1
    cluster.close()


def test_a_node_answers_until_it_raises_or_is_given_up(ray: RayWithActors) -> None:
    ray.add("x", OWN=1.0)
    cluster = BenchCluster("ray:auto", on_gpu=True)
    node = cluster.hold("x", (OWN,), SETTINGS, 5.0)
    ray.answers |= {"measure": "measured", "keep": None}
    assert node.ask("measure", "parcel", limit_s=5.0) == "measured"
    node.keep("digest", cluster.put(b"content"))
    assert ray.asked[1:] == [("measure", ("parcel",)), ("keep", ("digest", b"content"))]
    ray.answers["measure"] = OSError("the disk is full")
    with pytest.raises(NodeLostError, match="OSError: the disk is full"):
        node.ask("measure", "parcel", limit_s=5.0)
    node.end()
    assert len(ray.killed) == 1
    with pytest.raises(NodeLostError, match="it was given up"):
        node.ask("pid", limit_s=5.0)
    cluster.close()


def test_a_connection_that_has_ended_gives_its_nodes_up(ray: RayWithActors) -> None:
    ray.add("x", OWN=1.0)
    cluster = BenchCluster("ray:auto", on_gpu=True)
    node = cluster.hold("x", (OWN,), SETTINGS, 5.0)
    assert cluster.alive
    cluster.close()
    assert not cluster.alive
    with pytest.raises(NodeLostError, match="it was given up"):
        node.ask("pid", limit_s=5.0)
    node.end()
    assert ray.killed == []  # Ray would start a cluster for it
    with pytest.raises(WorkerError, match="has ended"):
        cluster.put(b"content")


def test_nodes_are_given_up_though_the_users_program_stays_connected(ray: RayWithActors) -> None:
    ray.init("the user's")
    ray.add("x", OWN=1.0)
    cluster = BenchCluster("ray:auto", on_gpu=True)
    node = cluster.hold("x", (OWN,), SETTINGS, 5.0)
    cluster.close()
    assert ray.is_initialized()
    assert not cluster.alive
    with pytest.raises(NodeLostError, match="it was given up"):
        node.ask("pid", limit_s=5.0)


def test_a_full_object_store_is_an_error_of_the_farm(
    ray: RayWithActors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> object:
        raise MemoryError("no room")

    cluster = BenchCluster("ray:auto", on_gpu=True)
    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(WorkerError, match="the farm's object store: MemoryError: no room"):
        cluster.put(b"content")
    cluster.close()
