"""A template's Triton source as an Inductor choice, whose prologue and epilogue Inductor can fuse."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor import utils as inductor_utils
from torch._inductor.codegen.common import WorkspaceArg, WorkspaceZeroMode
from torch._inductor.kernel import mm_common
from torch._inductor.lowering import lowerings
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate
from torch._inductor.virtualized import V

from inductor_plugin.inductor.candidates.request import ZeroedRequest
from inductor_plugin.inductor.facts.compat import boxed
from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.template import Failed, TritonSource
from inductor_plugin.worker.devices.lookup import is_for_triton, is_nvidia

_Grid = tuple[Any, Any, Any]


# The arguments of a grid function: the extents of the result, with or without a batch, then the constants.


@SymbolicGridFn
def _tiles(*facts: Any, cdiv: Any) -> _Grid:
    return _count(facts, cdiv), 1, 1


@SymbolicGridFn
def _split_k(*facts: Any, cdiv: Any) -> _Grid:
    return _count(facts, cdiv), facts[-1]["SPLIT_K"], 1


@SymbolicGridFn
def _persistent(*facts: Any, cdiv: Any, min: Any) -> _Grid:  # noqa: A002  Inductor's name
    return min(facts[-1]["NUM_SMS"], _count(facts, cdiv)), 1, 1


def _count(facts: Sequence[Any], cdiv: Any) -> Any:
    """Return the number of tiles; all on the grid's first axis, since the others are limited to 65535."""
    *batch, m, n, meta = facts
    tiles = cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"])
    return batch[0] * tiles if batch else tiles


@SymbolicGridFn
def _rows(batch: Any, heads: Any, queries: Any, meta: Any, *, cdiv: Any) -> _Grid:
    return cdiv(queries, meta["BLOCK_M"]) * batch * heads * meta["SPLITS"], 1, 1


@SymbolicGridFn
def _tokens(ends: Any, heads: Any, tokens: Any, meta: Any, *, cdiv: Any) -> _Grid:
    return (cdiv(tokens, meta["BLOCK_M"]) + ends - 1) * heads, 1, 1


@SymbolicGridFn
def _rows_backward(
    batch: Any, heads: Any, queries: Any, kv_heads: Any, keys: Any, meta: Any, *, cdiv: Any
) -> _Grid:
    by_keys = cdiv(keys, meta["BLOCK_N1"]) * kv_heads
    return (by_keys + cdiv(queries, meta["BLOCK_M2"]) * heads) * batch, 1, 1


@SymbolicGridFn
def _tokens_backward(
    ends: Any, heads: Any, queries: Any, kv_heads: Any, keys: Any, meta: Any, *, cdiv: Any
) -> _Grid:
    by_keys = (cdiv(keys, meta["BLOCK_N1"]) + ends - 1) * kv_heads
    return by_keys + (cdiv(queries, meta["BLOCK_M2"]) + ends - 1) * heads, 1, 1


_PRODUCTS = ("tiles", "split_k", "persistent")
"""Grids of matrix products, for which Inductor has an option of backends."""
_GRIDS: dict[str, Any] = {
    "tiles": _tiles,
    "split_k": _split_k,
    "persistent": _persistent,
    "rows": _rows,
    "tokens": _tokens,
    "rows_backward": _rows_backward,
    "tokens_backward": _tokens_backward,
}


def triton_choice(source: TritonSource, nodes: Sequence[Any], layout: ir.Layout) -> Any | Failed:
    """Return the choice of a call for a Triton source, or why there is none.

    Args:
        source: The kernel.
        nodes: Inputs of the call, in Inductor's order.
        layout: Layout of the output.
    """
    reason = _why_not(source, nodes, layout)
    if reason is not None:
        return Failed(reason)
    constants: dict[str, Any] = dict(source.constants)
    if source.grid == "persistent":
        constants["NUM_SMS"] = _properties(layout.device).multi_processor_count
    extra, inputs = _epilogue(source, nodes, layout)
    if source.scratch_bytes:
        extra["workspace_arg"] = WorkspaceArg(
            count=source.scratch_bytes,  # pyright: ignore[reportArgumentType] - torch 2.11 takes no expression
            zero_mode=WorkspaceZeroMode.ZERO_ON_CALL,
            device=layout.device,
            outer_name=WorkspaceArg.unique_name(),
        )
    if source.mutated:
        extra["mutated_inputs"] = [inputs[i] for i in source.mutated]
    if source.extents:
        extra["call_sizes"] = [inputs[i].get_size()[dim] for i, dim in source.extents]
    choices: list[Any] = []
    error: Any = _template(source.name, source.text, source.grid).maybe_append_choice(
        choices,
        input_nodes=inputs,
        layout=layout,
        num_stages=source.num_stages,
        num_warps=source.num_warps,
        **extra,
        **constants,
    )
    if not choices:
        return Failed(str(error or "Inductor generated nothing"))
    if source.scratch_bytes:
        choices[0].bmreq.__class__ = ZeroedRequest
    return choices[0]


@lru_cache(maxsize=256)
def _template(name: str, text: str, grid: str) -> Any:
    """Return the Inductor template of a source; Inductor's names are global and never removed."""
    existing: dict[str, Any] = TritonTemplate.all_templates
    if name in existing:
        name = f"{name}_{hashlib.sha256(f'{grid} {text}'.encode()).hexdigest()[:8]}"
    if name in existing:
        return existing[name]
    return TritonTemplate(name, _GRIDS[grid], text, cache_codegen_enabled_for_template=True)


def _why_not(source: TritonSource, nodes: Sequence[Any], layout: ir.Layout) -> str | None:
    """Return why this device or graph cannot run the kernel, None if it can."""
    if not is_for_triton(device_text(layout.device)):
        return f"it is for devices that Triton compiles for; of {layout.device.type} nobody has said so"
    backends = [
        name.strip() for name in inductor_config.max_autotune_gemm_backends.upper().split(",")
    ]
    if "TRITON" not in backends and source.grid in _PRODUCTS:
        return f"max_autotune_gemm_backends is {inductor_config.max_autotune_gemm_backends}"
    have = _properties(layout.device).cc
    need = source.capability[0] * 10 + source.capability[1]
    if is_nvidia(device_text(layout.device)) and have < need:
        return f"it needs compute capability {need / 10}, the device has {have / 10}"
    if source.descriptors and not inductor_utils.can_use_tma(
        *(nodes[i] for i in source.descriptors)
    ):
        return (
            "Inductor finds an operand unfit for TMA (alignment known only at run time, or no TMA)"
        )
    return None


def _properties(device: torch.device) -> Any:
    return DeviceProperties.create(torch.device(device.type, device.index or 0))


def _epilogue(
    source: TritonSource, nodes: Sequence[Any], layout: ir.Layout
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Return the arguments with which Inductor generates the source's epilogue, and all operands."""
    if source.epilogue == "addmm":
        untyped: Any = mm_common
        added = untyped.addmm_epilogue(layout.dtype, source.alpha, source.beta)
        return {
            "prefix_args": 1,
            "epilogue_fn": added if source.beta else partial(_scaled, layout.dtype, source.alpha),
            "epilogue_fn_hash": f"addmm {layout.dtype} {source.alpha} {source.beta}",
        }, tuple(nodes)
    if source.epilogue == "bias":
        expand: Callable[..., Any] = lowerings[torch.ops.aten.expand.default]
        bias = ir.ExternKernel.realize_input(expand(boxed(nodes[-1]), [*layout.size]))
        added = {"suffix_args": 1, "epilogue_fn": _add, "epilogue_fn_hash": "add"}
        return added, (*nodes[:-1], bias)
    return {}, tuple(nodes)


def _scaled(dtype: torch.dtype, alpha: float, product: Any, _unread: Any) -> Any:
    """Return a product times ``alpha``: with ``beta=0`` torch does not read what is added, which may be NaN."""
    ops: Any = V.ops
    return product if alpha == 1 else ops.mul(product, ops.constant(alpha, dtype))


def _add(product: Any, bias: Any) -> Any:
    ops: Any = V.ops
    return ops.add(product, bias)
