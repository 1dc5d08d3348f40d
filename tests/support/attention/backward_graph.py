"""Lowers a graph whose one operator is the gradients of an attention, computed by our kernel.

Nothing is measured and there is no other candidate: the result is Inductor's wrapper around the kernel.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import empty_strided, register_lowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from inductor_plugin.inductor.candidates.triton import triton_choice
from inductor_plugin.inductor.facts.problem import problem_of
from inductor_plugin.problem.attention import BACKWARD, Mask, arguments
from inductor_plugin.template import Candidate, Failed, TritonSource
from inductor_plugin.templates.triton_attention.backward import TritonAttentionBackward
from tests.support.attention.backward_cases import Case

Pick = Callable[[Sequence[Candidate]], Candidate]
_ALWAYS = ("do", "q", "k", "v", "out", "lse", "delta")
_LIBRARY = torch.library.Library("attention_backward_graph", "DEF")
_LIBRARY.define(
    "gradients(Tensor do, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor delta,"
    " Tensor? bias, Tensor? cu_q, Tensor? cu_k, float scale, int left, int right,"
    " bool bottom_right, float softcap) -> (Tensor, Tensor, Tensor)"
)
_OP: Any = torch.ops.attention_backward_graph.gradients.default


def _fake(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Any:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (k, q, v))


_register: Any = torch.library.register_fake
_register("attention_backward_graph::gradients", _fake, lib=_LIBRARY)


@contextmanager
def lowered_by(pick: Pick) -> Generator[None]:
    """Lower the operator by the candidate that ``pick`` takes, within the block."""

    def lower(*args: Any) -> Any:
        *tensors, scale, left, right, bottom_right, softcap = args
        names = (*_ALWAYS, "bias", "cu_q", "cu_k")
        present = {n: x for n, x in zip(names, tensors, strict=True) if x is not None}
        q, k, v = (present[name] for name in "qkv")
        for name, like in (("dq", q), ("dv", v)):
            present[name] = empty_strided(
                like.get_size(), None, dtype=like.get_dtype(), device=like.get_device()
            )
        nodes: list[Any] = [ir.ExternKernel.realize_input(x) for x in present.values()]
        size = k.get_size()
        layout = ir.FixedLayout(
            k.get_device(), k.get_dtype(), size, ir.FlexibleLayout.contiguous_strides(size)
        )
        keywords = arguments(
            scale=scale,
            mask=Mask(left, right, bottom_right),
            softcap=softcap,
            operands=tuple(present),
        )
        texts = tuple((name, repr(value)) for name, value in sorted(keywords.items()))
        problem = problem_of(BACKWARD, nodes, layout, texts)
        template = TritonAttentionBackward()
        assert template.reject(problem) is None
        kernel = pick(template.candidates(problem)).kernel
        assert isinstance(kernel, TritonSource)
        choice = triton_choice(kernel, nodes, layout)
        assert not isinstance(choice, Failed), choice.reason
        return choice.output_node(), present["dq"], present["dv"]

    from torch._inductor import lowering

    with mock.patch.dict(lowering.lowerings):
        register_lowering(_OP, type_promotion_kind=None)(lower)
        yield


def code_of(
    case: Case,
    operands: dict[str, Tensor],
    after: Callable[[Any], Any] | None = None,
    unknown: Sequence[int] = (),
    pick: Pick = lambda candidates: candidates[0],
) -> str:
    """Return the code that would run; it takes the operands but dq and dv, which are its own.

    Args:
        case: The attention.
        operands: Its operands.
        after: What the graph does with dk.
        unknown: Sizes of its operands that are known only at run time; these are but an example.
        pick: Takes the candidate.
    """
    inputs = {name: x for name, x in operands.items() if name not in ("dq", "dv")}
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    mask = case.mask

    def graph(*tensors: Any) -> Any:
        by_name = dict(zip(inputs, tensors, strict=True))
        more = [by_name.get(name) for name in ("bias", "cu_q", "cu_k")]
        facts = (case.factor, mask.left, mask.right, mask.bottom_right, case.softcap)
        dk, dq, dv = _OP(*(by_name[name] for name in _ALWAYS), *more, *facts)
        return after(dk) if after else dk, dq, dv

    with mode:
        symbols = _symbols(mode, unknown)
        fakes = [_fake_of(x, symbols) for x in inputs.values()]
        traced = make_fx(graph, decomposition_table=select_decomp_table())(*fakes)
    codes: list[str] = []
    with (
        mock.patch.object(GraphLowering, "save_output_code", staticmethod(codes.append)),
        inductor_config.patch({"max_autotune": True, "fx_graph_cache": False}),
        tracing(TracingContext(mode)),
        V.set_fake_mode(mode),
        lowered_by(pick),
    ):
        compile_fx_inner(traced, fakes)
    (code,) = codes
    return code


def _symbols(mode: FakeTensorMode, sizes: Sequence[int]) -> dict[int, Any]:
    """Return a symbol for each of these sizes."""
    shapes = mode.shape_env
    assert shapes is not None
    by_size: dict[int, Any] = {}
    for number, size in enumerate(sizes):
        source = ConstantSource(f"size{number}")
        symbol = shapes.create_symbol(size, source, dynamic_dim=DimDynamic.DYNAMIC)
        by_size[size] = shapes.create_symintnode(symbol, hint=size, source=source)
    return by_size


def _fake_of(tensor: Tensor, symbols: dict[int, Any]) -> Tensor:
    """Return a tensor of a GPU that is not there; with symbolic sizes it has no gaps."""
    size = [symbols.get(size, size) for size in tensor.shape]
    facts: dict[str, Any] = {"dtype": tensor.dtype, "device": "cuda:0"}
    if not symbols:
        return torch.empty_strided(size, tensor.stride(), **facts)
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    packed = torch.empty([size[dim] for dim in order], **facts)
    return packed.permute([order.index(dim) for dim in range(tensor.dim())])
