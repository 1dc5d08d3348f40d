"""Whether a registered template still offers the candidate that a pin names, asked without a compile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from inductor_plugin.inductor.candidates.layouts import offered
from inductor_plugin.inductor.candidates.offers import candidate_id
from inductor_plugin.inductor.candidates.template_choice import operator_key
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem.definition import Problem, problem_in
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate, Template, TritonSource
from inductor_plugin.tuning.environment import float32_precision
from inductor_plugin.tuning.pins.pin import Pin


@dataclass(frozen=True)
class OfferCheck:
    """Whether the template of a pin offers its winner here.

    Attributes:
        reason: Why it does not; empty if it does, or if that is not known.
        is_complete: Whether all that the kernel is made of was compared. So it is with operators of a template; what Inductor
            offers itself follows from the environment, which is the same.
    """

    reason: str = ""
    is_complete: bool = False


def check_offer(pin: Pin) -> OfferCheck:
    """Ask the registered template of a pin of this environment for the pin's winner.

    An operator is known by all that it is made of. Of a kernel that is compiled only the name is compared, of a Triton
    kernel nothing: the compile tells the rest.
    """
    if not pin.template:
        return OfferCheck(is_complete=True)
    problem = problem_in(pin.fields)
    if problem is None:
        return OfferCheck()
    templates = {template.name: template for template in default_registry().for_op(pin.op)}
    if pin.template not in templates:
        return OfferCheck(f"template {pin.template!r} does not serve {pin.op} any more")
    try:
        candidates, refused = _offered(templates[pin.template], problem)
    except Exception as error:  # noqa: BLE001 - a template may raise anything for fields that no compile has written
        return OfferCheck(
            f"template {pin.template!r} cannot be asked about the pin's problem: {type(error).__name__}: {error}"
        )
    offers = [each for each in candidates if _may_be(each, pin.winner)]
    if offers:
        return OfferCheck(is_complete=any(isinstance(each.kernel, OpKernel) for each in offers))
    why = f": {refused[pin.template]}" if pin.template in refused else ""
    return OfferCheck(f"template {pin.template!r} does not offer it any more{why}")


def _offered(template: Template, problem: Problem) -> tuple[list[Candidate], dict[str, str]]:
    device = problem.output.device
    here = replace(
        problem,
        target=target_of(torch.device(device)),
        tf32=float32_precision(device) != "highest",
    )
    return offered(template, here)


def _may_be(candidate: Candidate, winner: str) -> bool:
    """Return whether a candidate may be the one with an identity."""
    name, kernel = f"{candidate.template}::{candidate.name}", candidate.kernel
    if isinstance(kernel, OpKernel):
        return candidate_id(name, operator_key(candidate, kernel)) == winner
    if isinstance(kernel, TritonSource):
        return True
    return candidate_id(name, "").rpartition("-")[0] == winner.rpartition("-")[0]
