"""One connection for all that uses a cluster, with Ray in the place of which a test answers."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType
from typing import Any

import pytest

from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.worker.farm.connection import Connection


class FakeRay(ModuleType):
    """Ray, which connects slowly.

    Attributes:
        calls: The addresses that it was connected to.
        error: Raised where it is to connect.
    """

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[str] = []
        self.error: Exception | None = None
        self._there = False

    def is_initialized(self) -> bool:
        return self._there

    def init(self, address: str, **_: Any) -> None:
        if self.error is not None:
            raise self.error
        time.sleep(0.05)
        self.calls.append(address)
        self._there = True

    def shutdown(self) -> None:
        self._there = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "a", "Alive": True}, {"NodeID": "b", "Alive": False}]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.mark.parametrize(
    ("farm", "address"),
    [
        ("ray:auto", "auto"),
        ("ray:10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://head:10001", "ray://head:10001"),
        ("ray:local", "local"),
    ],
)
def test_an_option_is_an_address_of_ray(ray: FakeRay, farm: str, address: str) -> None:
    connection = Connection(farm, "bench_farm")
    assert ray.calls == [address]
    assert [node["NodeID"] for node in connection.nodes()] == ["a"]
    connection.close()
    assert not connection.alive
    with pytest.raises(WorkerError, match="has ended"):
        connection.check()


def test_what_compiles_and_what_measures_at_once_are_connected_once(ray: FakeRay) -> None:
    made: list[Connection] = []

    def connect(option: str) -> None:
        made.append(Connection("ray:auto", option))

    options = ("compile_farm", "bench_farm")
    threads = [threading.Thread(target=connect, args=(option,)) for option in options]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(made), ray.calls) == (2, ["auto"])


def test_the_connection_of_the_users_program_stays(ray: FakeRay) -> None:
    ray.init("the user's")
    connection = Connection("ray:auto", "bench_farm")
    connection.close()
    assert connection.alive
    assert ray.calls == ["the user's"]


def test_a_cluster_that_cannot_be_reached_is_named(ray: FakeRay) -> None:
    ray.error = ConnectionError("no route")
    with pytest.raises(WorkerError, match=r"farm ray:auto cannot be reached: .*no route"):
        Connection("ray:auto", "bench_farm")


def test_without_ray_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match="option bench_farm is 'ray:auto', and Ray is not"):
        Connection("ray:auto", "bench_farm")
