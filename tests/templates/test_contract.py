"""What every built-in template is held to: the promises of `inductor_plugin.template`, on calls of all its operators.

A template that is added to `BUILTIN` is tested as it is; an operator that no other template serves needs its operands in `call`.
Whether kernels compile, and what they compute, is tested by family: tests/templates/FAMILY.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import NamedTuple

import pytest

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem.attention import DIRECTIONS
from inductor_plugin.problem.product import ROLES
from inductor_plugin.problem.target import target
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate, CudaSource, Template, TritonSource
from inductor_plugin.templates import BUILTIN
from tests.support.attention.problems import attention

GROUP, BATCH = 64, 3
NARROW = {"int_mm": "int8", "scaled_mm": "float8_e4m3fn"}
WRITTEN = {"int8": "int32", "float8_e4m3fn": "bfloat16"}


class Kind(NamedTuple):
    """What calls of an operator differ in: rows, columns and length of the sum, then a value of each axis."""

    size: tuple[int, int, int]
    device: str = "H100"
    dtype: str = "usual"
    layout: str = "usual"
    dynamic: str = "no"


SIZES = ((1, 4096, 4096), (2048, 2048, 2048), (16, 64, 16384), (250, 77, 331), (0, 64, 64))
DEVICES = ("H100", "cpu", "A100", "B200", "of no name")
DTYPES = ("usual", "float16", "float32", "float64", "float8_e5m2")
LAYOUTS = ("usual", "other order", "gaps", "opaque", "offset")
DYNAMIC = ("no", "no", "no", "rows", "rows")
AXES: tuple[Sequence[object], ...] = (SIZES, DEVICES, DTYPES, LAYOUTS, DYNAMIC)


def kinds() -> Iterator[Kind]:
    """Yield ordinary calls of each size, then calls in which each two values of two axes meet.

    Of five values on each axis 25 rows suffice, by lines of each slope (an orthogonal array).
    """
    yield from (Kind(size, device) for size in SIZES for device in DEVICES[:2])
    for first, second in product(range(5), repeat=2):
        dtype, layout, dynamic = ((second + step * first) % 5 for step in (1, 2, 3))
        device, rows = DEVICES[second], DYNAMIC[dynamic]
        yield Kind(SIZES[first], device, DTYPES[dtype], LAYOUTS[layout], rows)


def operand(size: tuple[int, ...], kind: Kind, dtype: str, *, column: bool = False) -> Operand:
    """Return an operand as a kind says; ``column``: usually the dimension before the last is contiguous."""
    stride = [math.prod(max(extent, 1) for extent in size[dim + 1 :]) for dim in range(len(size))]
    if len(size) > 1 and column != (kind.layout == "other order"):
        stride[-2:] = [1, max(size[-2], 1)]
    stride = [2 * step for step in stride] if kind.layout == "gaps" else stride
    device, layout = ("cpu" if kind.device == "cpu" else "cuda"), kind.layout
    opaque, offset = ("mkldnn" if layout == "opaque" else "strided"), int(layout == "offset")
    return Operand(size, tuple(stride), dtype, device, offset, opaque)


def call(op: str, kind: Kind) -> Problem:
    """Return a call of an operator."""
    m, n, k = kind.size
    usual = Kind(kind.size, kind.device)
    dtype = NARROW.get(op, "bfloat16") if kind.dtype == "usual" else kind.dtype
    gpu = None if kind.device in ("cpu", "of no name") else target(kind.device)
    if op in DIRECTIONS:
        whole = attention(queries=m, keys=n, dim=64, dtype=dtype, backward=op == DIRECTIONS[1])
        inputs = tuple(operand(each.size, kind, each.dtype) for each in whole.inputs)
        output = operand(whole.output.size, usual, whole.output.dtype)
        rows = SizeClass(0, 2, max(m // 2, 1), m, m)
        dynamic = (rows,) if kind.dynamic == "rows" else ()
        return replace(whole, inputs=inputs, output=output, dynamic=dynamic, target=gpu)
    batch = (BATCH,) if op in ("bmm", "baddbmm") else ()
    output = operand((*batch, m, n), usual, WRITTEN.get(dtype, dtype))
    by_role = {
        "a": operand((*batch, m, k), kind, dtype),
        "b": operand((*(batch or (BATCH,) * (op == "grouped_mm")), k, n), kind, dtype, column=True),
        "c": replace(output, stride=(*(0,) * (len(batch) + 1), 1)),
        "scale_a": operand((m, 1), usual, "float32"),
        "scale_b": operand((1, n), usual, "float32"),
        "offsets": operand((BATCH,), usual, "int32"),
        "scales": operand((k // GROUP, n, 2), usual, "bfloat16"),
    }
    if op == "weight_int4pack_mm":
        by_role["b"] = operand((n // 8, k // 32, 32, 1), usual, "int32")
    roles = [role for role in ROLES[op] if (op, role) != ("scaled_mm", "c")]
    rows = SizeClass(roles.index("a"), len(batch), max(m // 2, 1), m, m)
    return Problem(
        op,
        tuple(by_role[role] for role in roles),
        output,
        arguments=(("group", str(GROUP)),) if op == "weight_int4pack_mm" else (),
        dynamic=(rows,) if kind.dynamic == "rows" else (),
        target=gpu,
    )


def check_reason(reason: str | None) -> None:
    assert reason is None or reason.strip() == reason != ""
    assert "\n" not in (reason or "")


def check_candidates(template: Template, problem: Problem) -> None:
    """Check what a template offers for a call that it does not reject."""
    offered = template.candidates(problem)
    names = [candidate.name for candidate in offered]
    assert names, f"{template.name} rejects {problem} and offers nothing"
    assert len(set(names)) == len(names)
    for candidate in offered:
        assert candidate.template == template.name
        assert candidate.name.lower().split() == [candidate.name]
        assert json.loads(json.dumps(candidate.config, allow_nan=False)) == candidate.config
        assert isinstance(candidate.kernel, OpKernel | TritonSource | CudaSource)
        assert "\n" not in candidate.description
    assert list(pickle.loads(pickle.dumps(offered))) == list(offered)
    assert list(template.candidates(problem)) == list(offered)


def check(template: Template) -> None:
    """Check what a template says to calls of all its operators; it takes some of each."""
    for op in template.ops:
        taken = 0
        for problem in (call(op, kind) for kind in kinds()):
            reason = template.reject(problem)
            check_reason(reason)
            assert template.reject(problem) == reason
            if reason is None:
                check_candidates(template, problem)
                taken += 1
        assert taken, f"{template.name} takes no call of {op}"


@pytest.mark.parametrize("template", BUILTIN, ids=lambda template: template.name)
def test_a_template_keeps_its_promises(template: Template) -> None:
    Registry().register(template)
    check(template)


class Copied:
    """A template that keeps its promises, but for what a test changes."""

    name, ops = "copied", ("mm",)

    def __init__(self, reason: str | None = None, *kernels: Candidate) -> None:
        self.reason = reason
        self.kernels = list(kernels)

    def reject(self, problem: Problem) -> str | None:
        return self.reason

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return self.kernels


KERNEL = Candidate("copied", "k", {"tile": [1, None]}, OpKernel("aten::mm.out", (), ()))


class Forgetful(Copied):
    """One that offers less each time."""

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return [self.kernels.pop()] if len(self.kernels) > 1 else self.kernels


BROKEN: dict[str, Template] = {
    "nothing is offered": Copied(),
    "nothing is ever taken": Copied("no", KERNEL),
    "no reason": Copied("", KERNEL),
    "a reason of two lines": Copied("a\nb", KERNEL),
    "a name twice": Copied(None, KERNEL, KERNEL),
    "a name with a blank": Copied(None, replace(KERNEL, name="k 1")),
    "a capital": Copied(None, replace(KERNEL, name="K")),
    "the name of another template": Copied(None, replace(KERNEL, template="triton_mm")),
    "a configuration that JSON changes": Copied(None, replace(KERNEL, config={"tile": (1, 2)})),
    "no kernel": Copied(None, replace(KERNEL, kernel="aten::mm.out")),
    "another answer": Forgetful(None, KERNEL, replace(KERNEL, name="other")),
}


def test_a_template_that_keeps_its_promises_passes() -> None:
    check(Copied(None, KERNEL))


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_promise_is_seen(fault: str) -> None:
    with pytest.raises(AssertionError):
        check(BROKEN[fault])


def test_each_two_values_of_two_axes_meet() -> None:
    rows = list(kinds())
    for first, second in combinations(range(len(AXES)), 2):
        pairs = {(row[first], row[second]) for row in rows}
        assert pairs >= set(product(AXES[first], AXES[second]))
