"""The cores of a process whose OpenMP pins threads, and those of its workers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.config.variables import openmp_settings
from inductor_plugin.worker.affinity import own_cores
from tests.support.repository import REPOSITORY

PINNED = """
import ctypes, json, os, sys, types
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.jobs import CallJob, WorkerSettings
from inductor_plugin.worker.process import WorkerProcess
before = sorted(os.sched_getaffinity(0))
ctypes.CDLL(sys.argv[1])  # as torch does
sys.modules["torch"] = types.ModuleType("torch")
worker = WorkerProcess(WorkerSettings(sys_path=tuple(sys.path), kind="compile"), "worker")
facts = {"before": before, "pinned": sorted(os.sched_getaffinity(0)), "own": sorted(own_cores())}
facts["worker"] = sorted(worker.run(CallJob("os", "sched_getaffinity", (0,)), 60.0))
facts["binds"] = worker.run(CallJob("os", "getenv", ("OMP_PROC_BIND",)), 60.0)
facts["policy"] = worker.run(CallJob("os", "getenv", ("OMP_WAIT_POLICY",)), 60.0)
worker.close()
print(json.dumps(facts))
"""


def facts_of(**variables: str) -> dict[str, Any]:
    """Return the cores of a process that loads torch's OpenMP with these variables, and those of its worker."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    library = Path(spec.origin).parent / "lib" / "libgomp.so.1"
    if not library.exists() or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this torch has no libgomp, or this process one core")
    bare = {
        name: text for name, text in os.environ.items() if not name.startswith(("OMP_", "GOMP"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PINNED, str(library)],
        cwd=REPOSITORY,
        env=bare | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120.0,
    )
    return json.loads(done.stdout)


def test_a_worker_of_a_pinned_process_has_all_cores_of_the_process() -> None:
    facts = facts_of(OMP_PROC_BIND="close", OMP_WAIT_POLICY="active")
    assert len(facts["pinned"]) == 1
    assert facts["own"] == facts["worker"] == facts["before"]
    assert facts["policy"] == "active"
    # A compiler that it starts has them too: no OpenMP of the worker's pins it.
    assert facts["binds"] is None


def test_gnu_s_own_variable_names_the_cores() -> None:
    last = max(os.sched_getaffinity(0))
    facts = facts_of(GOMP_CPU_AFFINITY=str(last))
    assert facts["pinned"] == facts["own"] == facts["worker"] == [last]


def test_without_variables_the_cores_are_those_of_the_thread() -> None:
    facts = facts_of(OMP_PROC_BIND="false", OMP_PLACES="cores")
    assert facts["own"] == facts["worker"] == facts["pinned"] == facts["before"]
    assert own_cores() == os.sched_getaffinity(0)


def test_what_changes_how_openmp_computes_is_known() -> None:
    assert openmp_settings({}) == ""
    assert openmp_settings({"OMP_PROC_BIND": "FALSE", "OMP_WAIT_POLICY": " "}) == ""
    assert (
        openmp_settings({"OMP_NUM_THREADS": "2"}) == ""
    )  # the number of threads is a fact of its own
    compact = "KMP_AFFINITY=granularity,fine,compact"
    assert openmp_settings({"KMP_AFFINITY": "granularity=fine,compact,1,0"}) == compact
    pinned = {openmp_settings({"GOMP_CPU_AFFINITY": cores}) for cores in ("0-15", "16-31", "3 5")}
    assert pinned == {"GOMP_CPU_AFFINITY=numbers"}
    assert openmp_settings({"OMP_PLACES": "sockets(2)"}) == "OMP_PLACES=sockets"
    assert openmp_settings({"GOMP_SPINCOUNT": "1000"}) == "GOMP_SPINCOUNT=1000"
    assert (
        openmp_settings({"OMP_WAIT_POLICY": " Active", "OMP_PROC_BIND": "TRUE"})
        == "OMP_PROC_BIND=true OMP_WAIT_POLICY=active"
    )
