"""The CUTLASS attention kernels that are checked on a GPU, by name, and their builds in the kernel cache."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from inductor_plugin.config import Config
from inductor_plugin.inductor.candidates.cuda import build_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import attention_of
from inductor_plugin.problem.target import target
from inductor_plugin.template import CudaSource, Failed
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.templates.cutlass_attention.fmha import CutlassFmha, configs
from inductor_plugin.tuning.task import CppBuild
from tests.gpu.cases.builds import Place, placed
from tests.gpu.cases.kernels import BUILD_S, Kernels
from tests.support.attention.problems import attention

TEMPLATE = CutlassFmha()
GPU = "H100"
_HALVES, _NARROW = ("bfloat16", "float16"), "float8_e4m3fn"


def problems(*, backward: bool) -> list[Problem]:
    """Return an attention of each head size and type that has kernels."""
    wanted = list(itertools.product((32, 64, 128) if backward else (32, 64, 128, 256), _HALVES))
    wanted += [] if backward else [(dim, _NARROW) for dim in (64, 128, 256)]
    return [attention(dim=dim, dtype=dtype, backward=backward, gpu=GPU) for dim, dtype in wanted]


def offered(*, backward: bool) -> dict[str, tuple[FmhaConfig, Problem]]:
    """Return every kernel that any head size and type has, by name, with a problem that it is for."""
    return {
        config.name: (config, problem)
        for problem in problems(backward=backward)
        for config in configs(attention_of(problem), target(GPU))
    }


FORWARD, BACKWARD = offered(backward=False), offered(backward=True)


def build(name: str, kernels_dir: Path) -> CppBuild | str:
    """Return the build of a kernel, or why there is none: no compiler and no CUTLASS, and no pack has it."""
    _, problem = {**FORWARD, **BACKWARD}[name]
    (candidate,) = [each for each in TEMPLATE.candidates(problem) if each.name == name]
    assert isinstance(candidate.kernel, CudaSource)
    result = build_of(candidate.kernel, TEMPLATE.name, Config.load({"cache_dir": str(kernels_dir)}))
    return result.reason if isinstance(result, Failed) else result[0]


def built(names: Sequence[str], kernels_dir: Path, workers: int) -> dict[str, Place | str]:
    """Return where the kernels are in the cache, built where they were not; or why they are not there."""
    builds = {name: build(name, kernels_dir) for name in names}
    known = {name: each for name, each in builds.items() if not isinstance(each, str)}
    places = placed(list(known.values()), kernels_dir, workers, BUILD_S)
    missing = {name: each for name, each in builds.items() if isinstance(each, str)}
    return {**missing, **dict(zip(known, places, strict=True))}


def building(names: Sequence[str], kernels_dir: Path) -> Iterator[Kernels[Place]]:
    """Begin to build the kernels of the tests that are going to run, as many at once as there are cores."""
    workers = len(os.sched_getaffinity(0))
    kernels = Kernels(names, lambda some: built(some, kernels_dir, workers), workers)
    yield kernels
    kernels.close()


def place_of(kernels: Kernels[Place], name: str) -> str:
    """Return what operators call a kernel; fail with the reason where it is not there."""
    place = kernels.of(name)
    assert not isinstance(place, str), f"{name} is not built: {place}"
    return place.called
