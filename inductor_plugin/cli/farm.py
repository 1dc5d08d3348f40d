"""What `doctor` finds of the Ray clusters that compile and measure. None of them is joined for it."""

from __future__ import annotations

import importlib.util
import socket

from inductor_plugin.cli.finding import Finding

_ANSWER_S = 5.0
_CLIENT, _LOCAL = "ray://", "ray:local"


def farm(compile_farm: str, bench_farm: str) -> Finding:
    """Check for Ray, whether its head can be reached, and what becomes of this process without it."""
    name, chosen = "farm", compile_farm or bench_farm
    if not chosen:
        return Finding(name, "ok", "none; compile_farm and bench_farm name one")
    if importlib.util.find_spec("ray") is None:
        missing = f"{chosen} is a Ray cluster, and Ray is not installed"
        return Finding(name, "broken", missing, "pip install 'inductor-plugin[ray]'")
    if bench_farm and bench_farm != chosen:
        apart = f"compile_farm is {compile_farm}, bench_farm is {bench_farm}; a process is connected to one cluster"
        return Finding(name, "broken", apart, "name the same cluster in both options")
    if chosen == _LOCAL:
        return Finding(name, "ok", f"{chosen}: a cluster that a process starts on this machine")
    if not chosen.startswith(_CLIENT):
        return Finding(
            name,
            "ok",
            f"{chosen}: a process joins the cluster; if it has imported Ray before, Ray ends it a minute after the head is lost",
            "name the head's client port where a process has to survive that: ray://HEAD:10001",
        )
    return _client(chosen)


def _client(chosen: str) -> Finding:
    """Check that the head of a cluster answers at its client port."""
    host, _, port = chosen.removeprefix(_CLIENT).rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        detail = f"{chosen} does not answer: {error}"
        remedy = "start its head, or open its client port (`ray start --head --ray-client-server-port=10001`)"
        return Finding("farm", "broken", detail, remedy)
    return Finding("farm", "ok", f"{chosen} answers")
