"""What `doctor` says of the Ray clusters that options name."""

from __future__ import annotations

import socket
from unittest import mock

import pytest

from inductor_plugin.cli.farm import farm


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    def find_spec(name: str) -> str:
        return name

    monkeypatch.setattr("importlib.util.find_spec", find_spec)


def test_without_a_cluster_nothing_is_amiss() -> None:
    assert (farm("", "").state, farm("", "").remedy) == ("ok", "")
    assert (farm("ray:local", "").state, farm("ray:local", "").remedy) == ("ok", "")


def test_ray_that_is_missing_is_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", mock.Mock(return_value=None))
    for finding in (farm("ray:auto", ""), farm("", "ray:auto")):
        assert finding.state == "broken"
        assert "Ray is not installed" in finding.detail
        assert finding.remedy == "pip install 'inductor-plugin[ray]'"


@pytest.mark.parametrize("chosen", ["ray:auto", "ray:10.0.0.1:6379"])
def test_a_process_that_joins_a_cluster_may_end_with_its_head(chosen: str) -> None:
    finding = farm("", chosen)
    assert finding.state == "ok"
    assert "Ray ends it a minute after the head is lost" in finding.detail
    assert "ray://HEAD:10001" in finding.remedy


def test_the_head_of_a_client_is_asked_for_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert farm(f"ray://127.0.0.1:{port}", "").state == "ok"
    finding = farm(f"ray://127.0.0.1:{port}", "")
    assert finding.state == "broken"
    assert f"ray://127.0.0.1:{port} does not answer" in finding.detail
    assert "--ray-client-server-port" in finding.remedy
    assert farm("ray://127.0.0.1:99999", "").state == "broken"


def test_two_clusters_are_one_too_many() -> None:
    finding = farm("ray://a:10001", "ray://b:10001")
    assert finding.state == "broken"
    assert "ray://b:10001" in finding.detail
    assert finding.remedy == "name the same cluster in both options"
