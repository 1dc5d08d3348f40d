"""CUTLASS kernels for matrix products: generated from a configuration, compiled by nvcc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import Contract
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.epilogue_text import encode
from inductor_plugin.problem.product import ROLES
from inductor_plugin.template import Candidate, CudaSource, Json
from inductor_plugin.templates.cutlass.choices import ALL, Choice, choices, family
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass.fused import absorbed, fused
from inductor_plugin.templates.cutlass.groups import (
    GROUPED_CONTRACT,
    GROUPED_OPS,
    grouped_facts_of,
)
from inductor_plugin.templates.cutlass.order import order
from inductor_plugin.templates.cutlass.problem import CONTRACT, OPS, GemmFacts, facts_of
from inductor_plugin.templates.cutlass.source import interface, source, why_not_generated

RASTERS = ("heuristic", "along_m", "along_n")
"""Names by their numbers in ``source/call.h``."""


class CutlassGemm:
    """CUTLASS kernels for plain, batched, int8, scaled and grouped matrix products.

    If no kernel can be generated (`why_not_generated`), candidates have no text: their names and targets
    still identify kernels built on another machine.
    """

    name = "cutlass"
    ops = (*OPS, *GROUPED_OPS)
    backend = "CUTLASS"

    def contract(self, op: str) -> Mapping[str, Contract]:
        """Return what kernels of an operator require of its operands' layouts."""
        return GROUPED_CONTRACT if op in GROUPED_OPS else CONTRACT

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        result = _ordered_choices(problem)
        return result if isinstance(result, str) else None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        result = _ordered_choices(problem)
        if isinstance(result, str):
            return ()
        facts, tried = result
        return [_candidate(problem, facts, choice) for choice in tried]

    def with_epilogue(self, problem: Problem, epilogue: Epilogue) -> Sequence[Candidate] | str:
        """Return kernels that compute a problem with its epilogue, the most promising first.

        Their operator takes A, B and the epilogue's reads, of ``addmm`` and ``baddbmm`` the bias first
        (`fused.absorbed`).

        Args:
            problem: The product alone, as in `candidates`.
            epilogue: The operations after it.

        Returns:
            A few candidates, or why there are none.
        """
        whole = absorbed(problem, epilogue)
        result = fused(problem, whole)
        if isinstance(result, str):
            return result
        facts, tried = result
        text = encode(whole)
        return [_candidate(problem, facts, choice, text) for choice in tried]


def _ordered_choices(problem: Problem) -> tuple[GemmFacts, tuple[Choice, ...]] | str:
    target = problem.target
    if target is None or target.capability < (8, 0):
        return "CUTLASS kernels are for NVIDIA GPUs from compute capability 8.0 on"
    grouped = problem.op in GROUPED_OPS
    facts = grouped_facts_of(problem) if grouped else facts_of(problem, allow_tf32=problem.tf32)
    if isinstance(facts, str):
        return facts
    offered = choices(facts, target.arch, limit=ALL)
    if isinstance(offered, str):
        return offered
    return facts, order(target, facts, offered)


def _candidate(problem: Problem, facts: GemmFacts, choice: Choice, epilogue: str = "") -> Candidate:
    config, launch = choice.config, choice.launch
    arguments: tuple[int | float | str, ...] = (
        *(config.order, launch.swizzle, RASTERS.index(launch.raster), launch.split_k),
    )
    op = "cutlass_grouped_mm" if facts.grouped else "cutlass_mm"
    if epilogue:  # it has the bias and its factors, too
        op, arguments = "cutlass_mm_epilogue", (*arguments, epilogue)
    elif facts.scale != "none":
        op = "cutlass_scaled_mm" if facts.bias == "none" else "cutlass_scaled_addmm"
    elif facts.bias != "none" or "c" in ROLES[problem.op]:  # with beta=0, C is not read
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
        ),
        description=f"{'x'.join(map(str, config.tile))} {config.schedule}",
    )


def _shown(choice: Choice) -> Mapping[str, Json]:
    plain: dict[str, Any] = choice.config.to_dict()
    return {**plain, "swizzle": choice.launch.swizzle, "split_k": choice.launch.split_k}


def _device_arch(config: GemmConfig, problem: Problem) -> str:
    """Return nvcc's target: an sm_80 kernel is compiled for the device itself."""
    target = problem.target
    assert target is not None
    return target.arch if config.arch == "sm_80" else family(target.arch)


@lru_cache(maxsize=1024)
def _text(config: GemmConfig) -> str:
    return "" if why_not_generated() else source(config)
