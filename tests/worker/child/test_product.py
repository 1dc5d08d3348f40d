"""The changes of operands on which candidates for a product are compared."""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.child.product import Outputs, ProductVerifier
from inductor_plugin.worker.child.stress import Stress, flat

BUFFER = TensorSpec((4, 8), (8, 1), "float32", "cpu", seed=1)
VIEW = replace(BUFFER, size=(4, 3), storage=32)


def test_candidates_are_compared_though_the_library_kernel_reads_what_it_need_not() -> None:
    tensor = build(VIEW)

    def run(stress: Stress) -> Outputs:
        changed = tensor.as_strided((32,), (1,)).clone().as_strided(VIEW.size, VIEW.stride)
        stress.apply({VIEW: changed})
        return changed + 0 * flat(VIEW, changed).sum(), {}

    verifier = ProductVerifier(NumberCheck(Tolerance(1e-3, 1e-3)))
    verifier.take(run(Stress())[0], {}, [VIEW], {VIEW: tensor}, run)
    assert verifier.changes([VIEW])
    assert bool(torch.isfinite(flat(VIEW, tensor)).all())
