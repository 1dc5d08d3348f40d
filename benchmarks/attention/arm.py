"""One arm of the attention benchmark: a process that computes attentions and answers requests.

    python -m benchmarks.attention.arm ARM CACHE_DIR [--dry]

As in `benchmarks.gemm.arm`. ``flash``, ``efficient`` and ``cudnn`` force one of torch's operators;
``stock`` is torch.compile (FlexAttention for a window, which SDPA does not support), ``ours`` the plugin.
Operands of 8 bits, which torch's operators do not accept, are cast to bfloat16 for all but ``ours``.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.attention.shapes import shape_of
from benchmarks.gemm.arm import Prepared, Tried, serve, ways
from benchmarks.harness.attention import Function, Shape, ends_of, error_of, operands, sdpa
from benchmarks.harness.attention import attention as plugin_attention
from benchmarks.harness.capture import capture_stream, graphed
from inductor_plugin.problem.attention import Mask
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import repeats_for, timer_for

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
DRY_LENGTH = 96
"""Longest sequence on a machine without a GPU."""
DRY_HEADS = 4


def main() -> int:
    """Answer requests until stdin ends."""
    functorch: Any = importlib.import_module("torch._functorch.config")
    functorch.donated_buffer = False  # a backward pass is measured many times
    return serve(prepare)


def prepare(
    arm: str, cache_dir: Path, request: Mapping[str, Any], *, dry: bool
) -> tuple[dict[str, Any], Prepared]:
    """Compile one attention and check its numbers; return what to report, and the attention."""
    shape = shape_of(request["shape"])
    shape = dried(shape) if dry else shape
    backward = bool(request["backward"])
    device = "cpu" if dry else "cuda:0"
    torch._dynamo.reset()
    q, k, v, do = operands(shape, device)
    inputs = [operand.requires_grad_(backward) for operand in (q, k, v)]
    tried = Tried()
    function = ways(arm, cache_dir, tried)(attention(arm, shape, device))
    timer = timer_for(device)
    timer.synchronize()

    def forward() -> object:
        return function(*inputs)

    with torch.set_grad_enabled(backward), capture_stream(device) as stream:
        started = time.perf_counter()
        out = function(*inputs)  # on this stream, or its backward could not be captured on it

        def gradient() -> Any:
            return torch.autograd.grad(out, inputs, do, retain_graph=True)

        gradients = gradient() if backward else ()
        timer.synchronize()
        first_call_s = time.perf_counter() - started
        error = error_of(shape, (q, k, v, do), out, gradients)
        call, captured = graphed(gradient if backward else forward, stream)
    sampling = Sampling(warmup=5, samples=1, min_sample_ms=2.0, max_total_s=5.0, cold_cache=True)
    report: dict[str, Any] = {
        "first_call_s": first_call_s,
        "error": error,
        "graph": captured,
        "tried": len(tried.times_ms),
    }
    report |= {"winner": tried.winner} if arm == "ours" else {}
    return report, Prepared(call, device, repeats_for(timer, call, sampling))


def attention(arm: str, shape: Shape, device: str) -> Function:
    """Return the function with which an arm computes an attention, not compiled.

    Raises:
        NotImplementedError: The arm does not support the attention.
    """
    if arm == "ours":
        return plugin_attention(shape, device)
    if shape.narrow:
        wide = attention(arm, replace(shape, narrow=False), device)
        return lambda q, k, v: wide(q.bfloat16(), k.bfloat16(), v.bfloat16())
    if arm in BACKENDS:
        return _forced(arm, shape, device)
    if shape.lengths:
        return _varlen(shape, device)
    return sdpa(shape) if shape.plain else _flex(shape, device)


def _forced(arm: str, shape: Shape, device: str) -> Function:
    """Return the call of one of torch's operators."""
    if arm == "flash" and (shape.lengths or shape.mask.left >= 0):
        return _flash(shape, device)
    gqa, causal = shape.heads != shape.kv_heads, shape.mask.right == 0
    if not shape.plain:
        if shape.lengths or shape.mask.left >= 0 or shape.queries != 1:
            raise NotImplementedError(f"{arm} cannot say it")
        causal = False  # one query that sees all keys

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(BACKENDS[arm]):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=gqa
            )

    return call


def _flash(shape: Shape, device: str) -> Function:
    """Return ATen's FlashAttention for windows and packed sequences."""
    ends = ends_of(shape, device) if shape.lengths else None
    longest = max(shape.lengths) if shape.lengths else 0
    causal = shape.mask.right == 0
    windows = {"window_size_left": shape.mask.left, "window_size_right": shape.mask.right}
    aten: Any = torch.ops.aten

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if ends is not None:
            sizes = (longest, longest, 0.0, causal, False)
            return aten._flash_attention_forward(q, k, v, ends, ends, *sizes)[0]
        by_token = [operand.transpose(1, 2) for operand in (q, k, v)]
        sizes = (q.shape[2], k.shape[2], 0.0, causal, False)
        out = aten._flash_attention_forward(*by_token, None, None, *sizes, **windows)[0]
        return out.transpose(1, 2)

    return call


def _varlen(shape: Shape, device: str) -> Function:
    """Return torch's call for packed sequences."""
    from torch.nn.attention import varlen

    ends, longest = ends_of(shape, device), max(shape.lengths)
    call: Any = varlen.varlen_attn
    keywords: dict[str, Any] = {"window_size": (-1, 0)}
    if shape.heads != shape.kv_heads:
        keywords["enable_gqa"] = True  # torch 2.14
    return lambda q, k, v: call(q, k, v, ends, ends, longest, longest, **keywords)


def _flex(shape: Shape, device: str) -> Function:
    """Return FlexAttention with a block mask, torch's way for all other masks."""
    from torch.nn.attention import flex_attention as flex

    mask: Mask = shape.mask
    shift = shape.keys - shape.queries if mask.bottom_right else 0

    def keeps(_batch: Any, _head: Any, i: Any, j: Any) -> Any:
        visible = j <= i + shift + mask.right if mask.right >= 0 else j >= 0
        return visible & (j >= i + shift - mask.left) if mask.left >= 0 else visible

    blocks = flex.create_block_mask(keeps, None, None, shape.queries, shape.keys, device=device)
    gqa = shape.heads != shape.kv_heads
    call: Any = flex.flex_attention
    return lambda q, k, v: call(q, k, v, block_mask=blocks, enable_gqa=gqa)


def dried(shape: Shape) -> Shape:
    """Return the attention with sizes for a CPU."""
    heads = min(shape.heads, DRY_HEADS)
    return replace(
        shape,
        batch=min(shape.batch, 2) if not shape.lengths else shape.batch,
        heads=heads,
        kv_heads=heads if shape.kv_heads == shape.heads else max(1, heads // 4),
        queries=min(shape.queries, DRY_LENGTH),
        keys=min(shape.keys, DRY_LENGTH),
        lengths=tuple(min(length, DRY_LENGTH) for length in shape.lengths),
    )


if __name__ == "__main__":
    sys.exit(main())
