"""The head of a cluster, or its only node with CPUs, is killed while it compiles: that costs time alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fakes.waiting import until
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.slow

LIMIT_S = 400.0
JOBS, CLIENTS = 6, 4

HEAD = """
import sys, time
from ray.cluster_utils import Cluster
options = {"include_dashboard": False, "object_store_memory": 100 << 20}
Cluster().add_node(num_cpus=2, ray_client_server_port=int(sys.argv[1]), **options)
print("started", flush=True)
time.sleep(3600)
"""

CLIENT = """
import json, logging, sys, time
from pathlib import Path
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm.pool import FarmPool, on_farm
from inductor_plugin.worker.jobs import CppCompileJob, WorkerSettings

folder, farm = Path(sys.argv[1]), sys.argv[2]
jobs, limit_s = int(sys.argv[3]), float(sys.argv[4])
logging.basicConfig(level=logging.WARNING)
settings = WorkerSettings(tuple(sys.path), "compile")
pool = on_farm(farm, settings, CompilePool(2, settings, 0), 0)
assert isinstance(pool, FarmPool)
if pool._cluster is None:
    pool.close()
    sys.exit("Ray has not let this client in")
answers = []
for number in range(jobs):
    source = CppSource(f"key-{number}", f"// {number}", "kernel")
    command = ("sh", "-c", f"echo >> {folder}/starts; sleep 3; cp {{source}} {{output}}")
    pool.submit(CppCompileJob((source,), command, str(folder / str(number)), 60.0), answers.extend)
ends, load = time.monotonic() + limit_s, None
while len(answers) < jobs and time.monotonic() < ends:
    time.sleep(0.1)
    load = load or pool._watch.load
pool.close()
print(json.dumps([[each.key, each.status, each.reason] for each in answers]), load is not None)
"""

LOSES_ITS_NODE = """
import json, logging, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.farm import pool as pool_module
from inductor_plugin.worker.jobs import CppCompileJob, WorkerSettings

folder, jobs, limit_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
logging.basicConfig(level=logging.WARNING)
options = {"include_dashboard": False, "object_store_memory": 100 << 20}
cluster = Cluster()
cluster.add_node(num_cpus=0, **options)
node = cluster.add_node(num_cpus=1, **options)
pool_module._BEGIN_S = 5.0
settings = WorkerSettings(tuple(sys.path), "compile")
pool = pool_module.on_farm(f"ray:{cluster.address}", settings, CompilePool(2, settings, 0), 0)
assert pool._cluster is not None
answers, ends = [], time.monotonic() + limit_s
for number in range(jobs):
    source = CppSource(f"key-{number}", f"// {number}", "kernel")
    command = ("sh", "-c", f"echo >> {folder}/starts; sleep 4; cp {{source}} {{output}}")
    pool.submit(CppCompileJob((source,), command, str(folder / str(number)), 900.0), answers.extend)
while not (pool._watch.load and pool._watch.load.running) and time.monotonic() < ends:
    time.sleep(0.05)
cluster.remove_node(node, allow_graceful=False)
while len(answers) < jobs and time.monotonic() < ends:
    time.sleep(0.1)
is_there = pool._alive
pool.close()
print(json.dumps([[each.key, each.status, each.reason] for each in answers]), is_there, flush=True)
cluster.shutdown()
"""


def started(text: str, *arguments: str, log: Path) -> subprocess.Popen[str]:
    """Start a process that runs a text, in a session of its own."""
    variables = {
        "PYTHONPATH": str(REPOSITORY),
        "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "5",
        "RAY_raylet_start_wait_time_s": "200",
    }
    with log.open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", text, *arguments],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def ended(process: subprocess.Popen[str]) -> None:
    """Kill a process; what Ray has started for it goes with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(LIMIT_S)


def test_a_client_compiles_the_rest_here(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("grpc", reason="needs ray[client]")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    farm = f"ray://127.0.0.1:{port}"
    arguments = (str(tmp_path), farm, str(JOBS), str(LIMIT_S))
    with ExitStack() as stack:
        head = stack.enter_context(started(HEAD, str(port), log=tmp_path / "head.log"))
        stack.callback(ended, head)
        assert head.stdout is not None
        is_up = any(line.strip() == "started" for line in head.stdout)
        assert is_up, (tmp_path / "head.log").read_text()
        client = let_in(stack, arguments, tmp_path)
        ended(head)
        printed, _ = client.communicate(timeout=LIMIT_S)
    said = (tmp_path / "client.log").read_text()
    assert client.returncode == 0, said
    assert are_right(printed)  # it has seen, too, what the cluster does
    assert "the rest is compiled here" in said


def let_in(stack: ExitStack, arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    """Return a client whose jobs have begun: the server that Ray starts for a client was seen to end at once, the next to run."""
    log = folder / "client.log"
    for _ in range(CLIENTS):
        client = stack.enter_context(started(CLIENT, *arguments, log=log))
        stack.callback(ended, client)
        until(lambda: (folder / "starts").exists() or client.poll() is not None, LIMIT_S)  # noqa: B023
        if client.poll() is None:
            return client
    raise AssertionError(log.read_text())


def test_what_the_only_node_had_begun_is_compiled_here(tmp_path: Path) -> None:
    """Ray keeps its task for another node, which never comes; the mark of the job stays in the head's table."""
    pytest.importorskip("ray")
    log = tmp_path / "log"
    arguments = (str(tmp_path), str(JOBS), str(LIMIT_S))
    with ExitStack() as stack:
        process = stack.enter_context(started(LOSES_ITS_NODE, *arguments, log=log))
        stack.callback(ended, process)
        printed, _ = process.communicate(timeout=2 * LIMIT_S)
    assert are_right(printed), log.read_text()  # and the connection has not ended
    assert "no CPU was free for a job in 5 s" in log.read_text()


def are_right(printed: str) -> bool:
    """Return whether a process says at its end that each job was answered once, and True."""
    if not printed:  # Ray has not started
        return False
    text, is_so = printed.splitlines()[-1].rsplit(maxsplit=1)
    answers = sorted(json.loads(text))
    return is_so == "True" and answers == [[f"key-{n}", "ok", ""] for n in range(JOBS)]
