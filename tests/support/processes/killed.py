"""Processes that tune at the same time on one cache, observed from outside and killed."""

from __future__ import annotations

import functools
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inductor_plugin.cache import open_store
from inductor_plugin.tuning import scratch
from tests.support.repository import REPOSITORY

START_S = 240.0
"""Imports take 5 s alone, and eight processes on two busy cores much longer."""
RUN_S = 300.0
MEMORY = Path("/dev/shm")
GONE_S = 15.0
_MARK = "TEST_MARK_OF_TUNING_CHILD"


class Child:
    """A `tests.support.processes.tuning`.

    Attributes:
        mark: Is in its environment and so in that of every process it starts.
    """

    def __init__(
        self, cache_dir: Path, folder: Path, variants: Sequence[int], inductor: Path | None = None
    ) -> None:
        """Start it; it waits for `go` when it is ready.

        Args:
            cache_dir: The plugin's cache.
            folder: Parent of its private folder.
            variants: The models it compiles.
            inductor: Inductor's cache; None for a private one.
        """
        self.mark = uuid.uuid4().hex
        own = folder / self.mark
        own.mkdir(parents=True)
        self._errors = (own / "stderr").open("w+b")
        self._process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "tests.support.processes.tuning",
                    "--cache-dir",
                    str(cache_dir),
                ),
                *("--variants", *map(str, variants)),
            ],
            cwd=REPOSITORY,
            env={
                **os.environ,
                _MARK: self.mark,
                "TMPDIR": str(own),
                "TORCHINDUCTOR_CACHE_DIR": str(inductor or own / "inductor"),
                "TORCHINDUCTOR_VEC_ISA_OK": "1",  # the probe takes 5 s and is not what is tested
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._owner = scratch.process_id(self._process.pid)

    def await_ready(self) -> None:
        """Wait until it has imported everything."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_S)[0]:
            self.kill()
            raise TimeoutError(f"not ready within {START_S:.0f} s:\n{self.errors()}")
        line = self._process.stdout.readline()
        assert line == b"ready\n", self.errors()

    def go(self) -> None:
        """Make it start tuning."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def report(self) -> dict[str, Any]:
        """Wait for its end and return what it printed."""
        try:
            out, _ = self._process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert self._process.returncode == 0, self.errors()
        return json.loads(out.decode().splitlines()[-1])

    def kill(self) -> bool:
        """Kill its process group with SIGKILL; return False if it had ended by itself."""
        ran = self._process.poll() is None
        if ran:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=30)
        return ran

    def folders(self) -> list[Path]:
        """Return the folders in memory that it has not removed, whether it runs or has ended."""
        assert self._owner is not None
        return sorted(MEMORY.glob(f"{self._owner.prefix}*"))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._errors.close()

    def errors(self) -> str:
        """Return the end of what it wrote to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def left_behind(self, within_s: float = GONE_S) -> list[str]:
        """Return the command lines of its processes that still run after some seconds of grace."""
        ends = time.monotonic() + within_s
        while (alive := _marked(self.mark)) and time.monotonic() < ends:
            time.sleep(0.05)
        return alive


def _marked(mark: str) -> list[str]:
    """Return the command lines of all processes with a mark in their environment."""
    mark_bytes = f"{_MARK}={mark}".encode()
    processes: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark_bytes in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                processes.append(f"{entry.name} {line.decode(errors='replace')[:200]}")
        except OSError:  # ended meanwhile, or of another user
            continue
    return processes


@dataclass
class Toll:
    """Results of the kills.

    Attributes:
        kills: Seconds after its start at which each victim was killed.
        finished: Victims that had ended before.
        damaged: Damage that `verify` reported, after any kill.
        left_behind: Processes that outlived their parent.
        orphans: Folders in memory that victims could not remove.
        folders_left: Those of them that are still there after the last process, and those of
            processes that ended by themselves.
        quarantined: Candidates that were blamed for a kill.
        final: Report of the last process, which was not killed.
    """

    kills: list[float] = field(default_factory=list[float])
    finished: int = 0
    damaged: list[str] = field(default_factory=list[str])
    left_behind: list[str] = field(default_factory=list[str])
    orphans: list[str] = field(default_factory=list[str])
    folders_left: list[str] = field(default_factory=list[str])
    quarantined: list[str] = field(default_factory=list[str])
    final: dict[str, Any] = field(default_factory=dict[str, Any])


def kill_many(
    cache_dir: Path,
    folder: Path,
    kills: int,
    seed: int,
    together: int = 3,
    say: Callable[[str], None] = lambda line: None,
) -> Toll:
    """Kill processes that tune the same models on one cache, each at a random moment.

    Two rounds share a model: the second meets the unfinished state of the first.
    """
    chance = random.Random(seed)
    # Inductor's own compiles are not tested, so their cache is shared.
    start = functools.partial(Child, cache_dir, folder, inductor=folder / "inductor")
    toll = Toll()
    span_s = _finished(start([0]), toll)["elapsed_s"]
    number = -1
    while len(toll.kills) < kills:
        number += 1
        killed = len(toll.kills)
        count = min(together, kills - killed)
        moments = [chance.uniform(0.0, span_s) for _ in range(count)]
        with ExitStack() as stack:
            victims = [stack.enter_context(start([1 + number // 2])) for _ in moments]
            _round(toll, victims, moments, cache_dir)
        # Follows the load of the machine: a fifth of the victims should end before the kill.
        span_s *= 1.1 if len(toll.kills) - killed == count else 0.6
        say(f"round {number}: {len(toll.kills)} killed, {toll.finished} were done before")
    toll.final = _finished(start(range(max(1, number // 2), number // 2 + 2)), toll)
    toll.folders_left += [path for path in toll.orphans if Path(path).exists()]
    store = open_store(cache_dir)
    toll.damaged += [str(finding) for finding in store.verify()]
    toll.quarantined = [f"{entry.candidate}: {entry.reason}" for entry in store.iter_quarantine()]
    return toll


def _finished(child: Child, toll: Toll) -> dict[str, Any]:
    """Let a process tune undisturbed, and return its report."""
    with child:
        child.await_ready()
        child.go()
        report = child.report()
        toll.left_behind += child.left_behind()
        toll.folders_left += map(str, child.folders())
    return report


def _round(toll: Toll, victims: Sequence[Child], moments: Sequence[float], cache_dir: Path) -> None:
    store = open_store(cache_dir)
    for victim in victims:
        victim.await_ready()
    for victim in victims:
        victim.go()
    started = time.monotonic()
    for moment, victim in sorted(zip(moments, victims, strict=True), key=lambda pair: pair[0]):
        time.sleep(max(0.0, started + moment - time.monotonic()))
        if victim.kill():
            toll.kills.append(round(time.monotonic() - started, 3))
            toll.orphans += map(str, victim.folders())
        else:
            toll.finished += 1
            toll.folders_left += map(str, victim.folders())
        toll.damaged += [str(finding) for finding in store.verify()]
    for victim in victims:
        toll.left_behind += victim.left_behind()
