"""Attention by two products and a softmax, on a CPU; see `inductor_plugin.attention.math`."""

from __future__ import annotations

from collections.abc import Sequence

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import BACKWARD, FORWARD, Attention, attention_of
from inductor_plugin.template import Candidate

_MODULE = "inductor_plugin.attention.math"
_DTYPES = ("float32", "float64", "bfloat16", "float16")
_SCORES_BYTES = 1 << 30
"""Bytes of scores, which are in memory; gradients hold up to four copies."""
_EXTENTS = {
    (operand, dim): what
    for rows, operands in (("Sq", ("do", "q", "out", "lse", "dq")), ("Sk", ("k", "v", "dv")))
    for operand in operands
    for dim, what in enumerate(("B", "H", rows, "D"))
}


class AttentionMath:
    """The decomposed form, forward and backward."""

    name = "attention_math"
    ops = (FORWARD, BACKWARD)
    device = "cpu"
    """No kernel of it runs on a GPU."""
    version = "2"
    """Of how it is timed: earlier records let it win where it is slower in a network (docs/decisions.md)."""

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem."""
        if problem.output.device != "cpu":
            return f"it is for CPUs, this is {problem.output.device}"
        a = attention_of(problem)
        scores = 4 * a.batch * a.heads * a.queries * a.keys
        reasons = {
            "sequences of different lengths": a.varlen,
            # Won at a length of 64, it took 3.3 times as long as ATen's kernel at one of 1536.
            f"{_dynamic_extents(problem, a)} known at run time only; measured at one size, it may be slower at "
            "others": problem.dynamic,
            "a soft cap": a.softcap,
            f"{a.dtype} operands": a.dtype not in _DTYPES,
            f"{a.heads} heads are no multiple of {a.kv_heads} key heads": a.heads % a.kv_heads,
            f"{scores >> 20} MiB of scores, it takes {_SCORES_BYTES >> 20}": scores > _SCORES_BYTES,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the one kernel."""
        a = attention_of(problem)
        parts = ["bias"] if a.biased else []
        if "lse" in a.operands and not a.backward:
            parts.append("lse")
        operator = "attention_math_backward" if a.backward else "attention_math"
        mask = a.mask
        return [
            Candidate(
                template=self.name,
                name=operator,
                config={},
                kernel=OpKernel(
                    f"inductor_plugin::{operator}.{'_'.join([*parts, 'out'])}",
                    (a.scale, mask.left, mask.right, mask.bottom_right),
                    (_MODULE,),
                ),
                description="two products and a softmax",
            )
        ]


def _dynamic_extents(problem: Problem, a: Attention) -> str:
    """Return which extents are dynamic, by their usual names."""
    names = (
        _EXTENTS.get((a.operands[extent.operand], extent.dim), "an extent of the bias")
        for extent in problem.dynamic
    )
    return ", ".join(dict.fromkeys(names))
