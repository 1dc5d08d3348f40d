"""Facts of an attention, read from a problem."""

from __future__ import annotations

import pytest

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import (
    BACKWARD,
    FORWARD,
    Attention,
    Mask,
    arguments,
    attention_of,
    operands_of,
)


def dense(*size: int) -> Operand:
    stride = [1]
    for extent in reversed(size[1:]):
        stride.insert(0, stride[0] * extent)
    return Operand(size, tuple(stride), "bfloat16", "cuda")


def problem(op: str, operands: dict[str, Operand], mask: Mask) -> Problem:
    call_arguments = arguments(scale=0.125, mask=mask, operands=tuple(operands))
    texts = tuple((name, repr(value)) for name, value in sorted(call_arguments.items()))
    return Problem(op, tuple(operands.values()), next(iter(operands.values())), texts)


def forward(**more: Operand) -> Problem:
    q, kv = dense(2, 8, 100, 64), dense(2, 2, 300, 64)
    return problem(FORWARD, {"q": q, "k": kv, "v": kv, **more}, Mask(right=0, bottom_right=True))


def test_facts_of_a_forward() -> None:
    lse = Operand((2, 8, 100), (800, 100, 1), "float32", "cuda")
    assert attention_of(forward(lse=lse)) == Attention(
        backward=False, batch=2, heads=8, kv_heads=2, queries=100, keys=300, head_dim=64,
        value_dim=64, scale=0.125, mask=Mask(-1, 0, True), softcap=0.0,
        operands=("q", "k", "v", "lse"), dtype="bfloat16",
    )  # fmt: skip


def test_where_an_operand_is() -> None:
    attention = attention_of(forward(bias=dense(2, 8, 100, 300)))
    assert attention.biased
    assert not attention.varlen
    assert attention.index("bias") == 3
    assert attention.index("lse") is None


def test_operands_have_one_order_in_arguments_and_in_what_is_kept_of_them() -> None:
    names = ("q", "k", "v", "lse")
    passed = arguments(scale=0.125, mask=Mask(), operands=names)
    kept = {name: repr(value) for name, value in passed.items()}
    assert kept["operands"] == "'q,k,v,lse'"
    assert operands_of(passed) == operands_of(kept) == names
    with pytest.raises(KeyError, match="operands"):
        operands_of({})


def test_varlen_counts_sequences_by_their_ends() -> None:
    ends = Operand((5,), (1,), "int32", "cuda")
    q, kv = dense(1000, 8, 64), dense(2000, 2, 64)
    attention = attention_of(
        problem(FORWARD, {"q": q, "k": kv, "v": kv, "cu_q": ends, "cu_k": ends}, Mask())
    )
    assert attention.varlen
    assert (attention.batch, attention.queries, attention.keys) == (4, 1000, 2000)
    assert attention.flops == 2 * 2 * 8 * 1000 * 2000 * 64 // 4


def test_flops_of_a_backward_are_five_products() -> None:
    q = dense(1, 2, 128, 64)
    row = Operand((1, 2, 128), (256, 128, 1), "float32", "cuda")
    names = {"do": q, "q": q, "k": q, "v": q, "out": q, "lse": row, "delta": row, "dq": q, "dv": q}
    whole = attention_of(problem(BACKWARD, names, Mask()))
    causal = attention_of(problem(BACKWARD, names, Mask(right=0)))
    assert whole.backward
    assert whole.flops == 5 * 2 * 2 * 128 * 128 * 64
    assert causal.flops == whole.flops // 2


def test_another_operator_is_no_attention() -> None:
    with pytest.raises(ValueError, match="mm is no attention"):
        attention_of(Problem("mm", (), dense(1, 1)))


@pytest.mark.parametrize(
    ("mask", "limited"), [(Mask(), False), (Mask(right=0), True), (Mask(left=0), True)]
)
def test_a_mask_without_limits(mask: Mask, limited: bool) -> None:
    assert mask.limited is limited
