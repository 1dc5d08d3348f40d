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
from inductor_plugin.worker.affinity import (
    Throttling,
    folders_of,
    own_cores,
    quota_in,
    quotas,
    throttling,
    throttling_in,
)
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


STAT_2 = """usage_usec 90000000
user_usec 80000000
system_usec 10000000
nr_periods 1200
nr_throttled 300
throttled_usec 4500000
nr_bursts 0
burst_usec 0
"""
STAT_1 = "nr_periods 1200\nnr_throttled 300\nthrottled_time 4500000000\n"


@pytest.mark.parametrize("stat", [STAT_2, STAT_1])
def test_both_versions_count_how_long_a_group_was_kept_from_its_cores(stat: str) -> None:
    known = throttling_in(stat)
    assert known == Throttling(300, 4_500_000_000)
    assert known.since(Throttling(299, 4_400_000_000)) == Throttling(1, 100_000_000)


@pytest.mark.parametrize("stat", ["", "usage_usec 5\n", "what is this?"])
def test_a_group_without_a_quota_was_never_kept(stat: str) -> None:
    assert throttling_in(stat) == Throttling()


@pytest.mark.parametrize(
    ("texts", "cores"),
    [
        (("200000 100000\n",), 2.0),
        (("50000 100000\n",), 0.5),
        (("max 100000\n",), None),
        (("150000\n", "100000\n"), 1.5),
        (("-1\n", "100000\n"), None),
        (("200000 0\n",), None),
        (("",), None),
    ],
)
def test_a_quota_is_the_time_of_so_many_cores(texts: tuple[str, ...], cores: float | None) -> None:
    assert quota_in(*texts) == cores


def group(folder: Path, **texts: str) -> Path:
    """Make a control group; two underscores in a file's name are a full stop."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_the_groups_that_a_process_is_in_count_with_those_around_them(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    pod = group(root / "pods" / "one", cpu__max="400000 100000\n", cpu__stat=STAT_2)
    inner = group(pod / "container", cpu__max="150000 100000\n", cpu__stat=STAT_2)
    group(root, cpu__stat=STAT_2)  # it has no cpu.max
    own.write_text("0::/pods/one/container\n")
    assert folders_of(own.read_text(), root) == [inner, pod, pod.parent, root]
    assert quotas(own, root) == {inner: 1.5, pod: 4.0}
    assert throttling(quotas(own, root)) == Throttling(600, 9_000_000_000)
    assert quotas(tmp_path / "no such file", root) == {}


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    group(root, cpu__max="200000 100000\n")
    for name in ("/", "/docker/0123abcd"):
        own.write_text(f"0::{name}\n")
        assert quotas(own, root) == {root: 2.0}
    own.write_text("0::/../../elsewhere\n")  # of a process that was moved out of the namespace
    assert quotas(own, root) in ({root: 2.0}, {})


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_the_first_version_has_a_folder_for_cpus(tmp_path: Path, mount: str) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    texts = {"cpu__cfs_quota_us": "150000\n", "cpu__cfs_period_us": "100000\n"}
    folder = group(root / mount / "pod", **texts, cpu__stat=STAT_1)
    group(root / mount, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    group(root / "memory" / "pod")
    own.write_text("5:memory:/pod\n4:cpu,cpuacct:/pod\n0::/\n")
    assert quotas(own, root) == {folder: 1.5}
    assert throttling(quotas(own, root)) == Throttling(300, 4_500_000_000)


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("no control group\n")
    assert quotas(own, tmp_path) == {}
    assert throttling([tmp_path / "gone"]) == Throttling()
    assert isinstance(quotas(), dict)  # this machine's
