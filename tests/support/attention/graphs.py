"""Graphs with one attention operator each, and Inductor's own code for them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false, reportCallIssue=false
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportDeprecated=false

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exc
from typing import Any
from unittest import mock

import torch
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from inductor_plugin.attention import library
from inductor_plugin.inductor.attention import lowering
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.lowering import Lab

ATEN: Any = torch.ops.aten
FMHA: Any = torch.ops.inductor_plugin
BF16 = torch.bfloat16
NARROW = torch.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    """Extents of one attention; ``dynamic`` makes the lengths symbols, except the one named ``known``.

    Tensors have the layout [B, S, H, D], with ``heads_first`` [B, H, S, D].
    """

    batch: int = 2
    heads: int = 8
    kv_heads: int = 8
    queries: int = 256
    keys: int = 256
    dim: int = 64
    dynamic: bool = False
    known: str = ""
    heads_first: bool = False

    def lengths(self, env: ShapeEnv) -> tuple[Any, Any]:
        """Return Sq and Sk, as symbols if ``dynamic``; one symbol if they agree."""
        if not self.dynamic:
            return self.queries, self.keys
        if self.known == "queries":
            return self.queries, symbol(env, "keys", self.keys)
        first = symbol(env, "queries", self.queries)
        if self.known == "keys":
            return first, self.keys
        same = self.queries == self.keys
        return first, first if same else symbol(env, "keys", self.keys)


def symbol(env: ShapeEnv, name: str, hint: int) -> Any:
    """Return an extent that is known only at run time."""
    source = ConstantSource(name)
    variable = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    return env.create_symintnode(variable, hint=hint, source=source)


@dataclass
class Graph:
    """A traced graph with its fake inputs."""

    module: torch.fx.GraphModule
    mode: FakeTensorMode
    tensors: list[Any]

    def lower(self, lab: Lab, **options: Any) -> str:
        """Return the code the plugin generates."""
        return lab.lower_graph(self.module, self.mode, self.tensors, **options)

    def stock(self) -> str:
        """Return the code Inductor generates."""
        codes: list[str] = []
        keep = staticmethod(codes.append)
        with (
            mock.patch.object(GraphLowering, "save_output_code", keep),
            inductor_config.patch({"fx_graph_cache": False, "max_autotune": True}),
            tracing(TracingContext(self.mode)),
            V.set_fake_mode(self.mode),
        ):
            compile_fx_inner(self.module, self.tensors)
        (code,) = codes
        return code


def traced(function: Callable[..., Any], make: Callable[[ShapeEnv], list[Any]]) -> Graph:
    """Return the graph of a function of fake tensors that ``make`` returns."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    with mode:
        tensors = make(env)
        module = make_fx(function, decomposition_table=select_decomp_table())(*tensors)
    return Graph(module, mode, tensors)


def qkv(shape: Shape, env: ShapeEnv, dtype: torch.dtype = BF16, device: str = "cuda") -> list[Any]:
    """Return q, k and v, [B, H, S, D], by default as most models have them in memory."""
    sq, sk = shape.lengths(env)
    sizes = ((sq, shape.heads), (sk, shape.kv_heads), (sk, shape.kv_heads))
    if shape.heads_first:
        return [
            torch.empty(shape.batch, h, n, shape.dim, dtype=dtype, device=device) for n, h in sizes
        ]
    return [
        torch.empty(shape.batch, n, h, shape.dim, dtype=dtype, device=device).transpose(1, 2)
        for n, h in sizes
    ]


def forward(
    kind: str,
    shape: Shape,
    *,
    causal: bool = True,
    bias: bool = False,
    keep: tuple[int, ...] = (0, 1),
) -> Graph:
    """Return the graph of a forward operator, of which the results ``keep`` are read."""

    def function(q: Any, k: Any, v: Any, *more: Any) -> Any:
        mask = more[0] if bias else None
        if kind == "flash":
            results = ATEN._scaled_dot_product_flash_attention.default(
                q, k, v, 0.0, causal, False, scale=0.125
            )
        elif kind == "efficient":
            results = ATEN._scaled_dot_product_efficient_attention.default(
                q, k, v, mask, 1 in keep, 0.0, causal, scale=0.125
            )
        else:
            results = ATEN._scaled_dot_product_cudnn_attention.default(
                q, k, v, mask, 1 in keep, 0.0, causal, False, scale=0.125
            )
        return tuple(results[i] for i in keep)

    def make(env: ShapeEnv) -> list[Any]:
        inputs = qkv(shape, env)
        if bias:
            sq, sk = (
                shape.lengths(env) if not shape.dynamic else (inputs[0].size(2), inputs[1].size(2))
            )
            inputs.append(torch.empty(shape.batch, shape.heads, sq, sk, dtype=BF16, device="cuda"))
        return inputs

    return traced(function, make)


def backward(
    kind: str, shape: Shape, *, causal: bool = True, keep: tuple[int, ...] = (0, 1, 2)
) -> Graph:
    """Return the graph of a gradient: of dq, dk and dv those that ``keep`` says are read."""

    def function(do: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *seeds: Any) -> Any:
        sizes = (q.size(2), k.size(2))
        if kind == "flash":
            results = ATEN._scaled_dot_product_flash_attention_backward.default(
                do, q, k, v, out, lse, None, None, *sizes, 0.0, causal, *seeds, scale=0.125
            )
        elif kind == "efficient":
            grad_mask = [True, True, True, False]
            results = ATEN._scaled_dot_product_efficient_attention_backward.default(
                do, q, k, v, None, out, lse, *seeds, 0.0, grad_mask, causal, scale=0.125
            )
        else:
            results = ATEN._scaled_dot_product_cudnn_attention_backward.default(
                do, q, k, v, out, lse, *seeds, None, None, None, *sizes, 0.0, causal, scale=0.125
            )
        return tuple(results[i] for i in keep)

    def make(env: ShapeEnv) -> list[Any]:
        q, k, v = qkv(shape, env)
        rows = q.size(2)
        lse = torch.empty(
            {
                "flash": (shape.batch, shape.heads, rows),
                "efficient": (shape.batch, shape.heads, (rows + 31) // 32 * 32),
                "cudnn": (shape.batch, shape.heads, rows, 1),
            }[kind],
            device="cuda",
        )
        wide = torch.uint64 if kind == "flash" else torch.int64
        first = torch.empty((2,) if kind == "flash" else (), dtype=wide, device="cuda")
        seeds = [first, torch.empty((), dtype=wide, device="cuda")]
        return [torch.empty_like(q), q, k, v, torch.empty_like(q), lse, *seeds]

    return traced(function, make)


def varlen(
    *,
    gradient: bool = False,
    window: tuple[int, int] = (-1, 0),
    keep: tuple[int, ...] = (0, 1),
    dynamic: bool = False,
    tokens: int = 1000,
    longest: tuple[int, int] = (400, 400),
    step: int = 1,
    **more_options: Any,
) -> Graph:
    """Return the graph of torch's varlen operator or its gradient: 4 sequences, none above 400.

    Where they begin lies ``step`` elements apart.
    """
    library.KERNELS["varlen"].load()
    ops: Any = torch.ops.torch_attn
    causal = window == (-1, 0)

    def function(q: Any, k: Any, v: Any, cu: Any, *more: Any) -> Any:
        if not gradient:
            packs = (cu, cu, *longest, causal, 0.125, list(window))
            results = ops._varlen_attn.default(q, k, v, *packs, **more_options)
            return tuple(results[i] for i in keep)
        do, out, lse, seed = more
        return ops._varlen_attn_backward.default(
            do, q, k, v, out, lse, cu, cu, *longest, causal, seed, 0.125, list(window)
        )

    def make(env: ShapeEnv) -> list[Any]:
        rows: Any = symbol(env, "tokens", tokens) if dynamic else tokens
        q, k, v = (torch.empty(rows, 8, 64, dtype=BF16, device="cuda") for _ in range(3))
        cu = torch.empty(5 * step, dtype=torch.int32, device="cuda")[::step]
        if not gradient:
            return [q, k, v, cu]
        lse = torch.empty(8, rows, device="cuda")
        seed = torch.empty(2, dtype=torch.uint64, device="cuda")
        return [q, k, v, cu, torch.empty_like(q), torch.empty_like(q), lse, seed]

    return traced(function, make)


def fmha(
    shape: Shape,
    *,
    gradient: bool = False,
    lse: bool = True,
    dtype: torch.dtype = BF16,
    **keywords: Any,
) -> Graph:
    """Return the graph of the plugin's own operator."""
    library.KERNELS["fmha"].load()

    def function(q: Any, k: Any, v: Any, *more: Any) -> Any:
        if gradient:
            do, out, rows = more
            return FMHA.fmha_backward.default(do, q, k, v, out, rows, **keywords)[:3]
        results = FMHA.fmha.default(q, k, v, return_lse=lse, **keywords)
        return results if lse else results[:1]

    def make(env: Any) -> list[Any]:
        q, k, v = qkv(shape, env, dtype)
        rows = torch.empty(shape.batch, shape.heads, q.size(2), device="cuda")
        return [q, k, v, *([torch.empty_like(q), torch.empty_like(q), rows] if gradient else [])]

    return traced(function, make)


def packed(
    *,
    gradient: bool,
    dynamic: bool = True,
    tokens: int = 1000,
    ends: int = 5,
    keys: int | None = None,
) -> Graph:
    """Return the graph of the plugin's own operator for sequences of which nothing is known.

    With ``keys`` there are as many tokens of keys, which begin elsewhere.
    """
    library.KERNELS["fmha"].load()
    mask = {"window_left": -1, "window_right": 0, "bottom_right": True}

    def function(q: Any, k: Any, v: Any, cu: Any, *more: Any) -> Any:
        packs = (cu, cu, None, None)
        if keys is not None:
            packs, more = (cu, more[0], None, None), more[1:]
        if gradient:
            do, out, rows = more
            return FMHA.fmha_backward.default(do, q, k, v, out, rows, None, None, *packs, **mask)[
                :3
            ]
        return FMHA.fmha.default(q, k, v, None, *packs, return_lse=True, **mask)

    def make(env: Any) -> list[Any]:
        rows: Any = symbol(env, "tokens", tokens) if dynamic else tokens
        count: Any = symbol(env, "ends", ends) if dynamic else ends
        others: Any = rows if keys is None else symbol(env, "keys", keys) if dynamic else keys
        q, k, v, do, out = (
            torch.empty(n, heads, 64, dtype=BF16, device="cuda")
            for n, heads in ((rows, 8), (others, 2), (others, 2), (rows, 8), (rows, 8))
        )
        cu, *cu_k = (
            torch.empty(count, dtype=torch.int32, device="cuda")
            for _ in range(1 if keys is None else 2)
        )
        more = [do, out, torch.empty(8, rows, device="cuda")]
        return [q, k, v, cu, *cu_k, *(more if gradient else [])]

    return traced(function, make)


def on_cpu(shape: Shape, *, gradient: bool) -> Graph:
    """Return the graph of a CPU's operator or its gradient."""
    name = "_scaled_dot_product_flash_attention_for_cpu"

    def function(q: Any, k: Any, v: Any, *more: Any) -> Any:
        if not gradient:
            return getattr(ATEN, name).default(q, k, v, 0.0, True, scale=0.125)
        do, out, lse = more
        op = getattr(ATEN, f"{name}_backward").default
        return op(do, q, k, v, out, lse, 0.0, True, scale=0.125)

    def make(env: ShapeEnv) -> list[Any]:
        q, k, v = qkv(shape, env, torch.float32, "cpu")
        lse = torch.empty(shape.batch, q.size(2), shape.heads).transpose(1, 2)
        return [q, k, v, *([torch.empty_like(q), torch.empty_like(q), lse] if gradient else [])]

    return traced(function, make)


def only(name: str) -> Callable[[BenchCandidate], float]:
    """Say that the candidates whose name begins so are ten times faster than all others."""

    def milliseconds(candidate: BenchCandidate) -> float:
        return 1.0 if re.match(f"{name}-", candidate.candidate_id) else 10.0

    return milliseconds


def lowered(graph: Graph, winner: str, cache_dir: Path, **options: Any) -> tuple[str, Lab]:
    """Return the code in which a candidate wins, and the lab.

    Raises:
        AssertionError: The plugin met something it did not expect and left the call to Inductor.
    """
    given_up: list[str] = []

    def record(*_: Any) -> None:
        given_up.append(format_exc())

    with (
        Lab(only(winner), cache_dir).open() as lab,
        mock.patch.object(lowering.logger, "exception", record),
    ):
        code = graph.lower(lab, **options)
    assert given_up == [], given_up[0]
    return code, lab


def outputs(code: str) -> list[str]:
    """Return what generated code returns, one text for each output."""
    (returned,) = re.findall(r"return \((.*)\)$", body(code), re.MULTILINE)
    return re.findall(r"reinterpret_tensor\(\w+, \(.*?\), \(.*?\), \d+\)|\w+", returned)


def allocated(code: str, buffer: str) -> str:
    """Return extents, strides and type of a buffer that generated code allocates."""
    (arguments,) = re.findall(rf"{buffer} = empty_strided_cuda\((.*)\)$", body(code), re.MULTILINE)
    return arguments


def calls(code: str) -> list[str]:
    """Return which attention operators generated code calls, without namespace and overload."""
    return re.findall(
        r"torch\.ops\.(?:aten|torch_attn)\.(_\w*attention\w*|_varlen\w*)\.default\(", code
    )


def body(code: str) -> str:
    """Return what runs: the generated function, without comments, and without the ranges of a profiler."""
    start = code.index("def call(")
    end = code.index("\nrunner = ", start)
    return "\n".join(
        line
        for line in code[start:end].splitlines()
        if not line.lstrip().startswith(("#", "if range_", "range_"))
    )
