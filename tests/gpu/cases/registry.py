"""What is checked on a GPU: every case by its name.

Every tensor of a graph is an operand of its product, in the order of the product's own operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from inductor_plugin.registry import default_registry
from tests.gpu.cases import fused as fused_cases
from tests.gpu.cases.cutlass import cutlass_cases
from tests.gpu.cases.product import Case
from tests.gpu.cases.triton import triton_cases


def cases() -> tuple[Case, ...]:
    """Return all cases whose operator their template serves."""
    serves: Mapping[str, tuple[str, ...]] = {
        name: default_registry().get(name).ops for name in default_registry().names()
    }
    every = [*cutlass_cases(), *triton_cases()]
    return tuple(case for case in every if case.op in serves.get(case.template, ()))


@dataclass
class _Index:
    by_id: dict[str, Case] = field(default_factory=dict[str, Case])


def case_ids() -> list[str]:
    """Return ``template: name`` of each case; a worker finds the case by it."""
    if not _index.by_id:
        _index.by_id.update({f"{trial.template}: {trial.name}": trial for trial in cases()})
    return list(_index.by_id)


def case(identity: str) -> Case:
    """Return a case by what `case_ids` calls it, or one with an epilogue by its name."""
    case_ids()
    return _index.by_id.get(identity) or fused_cases.cases()[identity]


_index = _Index()
