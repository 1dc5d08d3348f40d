"""A lab for FlexAttention: the configurations that were offered, the winner, and compiled resources."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from torch._inductor.async_compile import AsyncCompile

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.cache import Resources
from inductor_plugin.cost.flex_table import Tile
from inductor_plugin.inductor import flex
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    Compiled,
    CppCompileJob,
    TritonCompileJob,
)
from tests.support.lowering import Lab
from tests.support.triton import interpreter


@dataclass
class FlexLab(Lab):
    """A lab that lists the offered configurations, and lets a test name the winner."""

    wanted: str = ""

    def outcome_ms(self, candidate: BenchCandidate) -> float:
        return 0.1 if self.wanted and self.wanted in self._text_of(candidate.candidate_id) else 1.0

    def status_of(self, candidate: BenchCandidate) -> str:
        """Return how a candidate fares on the GPU."""
        return "ok"

    def entry(self, candidate_id: str) -> TaskCandidate:
        entries = (entry for task in self.tasks for entry in task.entries)
        return next(entry for entry in entries if entry.candidate_id == candidate_id)

    def _text_of(self, candidate_id: str) -> str:
        return text_of(self.entry(candidate_id))

    def offered(self) -> list[str]:
        """Return the configurations of the one call: ``128x64 3 4``, or ``128x64 3 4 tma``."""
        (task,) = self.tasks
        return [text_of(entry) for entry in task.entries]


@dataclass
class CompilingLab(FlexLab):
    """A lab that compiles each kernel for a compute capability, and reads its resources."""

    arch: int = 89
    limit: int = 227 << 10
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    used: dict[Tile, interpreter.Usage] = field(default_factory=dict[Tile, interpreter.Usage])

    def status_of(self, candidate: BenchCandidate) -> str:
        build = self.entry(candidate.candidate_id).build
        assert isinstance(build, TritonCompileJob)
        fits = self.used[tile_of(build.source)].shared <= self.limit
        return "ok" if fits else "raised"  # a launch says: out of resources

    def submit(
        self, job: Any, done: Callable[[list[Compiled]], None], memory: int = 0, *_order: Any
    ) -> None:
        assert not isinstance(job, CppCompileJob)
        tile = tile_of(job.source)
        with self.one_at_a_time:  # it replaces a decorator of Inductor
            if tile not in self.used:
                self.used[tile] = interpreter.compiled(job.source, self.arch)
        used = self.used[tile]
        resources = Resources(used.registers, used.spills, used.shared)
        done([Compiled(job.key, "ok", elapsed_s=0.1, resources=resources)])


def text_of(entry: TaskCandidate) -> str:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    facts = dict(re.findall(r"(\w+)=([^,]+)", entry.description))
    blocks = "x".join(facts[name] for name in names if name in facts)
    tma = " tma" if facts.get("USE_TMA") == "True" else ""
    return f"{blocks} {facts['num_stages']} {facts['num_warps']}{tma}"


@contextmanager
def opened(
    gpu: str, cache_dir: Path, wanted: str = "", kind: type[FlexLab] = FlexLab
) -> Generator[FlexLab]:
    labs: list[FlexLab] = []
    lab = kind(
        lambda candidate: labs[0].outcome_ms(candidate),
        cache_dir,
        lambda candidate: labs[0].status_of(candidate),
        wanted=wanted,
    )
    if isinstance(lab, CompilingLab):
        lab.limit = target(gpu).shared_per_block
    labs.append(lab)
    # The winner is not compiled again: without tensor cores that takes minutes.
    compiler = mock.patch.object(AsyncCompile, "triton", return_value=None)
    with as_target(gpu), lab.open(), compiler:
        yield lab


@contextmanager
def without_the_plugins_list() -> Generator[None]:
    """Leave Inductor's configurations unchanged."""
    flex.uninstall()
    with mock.patch.object(flex, "install"):
        yield


def tile_of(code: str) -> Tile:
    """Return the configuration of the one kernel in a source."""
    names = (
        ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
        if "BLOCK_M1 :" in code
        else ("BLOCK_M", "BLOCK_N")
    )
    stages, warps = (int(re.findall(rf"{n}=(\d+)", code)[0]) for n in ("num_stages", "num_warps"))
    return Tile(blocks_of(code, *names), stages, warps, tma="make_tensor_descriptor" in code)


def blocks_of(code: str, *names: str) -> tuple[int, ...]:
    """Return the tile of the one kernel in generated code."""
    return tuple(int(re.findall(rf"{n} : tl.constexpr = (\d+)", code)[0]) for n in names)
