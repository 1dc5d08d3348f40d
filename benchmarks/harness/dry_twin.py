"""Offers a second kernel for a product on a CPU, so that a dry run has something to tune."""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.template import Candidate


class DryTwin:
    """Offers torch's own product once more."""

    name = "dry_twin"
    ops = ("mm",)

    def reject(self, problem: Problem) -> str | None:
        """Return why it cannot run the problem."""
        return None if problem.output.device == "cpu" else "it is for a CPU"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the one kernel."""
        del problem
        return [Candidate(self.name, "mm", {}, OpKernel("aten::mm.out"))]
