"""Lowers `aten._weight_int4pack_mm` on a GPU to a call with choices; Inductor always calls ATen for it."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._inductor import ir, select_algorithm
from torch._inductor import lowering as inductor_lowering

from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.ops import int4

_OP: Any = torch.ops.aten._weight_int4pack_mm.default


def install() -> None:
    """Replace Inductor's lowering by the plugin's, which changes nothing outside the plugin's scope."""
    _library()  # code from Inductor's cache calls it by name
    if not installed():
        inductor_lowering.lowerings[_OP] = _lower


def uninstall() -> None:
    """Remove the plugin's lowering; Inductor creates its own again at the next call."""
    if installed():
        del inductor_lowering.lowerings[_OP]


def installed() -> bool:
    """Return True if the plugin's lowering is in place."""
    return inductor_lowering.lowerings.get(_OP) is _lower


def _lower(a: Any, b: Any, group: int, scales: Any) -> Any:
    external: Any = ir.ExternKernel
    nodes = [external.require_contiguous(external.realize_input(node)) for node in (a, b, scales)]
    if active_config() is None or a.get_device().type != "cuda" or len(b.get_size()) != 4:
        untyped: Any = inductor_lowering
        call = untyped.fallback_handler(_OP, add_to_fallback_set=False)
        return call(nodes[0], nodes[1], group, nodes[2])
    size = [a.get_size()[0], b.get_size()[0] * 8]
    layout = ir.FixedLayout(a.get_device(), a.get_dtype(), size)
    select: Any = select_algorithm
    choices = [_library().bind(nodes, layout, group=group)]
    result: Any = select.autotune_select_algorithm(int4.NAME, choices, nodes, layout)
    # torch 2.11 returns only the node, later versions a pair.
    node: Any = result if isinstance(result, ir.IRNode) else result[0]
    return node


@functools.cache
def _library() -> Any:
    """Return ATen's kernel as a choice; cached, because Inductor's names are global."""
    kernel: Any = select_algorithm.ExternKernelChoice
    return kernel(int4.weight_int4pack_mm, name=int4.NAME, has_out_variant=False)
