"""What coverage says of Inductor's own templates, held against lowerings for a GPU that is not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gemm import coverage
from benchmarks.gemm.products import KINDS, Kind, kind, problem
from benchmarks.gemm.shapes import LAYERS, Layer, Shape
from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.problem import Problem
from inductor_plugin.problem.target import target
from inductor_plugin.templates import BUILTIN
from tests.support.lowering import Arg, Lab, library_first
from tests.support.pairs import covering

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ATEN: Any = torch
LAYER = {layer.label: layer for layer in LAYERS}
PLAIN, BIASED, GROUPED = (
    LAYER[label] for label in ("llama3-8b o", "dit-xl fc1", "mixtral-8x7b grouped_w2")
)
OURS = {template.name for template in BUILTIN}


def release() -> tuple[int, int]:
    """Return torch's version, in two numbers."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def graph(product: Problem) -> Callable[..., tuple[torch.Tensor]]:
    """Return the function whose lowering is the product."""
    facts: dict[str, Any] = {"out_dtype": torch.bfloat16}
    facts["use_fast_accum"] = dict(product.arguments).get("use_fast_accum") == "True"
    functions: dict[str, Callable[..., tuple[torch.Tensor]]] = {
        "mm": lambda a, b: (torch.mm(a, b),),
        "addmm": lambda c, a, b: (torch.addmm(c, a, b),),
        "int_mm": lambda a, b: (ATEN._int_mm(a, b),),
        "grouped_mm": lambda a, b, ends: (ATEN._grouped_mm(a, b, ends),),
        "scaled_mm": lambda a, b, x, y, *c: (ATEN._scaled_mm(a, b, x, y, *c, **facts),),
    }
    return functions[product.op]


def stocks(product: Problem, gpu: str, folder: Path) -> set[str]:
    """Return the names of Inductor's own Triton candidates."""
    arguments = [
        Arg(operand.size, getattr(torch, operand.dtype), operand.stride)
        for operand in product.inputs
    ]
    with as_target(gpu), Lab(library_first, folder).open() as lab:
        code = lab.lower(graph(product), *arguments, gemm_backends="ATEN,TRITON", max_candidates=0)
    entries = [entry for task in lab.tasks for entry in task.entries]
    # With the library alone there is nothing to select.
    assert any(entry.library for entry in entries) or f"_{product.op}(" in code
    return {entry.name for entry in entries if entry.kind == "triton" and entry.name not in OURS}


def names_of(case: tuple[str, Layer, Kind]) -> tuple[str, str, str]:
    """Return the names of a case's GPU, layer and type."""
    gpu, layer, types = case
    return gpu, layer.name, types.name


def products() -> Iterator[Any]:
    """Give (GPU, layer, type) of products, each two of GPU, operator and type that torch has a call for together in one."""
    known = [
        (gpu, layer, types)
        for gpu, layer, types in itertools.product(coverage.GPUS, (PLAIN, BIASED, GROUPED), KINDS)
        if coverage.uncallable(Shape(layer, 64), types, "tn", target(gpu)) is None
    ]
    for gpu, layer, types in covering(known, names_of):
        # A lowering of fp8 takes 2 s and more, for a hundred tiles.
        again = gpu == "B200" or types.a == "float8_e5m2"
        marks = pytest.mark.slow if again and types.scale != "none" else ()
        name = f"{gpu}-{layer.name}-{types.name}"
        yield pytest.param(gpu, layer, types, id=name, marks=marks)


@pytest.fixture(name="tf32")
def _tf32() -> Iterator[Callable[[Kind], None]]:
    kept = torch.get_float32_matmul_precision()
    yield lambda types: torch.set_float32_matmul_precision(
        "high" if types.name == "tf32" else "highest"
    )
    torch.set_float32_matmul_precision(kept)


@pytest.mark.parametrize(("gpu", "layer", "types"), list(products()))
def test_inductor_offers_what_coverage_says(
    gpu: str, layer: Layer, types: Kind, tf32: Any, cache_dir: Path, inductor_cache: Path
) -> None:
    product = problem(Shape(layer, 64), types, "tn", target(gpu))
    assert isinstance(product, Problem)
    if layer.groups and types.name == "fp16" and release() < (2, 15):
        pytest.skip("torch._grouped_mm takes float16 from torch 2.15 on")
    tf32(types)
    said = coverage.stock(product)
    assert bool(said.template) != bool(said.reason)
    wanted = {f"triton_{said.template}"} if said.template else set[str]()
    assert stocks(product, gpu, cache_dir) == wanted


@pytest.mark.parametrize("rows", [1, 4096])
@pytest.mark.parametrize("order", ["tn", "tt", "nn", "nt"])
@pytest.mark.parametrize("layer", [PLAIN, GROUPED], ids=lambda layer_: layer_.name)
def test_neither_the_rows_nor_the_order_matter(
    rows: int, order: str, layer: Layer, cache_dir: Path, inductor_cache: Path
) -> None:
    shape = Shape(layer, rows)
    if coverage.uncallable(shape, kind("bf16"), order, target("H200")) is not None:
        product = problem(shape, kind("bf16"), order, target("H200"))
        assert isinstance(product, Problem)
        with pytest.raises(RuntimeError, match="multiple of 16 bytes"):
            stocks(product, "H200", cache_dir)
        return
    product = problem(shape, kind("bf16"), order, target("H200"))
    assert isinstance(product, Problem)
    said = coverage.stock(product)
    assert stocks(product, "H200", cache_dir) == {f"triton_{said.template}"}


@pytest.mark.parametrize("gpu", ["H200", "B200"])
@pytest.mark.parametrize("order", ["tt", "nn"])
def test_a_scaled_product_in_another_order_is_none(
    gpu: str, order: str, cache_dir: Path, inductor_cache: Path
) -> None:
    shape = Shape(PLAIN, 64)
    assert coverage.uncallable(shape, kind("e4m3_row"), order, target(gpu)) is not None
    product = problem(shape, kind("e4m3_row"), order, target(gpu))
    assert isinstance(product, Problem)
    with pytest.raises(RuntimeError, match=r"must be (row|col)_major"):
        stocks(product, gpu, cache_dir)


def test_an_option_gives_blocks_their_template(cache_dir: Path, inductor_cache: Path) -> None:
    product = problem(Shape(PLAIN, 64), kind("e4m3_block"), "tn", target("H200"))
    assert isinstance(product, Problem)
    assert "triton.enable_persistent_tma_matmul" in coverage.stock(product).reason
    import torch._inductor.config as config

    with config.patch({"triton.enable_persistent_tma_matmul": True}):
        names = stocks(product, "H200", cache_dir)
    assert names == {"triton_scaled_mm_device_tma_main_loop_scaling"}
