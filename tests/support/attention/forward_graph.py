"""Lowers a graph whose one operator is an attention, computed by one of our kernels.

Nothing is measured and there is no other candidate: the result is Inductor's wrapper around the kernel.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import empty_strided, lowerings, register_lowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from inductor_plugin.inductor.candidates.triton import triton_choice
from inductor_plugin.inductor.facts.problem import problem_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import FORWARD, Mask, arguments
from inductor_plugin.template import Candidate, Failed, TritonSource
from tests.support.attention.backward_cases import Case

Pick = Callable[[Problem], Candidate]
_OPTIONAL = ("bias", "cu_q", "cu_k")
_LIBRARY = torch.library.Library("attention_graph", "DEF")
_LIBRARY.define(
    "forward(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? cu_q, Tensor? cu_k, float scale,"
    " int left, int right, bool bottom_right, float softcap) -> (Tensor, Tensor)"
)
OP: Any = torch.ops.attention_graph.forward.default
"""The operator that `lowered_by` lowers; it has no other implementation."""


def _fake(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    rows = (q.size(1), q.size(0)) if q.dim() == 3 else q.shape[:-1]
    out = q.new_empty((*q.shape[:-1], v.size(-1)))
    return out, q.new_empty(rows, dtype=torch.float32)


torch.library.register_fake("attention_graph::forward", _fake, lib=_LIBRARY)


def code_of(
    case: Case,
    operands: Mapping[str, Tensor],
    pick: Pick,
    *,
    unknown: Mapping[int, int] | None = None,
    after: Callable[[Tensor], Tensor] = lambda out: out,
) -> str:
    """Return the code that would run for an attention, which returns out and lse.

    Args:
        case: The attention.
        operands: Its operands without lse.
        pick: Returns the kernel for its problem.
        unknown: Sizes known only at run time, and which they have when the graph is lowered.
        after: What the graph does with out.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    mask = case.mask

    def graph(*tensors: Any) -> Any:
        present = dict(zip(operands, tensors, strict=True))
        more = [present.get(name) for name in _OPTIONAL]
        facts = (case.factor, mask.left, mask.right, mask.bottom_right, case.softcap)
        out, lse = OP(present["q"], present["k"], present["v"], *more, *facts)
        return after(out), lse

    with mode:
        symbols = _symbols(mode, unknown or {})
        fakes = [_fake_of(x, symbols) for x in operands.values()]
        traced = make_fx(graph)(*fakes)
    codes: list[str] = []
    with ExitStack() as stack:
        keep = staticmethod(codes.append)
        stack.enter_context(mock.patch.object(GraphLowering, "save_output_code", keep))
        settings = {"max_autotune": True, "fx_graph_cache": False}
        stack.enter_context(inductor_config.patch(settings))
        stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(V.set_fake_mode(mode))
        stack.enter_context(lowered_by(pick))
        compile_fx_inner(traced, fakes)
    (code,) = codes
    return code


@contextmanager
def lowered_by(pick: Pick) -> Generator[None, None, None]:
    """Lower the operator by the kernel that ``pick`` returns, within the block."""

    def lower(*args: Any) -> Any:
        *tensors, scale, left, right, bottom_right, softcap = args
        names = ("q", "k", "v", *_OPTIONAL)
        present = {n: x for n, x in zip(names, tensors, strict=True) if x is not None}
        size = present["q"].get_size()
        rows = [size[1], size[0]] if len(size) == 3 else size[:-1]
        present["lse"] = empty_strided(
            rows, None, dtype=torch.float32, device=present["q"].get_device()
        )
        nodes: list[Any] = [ir.ExternKernel.realize_input(x) for x in present.values()]
        layout = _layout_of(present["q"], [*size[:-1], present["v"].get_size()[-1]])
        keywords = arguments(
            scale=scale,
            mask=Mask(left, right, bottom_right),
            softcap=softcap,
            operands=tuple(present),
        )
        texts = tuple((name, repr(value)) for name, value in sorted(keywords.items()))
        kernel = pick(problem_of(FORWARD, nodes, layout, texts)).kernel
        assert isinstance(kernel, TritonSource)
        choice = triton_choice(kernel, nodes, layout)
        assert not isinstance(choice, Failed), choice.reason
        return choice.output_node(), present["lse"]

    with mock.patch.dict(lowerings):
        register_lowering(OP, type_promotion_kind=None)(lower)
        yield


def _layout_of(q: Any, size: list[Any]) -> ir.FixedLayout:
    strides = ir.FlexibleLayout.contiguous_strides(size)
    return ir.FixedLayout(q.get_device(), q.get_dtype(), size, strides)


def _symbols(mode: FakeTensorMode, sizes: Mapping[int, int]) -> dict[int, Any]:
    """Return a symbol for each of these sizes."""
    shapes = mode.shape_env
    assert shapes is not None
    by_size: dict[int, Any] = {}
    for size, hint in sizes.items():
        source = ConstantSource(f"size{size}")
        symbol = shapes.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC)
        by_size[size] = shapes.create_symintnode(symbol, hint=hint, source=source)
    return by_size


def _fake_of(tensor: Tensor, symbols: Mapping[int, Any]) -> Tensor:
    """Return a tensor of a GPU that is not there; with symbolic sizes it has no gaps."""
    size = [symbols.get(size, size) for size in tensor.shape]
    facts: dict[str, Any] = {"dtype": tensor.dtype, "device": "cuda:0"}
    if not symbols:
        return torch.empty_strided(size, tensor.stride(), **facts)
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    packed = torch.empty([size[dim] for dim in order], **facts)
    return packed.permute([order.index(dim) for dim in range(tensor.dim())])
