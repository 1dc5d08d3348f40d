"""Products and epilogues that Inductor lowers and Triton compiles, alone and fused, for a simulated GPU.

The list of choices of a product is cut to one kernel, so that Inductor fuses without a benchmark; the
epilogue is read from Inductor's loops.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeStubs=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional

from inductor_plugin.inductor.candidates.triton import triton_choice
from inductor_plugin.inductor.fusion.epilogue import base_of, epilogue_of_bodies
from inductor_plugin.kernels.cuobjdump import parse_ptxas
from inductor_plugin.kernels.resources import KernelResources
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Candidate, Failed, TritonSource
from inductor_plugin.templates.triton import persistent_tma, split_k
from inductor_plugin.templates.triton.order import TritonTile
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support.triton import interpreter, lowering

BF16, F32 = torch.bfloat16, torch.float32
SIZE = 2048
"""M, N and K: multiples of all tiles."""

Operand = tuple[tuple[int, ...], torch.dtype]
Function = Callable[..., tuple[torch.Tensor, ...]]
Fused = tuple[Function, tuple[Operand, ...]]
"""An epilogue: a function of the product and of its operands, and those operands."""
ALONE: Fused = ((lambda p: (p,)), ())


def full(dtype: torch.dtype = BF16) -> Operand:
    """Return an operand as large as the product."""
    return (SIZE, SIZE), dtype


def row(dtype: torch.dtype = BF16) -> Operand:
    """Return an operand with one element for each column."""
    return (SIZE,), dtype


def column(dtype: torch.dtype = BF16) -> Operand:
    """Return an operand with one element for each row."""
    return (SIZE, 1), dtype


def scalar() -> Operand:
    """Return an operand of one number."""
    return (1, 1), F32


def _normalized(p: Any, mean: Any, scale: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, ...]:
    return ((p - mean) * scale * weight + bias,)


def _swiglu_gradient(p: Any, gate: Any, up: Any) -> tuple[torch.Tensor, ...]:
    sigmoid = torch.sigmoid(gate)
    return p * up * (sigmoid * (1 + gate * (1 - sigmoid))), p * functional.silu(gate)


def _transcendental(p: Any) -> tuple[torch.Tensor, ...]:
    wave = torch.exp(torch.sin(p)) * torch.log1p(p.abs())
    return (torch.tanh(wave) + torch.erf(p) * torch.rsqrt(p * p + 1),)


EPILOGUES: dict[str, Fused] = {
    "relu": (lambda p: (torch.relu(p),), ()),
    "scale, bias, relu": (lambda p, s, b: (torch.relu(p * s + b),), (row(), row())),
    "gelu": (lambda p: (functional.gelu(p),), ()),
    "gelu tanh": (lambda p: (functional.gelu(p, approximate="tanh"),), ()),
    "silu * gate": (lambda p, g: (functional.silu(p) * g,), (full(),)),
    "relu + residual": (lambda p, r: (torch.relu(p) + r,), (full(),)),
    "scale, bias, gelu, residual": (
        lambda p, s, b, r: (functional.gelu(p * s + b) + r,),
        (row(), row(), full()),
    ),
    "to fp8": (
        lambda p, s: ((p * s).clamp(-57344, 57344).to(torch.float8_e5m2),),
        (scalar(),),
    ),
    "to int8": (
        lambda p, s: ((p * s).round().clamp(-128, 127).to(torch.int8),),
        (row(F32),),
    ),
    "3 operands": (lambda p, c, d, e: (p * c + d * e,), (full(),) * 3),
    "6 operands": (
        lambda p, c, d, e, f, g, h: ((p * c + d) * (e * f + g * h),),
        (full(),) * 6,
    ),
    "scalars": (lambda p: (((p * 2 + 1) * 0.5 - 3).clamp(-6, 6) / 6,), ()),
    "row and column": (lambda p, r, c: (p * r * c,), (row(F32), column(F32))),
    "normalized": (_normalized, (column(F32), column(F32), row(), row())),
    "mask": (lambda p, m: (torch.where(m, p, -1e4),), (full(torch.bool),)),
    "soft cap": (lambda p: (torch.tanh(p / 30) * 30,), ()),
    "mish": (lambda p: (functional.mish(p),), ()),
    "transcendental": (_transcendental, ()),
    "to float32": (lambda p: (p.float() * 1.5,), ()),
    "scaled, and gelu of it": (lambda p: ((q := p * 2), functional.gelu(q)), ()),
    "product, and relu": (lambda p: (p, torch.relu(p)), ()),
    "three outputs": (lambda p, r: (torch.relu(p), torch.sigmoid(p), p + r * 2), (full(),)),
    "gelu's gradient": (
        lambda p, x: (torch.ops.aten.gelu_backward(p, x),),
        (full(),),
    ),
    "SwiGLU's gradient": (_swiglu_gradient, (full(), full())),
}
"""The epilogues, by name."""


@dataclass(frozen=True)
class Facts:
    """A kernel of one template, and its tiling of the product.

    Attributes:
        template: ``mm`` for Inductor's own, or the name of one of ours.
        tile: (m, n, k).
        stages: Steps along K in flight.
        warps: Warps of a block.
        flat: Whether the loops of a persistent kernel are flattened, with separate memory for the
            result's tile.
        parts: Parts of K in split-K.
        calibration: Whether the model's constants were fitted to it; the others are held out.
        operands: Dtype of A, B and the product; float32 is multiplied as TF32.
    """

    template: str
    tile: tuple[int, int, int]
    stages: int
    warps: int
    flat: bool = False
    parts: int = 1
    calibration: bool = True
    operands: torch.dtype = BF16

    @property
    def name(self) -> str:
        """Name of the kernel in tables."""
        m, n, k = self.tile
        kind = " flat" if self.flat else f" 1/{self.parts}" if self.parts > 1 else ""
        kind += " float32" if self.operands == F32 else ""
        return f"{self.template} {m}x{n}x{k} s{self.stages} w{self.warps}{kind}"

    @property
    def persistent(self) -> bool:
        """Whether a block computes several tiles."""
        return self.template == TMA


MM, TMA = "mm", "triton_persistent_tma"
SPLIT = Facts("triton_split_k", (64, 64, 64), 4, 4, parts=4)
KERNELS: dict[str, tuple[Facts, ...]] = {
    "A100": (
        Facts(MM, (128, 128, 64), 3, 8),
        Facts(MM, (128, 256, 64), 3, 8),
        Facts(MM, (64, 64, 64), 3, 4),
        SPLIT,
        Facts(MM, (64, 128, 32), 4, 8, calibration=False),
    ),
    "H200": (
        Facts(MM, (64, 128, 64), 3, 4),
        Facts(MM, (128, 256, 64), 3, 8),
        Facts(TMA, (128, 128, 64), 3, 8, flat=True),
        Facts(TMA, (64, 128, 64), 4, 4, flat=True),
        SPLIT,
        Facts(TMA, (128, 256, 64), 3, 8, calibration=False),
        Facts(TMA, (128, 128, 64), 4, 8, calibration=False),
        Facts(MM, (128, 128, 32), 3, 4, calibration=False),
    ),
}
"""Kernels that are compiled for each GPU."""


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel.

    Attributes:
        taken: Resources reported by ptxas, with its shared memory.
        epilogue: The epilogue fused into it; None for none.
    """

    taken: KernelResources
    epilogue: Epilogue | None


def compiled(facts: Facts, name: str | None, gpu: Target) -> Compiled:
    """Compile a kernel with an epilogue, or alone; call it within `as_target`.

    Args:
        facts: The kernel.
        name: The epilogue in `EPILOGUES`; None for none.
        gpu: The GPU it is compiled for.
    """
    return compiled_with(facts, EPILOGUES[name] if name else ALONE, gpu)


def compiled_with(facts: Facts, epilogue: Fused, gpu: Target) -> Compiled:
    """Compile a kernel with any epilogue, as `compiled` does."""
    function, operands = epilogue
    code, epilogues = _lowered(facts, function, operands, gpu)
    sources = re.findall(r"async_compile\.triton\('\w+', '''(.*?)'''", code, re.DOTALL)
    if len(sources) != 1:
        raise RuntimeError(f"{facts.name}: {len(sources)} kernels, the epilogue was not fused")
    arch = gpu.capability[0] * 10 + gpu.capability[1]
    usage = interpreter.compiled(sources[0], arch)
    (resources,) = parse_ptxas(usage.log)
    resources = replace(resources, dynamic_shared_bytes=usage.shared, threads=32 * facts.warps)
    return Compiled(resources, epilogues[0] if epilogues else None)


def _lowered(
    facts: Facts, function: Function, operands: Sequence[Operand], gpu: Target
) -> tuple[str, list[Epilogue]]:
    """Return the generated code of a product and its epilogue, and the fused epilogue."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        sizes = [full(facts.operands), full(facts.operands), *operands]
        tensors = [torch.empty(size, dtype=dtype, device="cuda:0") for size, dtype in sizes]
        graph = make_fx(
            lambda a, b, *others: function(torch.mm(a, b), *others),
            decomposition_table=select_decomp_table(),
        )(*tensors)
    codes: list[str] = []
    epilogues: list[Epilogue] = []
    with ExitStack() as stack:
        for seam in _seams(facts, gpu, codes, epilogues):
            stack.enter_context(seam)
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(V.set_fake_mode(mode))
        compile_fx_inner(graph, tensors)
    (code,) = codes
    return code, epilogues


def _seams(facts: Facts, gpu: Target, codes: list[str], fused: list[Epilogue]) -> Iterator[Any]:
    """Yield the patches of Inductor that are active while it lowers."""
    cache: Any = select_algorithm.AlgorithmSelectorCache
    select, generate = cache.__call__, SIMDScheduling.codegen_template

    def one_choice(self: Any, name: str, _: Any, nodes: Any, layout: Any, *a: Any, **k: Any) -> Any:
        return select(self, name, [_choice(facts, nodes, layout, gpu)], nodes, layout, *a, **k)

    def recorded(self: Any, node: Any, epilogues: Any, *others: Any, **facts: Any) -> Any:
        if epilogues and not fused:
            fused.append(_epilogue(node, epilogues))
        return generate(self, node, epilogues, *others, **facts)

    # Inductor would compile the kernel as well, although it is never called.
    yield mock.patch.object(AsyncCompile, "triton", staticmethod(_uncompiled))
    yield mock.patch.object(GraphLowering, "save_output_code", staticmethod(codes.append))
    yield mock.patch.object(cache, "__call__", one_choice)
    yield mock.patch.object(SIMDScheduling, "codegen_template", recorded)
    yield inductor_config.patch({"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"})


def _uncompiled(*_: Any, **__: Any) -> None: ...


def _epilogue(node: Any, epilogues: Sequence[Any]) -> Epilogue:
    nodes = [part for epilogue in epilogues for part in epilogue.get_nodes()]
    names = {part.get_name() for part in nodes}

    def readers(buffer: Any) -> int:
        return sum(user.get_name() not in names for user in buffer.users)

    outputs = {buffer.get_name(): buffer for part in nodes for buffer in part.get_outputs()}
    return epilogue_of_bodies(
        base_of(node.node),
        [part._body for part in nodes],
        lambda name: readers(outputs[name]) > 0,
        readers=sum(readers(buffer) for buffer in node.get_outputs()),
    )


def _choice(facts: Facts, nodes: Sequence[Any], layout: Any, gpu: Target) -> Any:
    """Return the only kernel to choose from."""
    m, n, k = facts.tile
    if facts.template == "mm":
        return _stock(facts, nodes, layout)
    product = product_of(replace(lowering.problem(SIZE, SIZE, SIZE), target=gpu))
    assert isinstance(product, Product)
    make: Callable[[Product, TritonTile], Candidate] = (
        persistent_tma.candidate if facts.persistent else split_k.candidate
    )
    tile = TritonTile(m, n, k, facts.stages, facts.warps, facts.parts, flat=facts.flat)
    kernel = make(product, tile).kernel
    assert isinstance(kernel, TritonSource)
    choice = triton_choice(kernel, nodes, layout)
    if isinstance(choice, Failed):
        raise TypeError(f"{facts.name}: {choice.reason}")
    return choice


def _stock(facts: Facts, nodes: Sequence[Any], layout: Any) -> Any:
    """Return a kernel of Inductor's own template."""
    m, n, k = facts.tile
    choices: list[Any] = []
    error = select_algorithm.TritonTemplate.all_templates["mm"].maybe_append_choice(
        choices,
        input_nodes=tuple(nodes),
        layout=layout,
        num_stages=facts.stages,
        num_warps=facts.warps,
        BLOCK_M=m,
        BLOCK_N=n,
        BLOCK_K=k,
        GROUP_M=8,
        EVEN_K=True,
        ALLOW_TF32=facts.operands == F32,
        USE_FAST_ACCUM=False,
        ACC_TYPE="tl.float32",
    )
    if not choices:
        raise TypeError(f"{facts.name}: {error}")
    return choices[0]
