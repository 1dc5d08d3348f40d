"""What is read of an attention operator's call before any kernel is chosen."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.virtualized import V

from inductor_plugin.attention.library import KERNELS
from inductor_plugin.inductor.attention import operators
from inductor_plugin.problem.attention import Mask

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents are equal where their numbers are."""
    monkeypatch.setattr(operators, "equal", lambda a, b: a == b)


def tensor(*size: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    return SimpleNamespace(
        get_size=lambda: [*size], get_dtype=lambda: dtype, get_device=lambda: torch.device("cuda:0")
    )


Q, K = tensor(2, 4, 20, 16), tensor(2, 4, 24, 16)
ENDS, OTHERS = tensor(3), tensor(3)
PACKED, KEYS = tensor(40, 4, 16), tensor(50, 4, 16)


@pytest.mark.parametrize(
    ("tensors", "square"),
    [
        ({"q": Q, "k": Q}, True),
        ({"q": Q, "k": K}, False),
        ({"q": PACKED, "k": PACKED, "cu_q": ENDS, "cu_k": ENDS}, True),
        ({"q": PACKED, "k": PACKED, "cu_q": ENDS, "cu_k": OTHERS}, False),
        ({"q": PACKED, "k": KEYS, "cu_q": ENDS, "cu_k": ENDS}, False),
        ({"q": tensor(2, 4), "k": Q}, False),  # it is refused later
        ({"q": Q, "k": tensor(2, 4)}, False),
    ],
)
def test_an_attention_is_square_where_each_sequence_is(
    tensors: dict[str, Any], *, square: bool
) -> None:
    assert operators._square(tensors) is square


@pytest.mark.parametrize(
    ("kernel", "values", "packed", "square", "mask"),
    [
        ("flash", {"is_causal": False}, False, False, Mask()),
        ("flash", {"is_causal": True}, False, False, Mask(-1, 0, bottom_right=True)),
        ("flash", {"is_causal": True}, False, True, Mask(-1, 0)),  # it makes no difference
        ("efficient", {"is_causal": True}, False, False, Mask(-1, 0)),
        ("varlen", {"is_causal": True}, True, True, Mask(-1, 0, bottom_right=True)),
        (
            "varlen",
            {"is_causal": False, "window_size": [3, 4]},
            True,
            False,
            Mask(3, 4, bottom_right=True),
        ),
        (
            "varlen",
            {"is_causal": True, "window_size": [3, 4]},
            True,
            False,
            Mask(3, 0, bottom_right=True),
        ),
        ("varlen", {"is_causal": False, "window_size": [-7, -7]}, True, False, Mask()),
        (
            "fmha",
            {"window_left": 2, "window_right": -1, "bottom_right": True},
            False,
            False,
            Mask(2, -1, bottom_right=True),
        ),
        (
            "fmha",
            {"window_left": 2, "window_right": 3, "bottom_right": False},
            False,
            False,
            Mask(2, 3),
        ),
        (
            "fmha",
            {"window_left": -1, "window_right": -1, "bottom_right": True},
            False,
            False,
            Mask(),
        ),
    ],
)
def test_masks_that_make_no_difference_are_one(
    kernel: str, values: dict[str, Any], mask: Mask, *, packed: bool, square: bool
) -> None:
    tensors = {"cu_q": ENDS} if packed else {}
    assert operators._mask(KERNELS[kernel], values, tensors, square) == mask


def user(target: Any, *arguments: Any, users: tuple[str, ...] = ("one",)) -> Any:
    return SimpleNamespace(target=target, args=("call", *arguments), users=users)


@pytest.mark.parametrize(
    ("users", "read"),
    [
        ([], False),
        ([user(operator.getitem, 1)], True),
        ([user(operator.getitem, 1, users=())], False),
        ([user(operator.getitem, 0)], False),
        ([user(operator.getitem, 0), user(operator.getitem, 1)], True),
        ([user("return")], True),
    ],
)
def test_a_result_is_read_if_anybody_uses_it(users: list[Any], *, read: bool) -> None:
    graph: Any = SimpleNamespace(current_node=SimpleNamespace(users=users))
    with V.set_graph_handler(graph):
        assert operators.is_read(1) is read


class RunTimeSize:
    """An extent that is known at run time."""

    is_number = False
    free_symbols: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("extent", "facts", "pinned"),
    [
        (16, {}, 16),
        (RunTimeSize(), {}, 64),  # with a guard
        (RunTimeSize(), {"is_backward": True}, None),
        (RunTimeSize(), {"aot_mode": True}, None),
        (16, {"is_backward": True, "aot_mode": True}, 16),
    ],
)
def test_a_head_is_pinned_where_a_guard_can_say_so(
    extent: Any, facts: dict[str, bool], pinned: int | None
) -> None:
    sizes = SimpleNamespace(tracked_fakes=None)
    sizevars = SimpleNamespace(simplify=lambda x: x, guard_int=lambda _: 64, shape_env=sizes)
    graph: Any = SimpleNamespace(
        sizevars=sizevars, **{"is_backward": False, "aot_mode": False, **facts}
    )
    with V.set_graph_handler(graph):
        assert operators.pinned(extent) == pinned


@pytest.mark.parametrize(
    ("values", "longest"),
    [({"max_q": 7}, 7), ({"max_seqlen_q": 8}, 8), ({"max_k": 9}, 40), ({"max_seqlen_q": None}, 40)],
)
def test_the_longest_sequence_is_said_or_is_all_tokens(
    values: dict[str, Any], longest: int
) -> None:
    assert operators._longest(values, "q", PACKED) == longest


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        ({}, True),
        ({"read": False}, False),
        ({"read": False, "gradient": True}, True),  # it reads the statistics of the forward
        ({"calls": False}, False),
        ({"calls": True, "longest": 100}, True),
        ({"capability": (8, 0)}, False),
        ({"capability": (10, 0)}, True),
        ({"capability": None}, True),
        ({"window": [3, -1]}, False),
        ({"window": [-1, -1]}, True),
        ({"keys": tensor(50, 2, 16)}, False),
        ({"longest": 128}, False),
        ({"longest": 129}, True),
        ({"longest": RunTimeSize()}, True),
    ],
)
def test_statistics_that_cudnn_may_have_made_stay_with_the_operator(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], *, refused: bool
) -> None:
    capability = facts.get("capability", (9, 0))
    target = None if capability is None else SimpleNamespace(capability=capability)
    monkeypatch.setattr(operators, "target_of", lambda _: target)
    monkeypatch.setattr(operators, "is_read", lambda _: facts.get("read", True))
    monkeypatch.setattr(operators.compat, "varlen_calls_cudnn", lambda _: facts.get("calls"))
    values = {"max_q": facts.get("longest", 300), "window_size": facts.get("window")}
    tensors = {"q": PACKED, "k": facts.get("keys", KEYS)}
    if facts.get("gradient"):
        tensors["lse"] = tensor(4, 40)
    assert bool(operators._cudnn_varlen(values, tensors)) is refused


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flash", {}, ""),
        ("flash", {"v": None}, "v not given"),
        ("flash", {"k": PACKED}, "do not have 4 dimensions"),
        ("flash", {"bias": tensor(20, 24, dtype=torch.bool)}, "a bias of torch.bool"),
        ("flash", {"bias": tensor(20, 24)}, ""),
        ("flash", {"q": tensor(2, 4, 0, 16)}, "an extent of 0"),
        ("varlen", {"q": PACKED, "k": KEYS, "v": KEYS, "cu_q": ENDS, "cu_k": ENDS}, ""),
        ("varlen", {"q": PACKED, "k": KEYS, "v": KEYS, "cu_q": ENDS}, "cu_k not given"),
        ("varlen", {"cu_q": ENDS, "cu_k": ENDS}, "do not have 3 dimensions"),
    ],
)
def test_operands_that_only_the_operator_takes_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(operators.compat, "is_unbacked", lambda _: False)
    monkeypatch.setattr(operators, "pinned", lambda extent: extent)
    tensors = {"q": Q, "k": K, "v": K, **changes}
    tensors = {key: value for key, value in tensors.items() if value is not None}
    reasons = operators._operand_reasons(name, tensors)
    assert reason in (next(reasons, None) or "")
    assert bool(next(operators._operand_reasons(name, tensors), "")) is bool(reason)
