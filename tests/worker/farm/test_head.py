"""The head of a cluster is killed while it compiles for a process that is its client: that costs time alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fakes.waiting import until
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.slow

LIMIT_S = 400.0
JOBS = 6

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
        client = stack.enter_context(started(CLIENT, *arguments, log=tmp_path / "client.log"))
        stack.callback(ended, client)
        until(lambda: (tmp_path / "starts").exists() or client.poll() is not None, LIMIT_S)
        assert client.poll() is None, (tmp_path / "client.log").read_text()
        ended(head)
        printed, _ = client.communicate(timeout=LIMIT_S)
    said = (tmp_path / "client.log").read_text()
    assert client.returncode == 0, said
    text, is_seen = printed.splitlines()[-1].rsplit(maxsplit=1)
    assert is_seen == "True"  # what the cluster does, through the client
    answers = json.loads(text)
    assert sorted(answers) == [[f"key-{number}", "ok", ""] for number in range(JOBS)]
    assert "the rest is compiled here" in said
