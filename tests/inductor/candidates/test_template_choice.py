"""Which templates' kernels are offered on the devices that packages describe."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.virtualized import V

from inductor_plugin.config import Config
from inductor_plugin.errors import DeviceError
from inductor_plugin.inductor.candidates.template_choice import template_choices
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.registry import Registry
from inductor_plugin.template import Candidate, CudaSource, TritonSource
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
