"""CUTLASS kernels for matrix products: generated from a configuration, compiled by nvcc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate, CudaSource, Json
from inductor_plugin.templates.cutlass_choices import Choice, choices, family
from inductor_plugin.templates.cutlass_config import GemmConfig
from inductor_plugin.templates.cutlass_groups import GROUPED_OPS, grouped_facts_of
from inductor_plugin.templates.cutlass_order import order
from inductor_plugin.templates.cutlass_problem import OPS, GemmFacts, facts_of
from inductor_plugin.templates.cutlass_source import generator_reason, interface, source

RASTERS = ("heuristic", "along_m", "along_n")
"""In the order of their numbers in ``cutlass_call.h``."""


_OFFERED = 1000
"""More than there are: the order decides which are tried."""


class CutlassGemm:
    """CUTLASS kernels for plain, batched, int8, scaled and grouped matrix products.

    Where no kernel can be generated (`generator_reason`), candidates have no text: what they are
    called and compiled for still names a kernel that another machine has built.
    """

    name = "cutlass"
    ops = (*OPS, *GROUPED_OPS)
    backend = "CUTLASS"

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        found = _found(problem)
        return found if isinstance(found, str) else None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        found = _found(problem)
        if isinstance(found, str):
            return ()
        facts, chosen = found
        return [_candidate(problem, facts, one) for one in chosen]


def _found(problem: Problem) -> tuple[GemmFacts, tuple[Choice, ...]] | str:
    target = problem.target
    if target is None or target.capability < (8, 0):
        return "CUTLASS kernels are for NVIDIA GPUs from compute capability 8.0 on"
    grouped = problem.op in GROUPED_OPS
    facts = grouped_facts_of(problem) if grouped else facts_of(problem, allow_tf32=problem.tf32)
    if isinstance(facts, str):
        return facts
    chosen = choices(facts, target.arch, limit=_OFFERED)
    if isinstance(chosen, str):
        return chosen
    return facts, order(target, facts, chosen)


def _candidate(problem: Problem, facts: GemmFacts, choice: Choice) -> Candidate:
    config, launch = choice.config, choice.launch
    arguments: tuple[int | float | str, ...] = (
        *(config.order, launch.swizzle, RASTERS.index(launch.raster), launch.split_k),
    )
    op = "cutlass_grouped_mm" if facts.grouped else "cutlass_mm"
    if facts.scale != "none":
        op = "cutlass_scaled_mm" if facts.bias == "none" else "cutlass_scaled_addmm"
    elif facts.bias != "none":
        op = "cutlass_addmm"
        arguments = (*arguments, facts.bias, float(facts.alpha), float(facts.beta))
    arch = _device_arch(config, problem)
    return Candidate(
        template=CutlassGemm.name,
        name=choice.name,
        config=_shown(choice),
        kernel=CudaSource(
            op=f"inductor_plugin::{op}.out",
            symbol=config.name,
            text=_text(config),
            arch=arch,
            interface=interface(),
            arguments=arguments,
            imports=("inductor_plugin.gemm_op",),
        ),
        description=f"{'x'.join(map(str, config.tile))} {config.schedule}",
    )


def _shown(choice: Choice) -> Mapping[str, Json]:
    plain: dict[str, Any] = choice.config.to_dict()
    return {**plain, "swizzle": choice.launch.swizzle, "split_k": choice.launch.split_k}


def _device_arch(config: GemmConfig, problem: Problem) -> str:
    """Return what nvcc compiles for: an sm_80 kernel is compiled for the device itself."""
    target = problem.target
    assert target is not None
    return target.arch if config.arch == "sm_80" else family(target.arch)


@lru_cache(maxsize=1024)
def _text(config: GemmConfig) -> str:
    return "" if generator_reason() else source(config)
