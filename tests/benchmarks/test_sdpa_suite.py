"""The comparison of PyTorch's own SDPA tests: what it chooses, compiles, compares and survives."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_upper_left

from benchmarks.attention import sdpa_suite
from benchmarks.attention.sdpa_call import ORIGINAL, Calls, signature

SUITE = """
import os
import unittest

class TestSome(unittest.TestCase):
    def test_right(self): pass
    def test_wrong(self): self.assertEqual(1, 2)
    def test_left_out(self): self.skipTest("not here")
    def test_a_crash(self): os._exit(7)
    @unittest.expectedFailure
    def test_known(self): raise ValueError
"""


def test_each_test_is_run_beyond_one_that_kills_the_process(tmp_path: Path) -> None:
    path = tmp_path / "some_suite.py"
    path.write_text(SUITE, encoding="utf-8")
    names = [f"TestSome.test_{name}" for name in ("a_crash", "known", "left_out", "right", "wrong")]
    fared = sdpa_suite.arm(path, "plain", names, 120.0, tmp_path)
    result = {
        name.removeprefix("TestSome.test_"): o["outcome"] for name, o in fared.outcomes.items()
    }
    assert result == {
        "a_crash": "crashed",
        "known": "expected failure",
        "left_out": "skipped",
        "right": "passed",
        "wrong": "failed",
    }
    assert fared.outcomes[names[0]]["reason"] == "the process ended with 7"
    assert "1 != 2" in fared.outcomes[names[4]]["reason"]
    assert fared.not_run == []
    assert sdpa_suite.functions_of(path)[:2] == ["test_a_crash", "test_known"]


def test_a_later_run_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "other_suite.py"
    path.write_text(SUITE, encoding="utf-8")
    answered = {"test": "TestSome.test_wrong", "outcome": "passed", "reason": "by an earlier run"}
    (tmp_path / "plain.0.0.jsonl").write_text(json.dumps(answered) + "\n", encoding="utf-8")
    names = [f"TestSome.test_{name}" for name in ("left_out", "right", "wrong")]
    fared = sdpa_suite.arm(path, "plain", names, 120.0, tmp_path, jobs=2)
    result = {name: outcome["outcome"] for name, outcome in fared.outcomes.items()}
    assert result == dict(zip(names, ("skipped", "passed", "passed"), strict=True))
    assert fared.outcomes[names[2]]["reason"] == "by an earlier run"
    fared = sdpa_suite.arm(path, "plain", names, 0.0, tmp_path)
    assert fared.not_run == []


def test_variants_of_each_function_are_chosen_evenly() -> None:
    names = [f"TestA.test_x_{i}" for i in range(100)] + ["TestA.test_x_y_1", "TestB.test_x_1"]
    functions = ["test_x", "test_x_y"]
    everyone = sdpa_suite.chosen(names, functions, 0)
    assert sorted(everyone) == sorted(names)
    first = [int(name.rpartition("_")[2]) for name in everyone[:10]]
    assert max(first) - min(first) >= 70  # spread, should the time not suffice
    assert {number % 2 for number in first} == {0, 1}
    picked = sdpa_suite.chosen(names, functions, 4)
    assert picked[-2:] == names[-2:]
    assert len(picked) == 6
    numbers = [int(name.rpartition("_")[2]) for name in picked[:4]]
    assert max(numbers) - min(numbers) >= 70
    assert {number % 2 for number in numbers} == {0, 1}


def test_what_differs_is_named_and_what_agrees_is_counted() -> None:
    def fared(*outcomes: str) -> sdpa_suite.Fared:
        return sdpa_suite.Fared({f"t{i}": {"outcome": o} for i, o in enumerate(outcomes)})

    same, differing = sdpa_suite.compared(
        fared("passed", "failed", "skipped", "passed"),
        fared("passed", "failed", "passed", "crashed"),
    )
    assert same == {"passed": 1, "failed": 1}
    assert differing == ["t2", "t3"]


def test_half_a_line_of_a_process_that_was_ended_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    path.write_text(json.dumps({"started": "a"}) + '\n{"calls": {"x', encoding="utf-8")
    assert sdpa_suite.read(path) == [{"started": "a"}]
    calls: Counter[str] = Counter()
    lines = [{"calls": {"compiled": 1}}, {"started": "b"}, {"calls": {"compiled": 3}}]
    assert sdpa_suite.take(lines, {}, calls) == "b"
    assert calls == {"compiled": 3}


@pytest.fixture(name="calls")
def calls_without_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Calls]:
    calls = Calls("stock", tmp_path)

    def compiled(_: int) -> Callable[..., torch.Tensor]:
        return torch.compile(lambda *args, **kwargs: ORIGINAL(*args, **kwargs), backend="eager")

    monkeypatch.setattr(calls, "_compile", compiled)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", ORIGINAL)
    with torch._dynamo.config.patch(recompile_limit=8):
        calls.install(types.ModuleType("suite"))
        yield calls
    torch._dynamo.reset()


def test_calls_are_compiled_once_for_each_kind(calls: Calls) -> None:
    attend: Any = torch.nn.functional.scaled_dot_product_attention
    assert attend is not ORIGINAL
    q = torch.randn(1, 2, 8, 4)
    for _ in range(2):
        torch.testing.assert_close(
            attend(q, q, q, is_causal=True), ORIGINAL(q, q, q, is_causal=True)
        )
    attend(q, q, q)
    with sdpa_kernel(SDPBackend.MATH):
        attend(q, q, q)
    assert calls.counts == {
        "compiled": 3,
        "kinds of call": 2,
        "eager: the backend is forced to MATH": 1,
    }


def test_masks_that_are_no_plain_tensors_reach_their_own_code(calls: Calls) -> None:
    q = torch.randn(1, 2, 8, 4)
    attend: Any = torch.nn.functional.scaled_dot_product_attention
    actual = attend(q, q, q, attn_mask=causal_upper_left(8, 8))
    torch.testing.assert_close(actual, ORIGINAL(q, q, q, is_causal=True))
    assert calls.counts["compiled"] == 1


def test_the_plain_arm_changes_nothing(tmp_path: Path) -> None:
    Calls("plain", tmp_path).install(types.ModuleType("suite"))
    assert torch.nn.functional.scaled_dot_product_attention is ORIGINAL


def test_kinds_of_calls_differ_by_operands_numbers_and_state() -> None:
    q = torch.randn(1, 2, 8, 4)
    kinds = [signature((q, q, q), {}), signature((q, q, q), {"scale": 1.0})]
    kinds += [signature((q, q, q.transpose(1, 2).contiguous().transpose(1, 2)), {})]
    kinds += [signature((q.clone().requires_grad_(), q, q), {}), signature((q.half(), q, q), {})]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        kinds.append(signature((q, q, q), {}))
    with torch.no_grad():
        kinds.append(signature((q, q, q), {}))
    assert len(set(kinds)) == len(kinds)
    assert signature((q, q, q), {}) == signature((q.clone(), q, q), {})
