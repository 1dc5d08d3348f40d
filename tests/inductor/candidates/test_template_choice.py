"""Which templates' kernels are offered on the devices that packages describe."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.errors import DeviceError
from inductor_plugin.inductor.candidates import template_choice
from inductor_plugin.inductor.candidates.template_choice import template_choices
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate, CudaSource, Failed, TritonSource
from tests.support.fakes.devices import described

pytestmark = pytest.mark.compat

MATRIX = Operand((8, 8), (8, 1), "float32", "xpu")
CUDA = CudaSource("npu::mm", "kernel", "", "sm_90a")
TRITON = TritonSource("kernel", "", "tiles", (), 1, 4)


class Product:
    """A template with one kernel."""

    ops = ("mm",)

    def __init__(self, name: str, kernel: Any) -> None:
        self.name = name
        self.kernel = kernel

    def reject(self, problem: Problem) -> str | None:
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return [Candidate(self.name, "only", {}, self.kernel)]


def rejected(*templates: Product) -> dict[str, str]:
    """Return why templates are not offered for a product on an ``xpu``."""
    registry = Registry()
    for template in templates:
        registry.register(template)
    layout = SimpleNamespace(device=torch.device("xpu:0"))
    call: Any = SimpleNamespace(
        problem=Problem("mm", (MATRIX, MATRIX), MATRIX), nodes=(), layout=layout
    )
    graph: Any = SimpleNamespace(aot_mode=False)
    with V.set_graph_handler(graph):
        choices, reasons = template_choices(call, registry, Config())
    assert choices == []
    return reasons


def test_kernels_of_other_compilers_are_not_offered() -> None:
    with described(name="xpu"):
        assert rejected(Product("cuda", CUDA), Product("triton", TRITON)) == {
            "cuda": "nvcc compiles it, which is not for xpu",
            "triton": "it is for devices that Triton compiles for; of xpu nobody has said so",
        }


def test_a_device_refuses_templates_with_its_reason() -> None:
    def refusal(problem: Problem, template: str) -> str:
        return f"{template} was seen to hang on {problem.output.device}"

    with described(name="xpu", refusal=refusal):
        assert rejected(Product("cuda", CUDA)) == {"cuda": "cuda was seen to hang on xpu"}


def test_a_refusal_that_raises_names_the_package() -> None:
    def refusal(problem: Problem, template: str) -> str:
        raise KeyError(template)

    with (
        described(name="xpu", refusal=refusal),
        pytest.raises(DeviceError, match="raised KeyError: 'cuda'"),
    ):
        rejected(Product("cuda", CUDA))


class SomeKernels(Product):
    """A template with some kernels of which a few fail."""

    def __init__(self, name: str, *outcomes: str, backend: str = "") -> None:
        super().__init__(name, TRITON)
        self.outcomes = outcomes
        if backend:
            self.backend = backend

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return [Candidate(self.name, outcome, {}, self.kernel) for outcome in self.outcomes]


@pytest.fixture(name="chosen")
def choices_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the names of choices, the reasons of what is left out, and which templates a warning was asked for."""
    warned: list[bool] = []

    def choice(candidate: Candidate, *_: Any) -> Any:
        failed = candidate.name.startswith("!")
        return Failed(candidate.name) if failed else SimpleNamespace(name=candidate.name)

    def warn(_config: Config, *, some: bool) -> None:
        warned.append(some)

    monkeypatch.setattr(template_choice, "_choice", choice)
    monkeypatch.setattr(template_choice, "warn_without_cutlass", warn)
    monkeypatch.setattr(template_choice, "why_not_offered", lambda *_: None)

    def chosen(*templates: Product, op: str = "mm", **options: Any) -> Any:
        registry = Registry()
        for template in templates:
            registry.register(template)
        problem = Problem(op, (MATRIX, MATRIX), MATRIX)
        call: Any = SimpleNamespace(problem=problem)
        choices, reasons = template_choices(call, registry, Config(**options))
        return [(each.name, each.offered_by) for each in choices], reasons, warned

    return chosen


def test_a_template_of_which_some_kernels_fail_is_offered_with_the_others(
    chosen: Callable[..., Any],
) -> None:
    some, none = (
        SomeKernels("some", "a", "!no memory", "!no text", "b"),
        SomeKernels("none", "!no nvcc", "!no"),
    )
    choices, reasons, warned = chosen(some, SomeKernels("all", "c"), none)
    assert choices == [("a", "some"), ("b", "some"), ("c", "all")]
    assert reasons == {"some": "2 of its 4 kernels are left out: !no memory", "none": "!no nvcc"}
    assert warned == []


@pytest.mark.parametrize(
    ("outcomes", "warned"), [(("a",), []), (("a", "!b"), [True]), (("!a", "!b"), [False])]
)
def test_kernels_of_cutlass_that_fail_are_warned_of(
    chosen: Callable[..., Any], outcomes: tuple[str, ...], warned: list[bool]
) -> None:
    assert chosen(SomeKernels("cutlass", *outcomes, backend="CUTLASS"))[2] == warned


@pytest.mark.parametrize(
    ("op", "options", "unwanted"),
    [
        ("mm", {}, []),
        ("mm", {"gemm_backends": "ATEN,TRITON"}, ["cutlass"]),
        ("mm", {"gemm_backends": "CUTLASS"}, ["triton"]),
        ("mm", {"attention_backends": "FLASH"}, []),
        ("attention", {"attention_backends": "TRITON"}, ["cutlass"]),
        ("attention", {"gemm_backends": "ATEN"}, []),
    ],
)
def test_backends_of_products_and_of_attention_are_two_options(
    chosen: Callable[..., Any], op: str, options: dict[str, str], unwanted: list[str]
) -> None:
    templates = (
        SomeKernels("triton", "a", backend="TRITON"),
        SomeKernels("cutlass", "b", backend="CUTLASS"),
    )
    neutral = SomeKernels("neutral", "c")
    every: list[Any] = [*templates, neutral]
    for template in every:
        template.ops = (op,)
    choices, reasons, _ = chosen(*templates, neutral, op=op, **options)
    assert sorted(reasons) == unwanted
    assert len(choices) == 3 - len(unwanted)


@pytest.mark.parametrize(
    ("in_order", "required", "nvidia", "why"),
    [
        (True, True, True, ""),
        (False, False, True, ""),
        (False, True, True, "no fixed order"),
        (True, False, False, "not for a device"),
    ],
)
def test_sums_in_no_fixed_order_are_not_offered_where_they_must_be_the_same(
    monkeypatch: pytest.MonkeyPatch, why: str, *, in_order: bool, required: bool, nvidia: bool
) -> None:
    untyped: Any = torch
    monkeypatch.setattr(untyped, "are_deterministic_algorithms_enabled", lambda: required)
    monkeypatch.setattr(template_choice, "is_nvidia", lambda _: nvidia)
    monkeypatch.setattr(template_choice, "name_of", lambda _: "a device")
    monkeypatch.setattr(template_choice, "build_of", lambda *_: Failed("built"))
    source = replace(CUDA, deterministic=in_order)
    call: Any = SimpleNamespace(layout=SimpleNamespace(device=torch.device("cuda:0")))
    result = template_choice._cuda_choice(Candidate("t", "k", {}, source), source, call, Config())
    assert isinstance(result, Failed)
    assert (why or "built") in result.reason
