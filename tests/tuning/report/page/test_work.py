from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.problem.attention import Mask, arguments
from inductor_plugin.problem.definition import Operand, Problem, SizeClass
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.report.page.work import Work, peak_of, peak_of_target, work_of
from tests.support.cache.measured_gpu import H100


def tensor(*size: int, dtype: str = "bfloat16", layout: str = "strided") -> Operand:
    stride = tuple(math.prod(size[place + 1 :]) for place in range(len(size)))
    return Operand(size, stride, dtype, "cuda", layout=layout)


def work(op: str, inputs: list[Operand], output: Operand, **facts: object) -> Work | None:
    named = tuple((name, repr(value)) for name, value in facts.items())
    problem = Problem(op, tuple(inputs), output, named)
    return work_of(problem.fields(), problem.describe())


@pytest.mark.parametrize(
    ("op", "inputs", "output", "flops", "elements"),
    [
        ("mm", [(4, 8), (8, 16)], (4, 16), 2 * 4 * 8 * 16, 32 + 128 + 64),
        ("bmm", [(3, 4, 8), (3, 8, 16)], (3, 4, 16), 2 * 3 * 4 * 8 * 16, 96 + 384 + 192),
        ("addmm", [(16,), (4, 8), (8, 16)], (4, 16), 2 * 4 * 8 * 16, 16 + 32 + 128 + 64),
        (
            "scaled_mm",
            [(4, 8), (8, 16), (4, 1), (1, 16)],
            (4, 16),
            2 * 4 * 8 * 16,
            32 + 128 + 4 + 16 + 64,
        ),
        ("grouped_mm", [(4, 8), (3, 8, 16), (3,)], (4, 16), 2 * 4 * 8 * 16, 32 + 384 + 3 + 64),
        ("grouped_mm", [(4, 8), (8, 16), (3,)], (3, 4, 16), 2 * 4 * 8 * 16, 32 + 128 + 3 + 192),
        (
            "weight_int4pack_mm",
            [(4, 64), (2, 2, 32, 1), (1, 16, 2)],
            (4, 16),
            2 * 4 * 64 * 16,
            256 + 128 + 32 + 64,
        ),
        (
            "mm_plus_mm",
            [(4, 8), (8, 16), (4, 2), (2, 16)],
            (4, 16),
            2 * 4 * 16 * (8 + 2),
            32 + 128 + 8 + 32 + 64,
        ),
    ],
)
def test_a_product_has_two_operations_for_each_multiplication(
    op: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], flops: int, elements: int
) -> None:
    known = work(op, [tensor(*size) for size in inputs], tensor(*output))
    assert known == Work(flops, 2 * elements, "bfloat16")


def test_a_convolution_multiplies_each_output_with_a_filter() -> None:
    x, weight, out = tensor(2, 3, 10, 10), tensor(5, 3, 3, 3), tensor(2, 5, 8, 8)
    known = work("convolution", [x, weight], out, transposed=False)
    assert known is not None
    assert known.flops == 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)
    assert work("convolution", [x, weight], out, transposed=True) is None


def test_a_packed_weight_is_read_though_its_extents_are_hidden() -> None:
    packed = Operand((1,), (1,), "float32", "cpu", layout="mkldnn")
    x, out = tensor(4, 8, dtype="float32"), tensor(4, 16, dtype="float32")
    assert work("linear_unary", [x, packed], out) == Work(
        2 * 4 * 8 * 16, 4 * (32 + 8 * 16 + 64), "float32"
    )


def test_what_is_broadcast_is_read_once() -> None:
    a = Operand((4, 8), (0, 1), "float32", "cuda")
    known = work("mm", [a, tensor(8, 16, dtype="float32")], tensor(4, 16, dtype="float32"))
    assert known is not None
    assert known.bytes == 4 * (8 + 128 + 64)


def test_an_attention_counts_its_two_products_and_a_causal_mask_half_of_them() -> None:
    q = tensor(2, 3, 16, 8)
    for right, share in ((-1, 1.0), (0, 0.5)):
        facts = arguments(
            scale=1.0, mask=Mask(-1, right, bottom_right=False), operands=("q", "k", "v")
        )
        known = work("attention", [q, q, q], q, **facts)
        assert known is not None
        assert known.flops == share * 2 * 2 * 3 * 16 * 16 * (8 + 8)


def test_a_dynamic_problem_is_taken_at_the_size_it_was_measured_at() -> None:
    a, b, out = tensor(48, 8), tensor(8, 16), tensor(48, 16)
    problem = Problem("mm", (a, b), out, dynamic=(SizeClass(0, 0, 33, 64, 48),))
    known = work_of(problem.fields(), problem.describe())
    assert known == Work(2 * 48 * 8 * 16, 2 * (48 * 8 + 8 * 16 + 48 * 16), "bfloat16")


@pytest.mark.parametrize(
    ("op", "inputs", "output"),
    [
        ("grouped_mm", [(48, 8), (3, 8, 16), (3,)], (48, 16)),
        ("weight_int4pack_mm", [(48, 64), (2, 2, 32, 1), (1, 16, 2)], (48, 16)),
        ("grouped_mm", [(48, 8), (8, 16), (3,)], (3, 48, 16)),
    ],
)
def test_a_dynamic_output_has_the_extents_of_the_factors(
    op: str, inputs: list[tuple[int, ...]], output: tuple[int, ...]
) -> None:
    rows = (SizeClass(0, 0, 33, 64, 48),)
    operands = tuple(tensor(*size) for size in inputs)
    problem = Problem(op, operands, tensor(*output), dynamic=rows)
    known = work_of(problem.fields(), problem.describe())
    if len(output) == 3:  # of how many groups is not in the record of A and B
        assert known is None
    else:
        assert known == work(op, list(operands), tensor(*output))


@pytest.mark.parametrize(
    "fields",
    [{}, {"op": "mm", "inputs": 3}, {"op": "sort", "inputs": [], "output": {}, "arguments": []}],
)
def test_fields_that_are_no_problem_have_no_work(fields: dict[str, object]) -> None:
    assert work_of(fields, "mm(4x8, 8x16)") is None


def test_the_roof_is_the_bandwidth_or_the_rate_of_the_dtype() -> None:
    peak = peak_of(H100)
    assert peak is not None
    assert peak.name == "H100"
    assert peak.bound_ms(Work(1.0, 3.35e9, "bfloat16")) == pytest.approx(1.0)
    assert peak.bound_ms(Work(989.4e9, 1.0, "bfloat16")) == pytest.approx(1.0)
    assert peak.bound_ms(Work(494.7e9, 1.0, "float32")) == pytest.approx(1.0)  # as TF32
    assert peak.bound_ms(Work(1.0, 1.0, "float64")) is None


@pytest.mark.parametrize(
    "device",
    [
        {},
        {"type": "cpu", "name": "EPYC"},
        {"type": "cuda", "name": "?", "capability": "x"},
        # A third of the bandwidth of an L40S, which has the same tensor cores.
        {"type": "cuda", "name": "NVIDIA L4", "capability": "8.9", "multiprocessors": 58},
    ],
)
def test_a_device_that_is_not_known_has_no_roof(device: dict[str, Any]) -> None:
    assert peak_of({"device": device}) is None
    assert peak_of({}) is None


@pytest.mark.parametrize("extent", [2**62, 10**400])
def test_a_problem_beyond_floating_point_has_no_work(extent: int) -> None:
    fields = Problem("mm", (tensor(4, 8), tensor(8, 16)), tensor(4, 16)).fields()
    fields["output"]["size"] = [extent] * 20
    assert work_of(fields, "mm(4x8, 8x16)") is None
    assert work_of(fields, f"mm({extent}x8, 8x16)") is None


@pytest.mark.parametrize("count", [10**300, 10**400])
def test_a_device_beyond_floating_point_has_no_roof(count: int) -> None:
    assert peak_of({"device": {**H100["device"], "multiprocessors": count}}) is None


@pytest.mark.parametrize(
    ("bandwidth", "rates", "shown"),
    [
        (1e9, (("float32", 1e12),), {"float32": 1e12}),
        (1e9, (("float32", 1e12), ("int8", 0.0), ("bfloat16", math.inf)), {"float32": 1e12}),
        (1e9, (("float32", 10**400), ("float16", math.nan), ("int8", -1.0)), None),
        (1e9, (), None),
        (0.0, (("float32", 1e12),), None),
        (math.inf, (("float32", 1e12),), None),
        (math.nan, (("float32", 1e12),), None),
    ],
)
def test_a_roof_needs_a_bandwidth_and_a_rate(
    bandwidth: float, rates: tuple[tuple[str, float], ...], shown: dict[str, float] | None
) -> None:
    """A package may give a `Target` for its occupancy alone: its page ended with a traceback, or had a roof at -Infinity."""
    peak = peak_of_target(replace(target("H100"), memory_bandwidth=bandwidth, rates=rates))
    assert (None if peak is None else peak.rates) == shown
