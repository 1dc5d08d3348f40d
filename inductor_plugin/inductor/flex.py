"""FlexAttention's configurations: Inductor's list, pruned and extended by `cost.flex`.

Inductor gets them from ``V.choices``, without passing the call. So its lowering runs under a handler
that knows the call and wraps the current handler: the user's own handler is called first, and
answers everything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import lowering as inductor_lowering
from torch._inductor import utils as inductor_utils
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from inductor_plugin.cost.flex import FlexCall, FlexPlan, descriptors, plan, single
from inductor_plugin.cost.flex_table import Direction, Tile
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.target import Target
from inductor_plugin.tuning.environment import float32_precision

logger = logging.getLogger(__name__)

_MODULE = "torch._inductor.kernel.flex.flex_attention"
_OPS: dict[str, Any] = {
    "forward": torch.ops.higher_order.flex_attention,
    "backward": torch.ops.higher_order.flex_attention_backward,
}
_BLOCKS: dict[Direction, tuple[str, ...]] = {
    "forward": ("block_m", "block_n"),
    "backward": ("block_m1", "block_n1", "block_m2", "block_n2"),
    "decode": ("block_n",),
}
_METHODS: dict[Direction, str] = {
    "forward": "get_flex_attention_fwd_configs",
    "backward": "get_flex_attention_bwd_configs",
    "decode": "get_flex_decode_configs",
}
_ORIGINALS: dict[str, Callable[..., Any]] = {}


def install() -> None:
    """Wrap Inductor's lowerings by the plugin's, which change nothing outside the plugin's scope."""
    importlib.import_module(_MODULE)  # registers Inductor's lowerings
    for way, op in _OPS.items():
        stock = inductor_lowering.lowerings.get(op)
        if stock is not None and not _is_ours(stock):
            _ORIGINALS[way] = stock
            inductor_lowering.lowerings[op] = _around(way, stock)


def uninstall() -> None:
    """Restore Inductor's lowerings, unless they have been replaced again since."""
    for way, stock in [*_ORIGINALS.items()]:
        if _is_ours(inductor_lowering.lowerings.get(_OPS[way])):
            inductor_lowering.lowerings[_OPS[way]] = stock
        del _ORIGINALS[way]


def _is_ours(lowering: Any) -> bool:
    return getattr(lowering, "around_flex", False)


def _around(way: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that runs Inductor's with the plugin's configurations."""

    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        if active_config() is None or args[0].get_device().type != "cuda" or torch.version.hip:
            return stock(*args, **kwargs)
        with V.set_choices_handler(_handler(way, args)):
            return stock(*args, **kwargs)

    lower.around_flex = True  # type: ignore[attr-defined]
    return lower


def _handler(way: str, args: Sequence[Any]) -> Any:
    """Return the handler for a call: the plugin's, or the current one if the call cannot be read."""
    handler: Any = V.choices
    try:
        return FlexChoices(handler, way, args)
    except Exception:  # the border where Inductor calls us: its own configurations are used
        logger.exception(
            "inductor-plugin: a FlexAttention call could not be read; Inductor decides"
        )
        return handler


class FlexChoices:
    """A choices handler for one FlexAttention call, which wraps another handler."""

    def __init__(self, inner: Any, way: str, args: Sequence[Any]) -> None:
        """Read the call.

        Args:
            inner: The current handler.
            way: ``forward`` or ``backward``.
            args: Arguments of Inductor's lowering.
        """
        mask, options = (args[9], args[11]) if way == "backward" else (args[4], args[6])
        q, k, v = args[:3]
        self._inner = inner
        self._prefix = "bwd_" if way == "backward" else "fwd_"
        self._options: dict[str, Any] = dict(options)
        self._target: Target | None = target_of(q.get_device())
        heads, queries, head_dim, kv_heads, value_dim, q_block, kv_block = compat.hints(
            [*q.get_size()[1:4], k.get_size()[1], v.get_size()[-1], *mask[-3:-1]]
        )
        rows = max(16, 1 << (queries * (heads // kv_heads) - 1).bit_length())
        dtype = q.get_dtype()
        self._call = FlexCall(
            direction="backward" if way == "backward" else "forward",
            head_dim=head_dim,
            value_dim=value_dim,
            dtype=dtype_name(dtype),
            q_block=q_block,
            kv_block=kv_block,
            rows=rows,
            exact=dtype == torch.float32 and self._exact(),
        )

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the other handler."""
        return getattr(self._inner, name)

    def get_flex_attention_fwd_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the forward configurations; torch 2.11 and 2.13 do not pass the length."""
        return self._configs("forward", args, kwargs)

    def get_flex_attention_bwd_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the backward configurations."""
        return self._configs("backward", args, kwargs)

    def get_flex_decode_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the configurations for few queries."""
        return self._configs("decode", args, kwargs)

    def append_flex_attention_choices(self, choices: list[Any], *args: Any) -> list[Any]:
        """Add the forward kernels that read through descriptors; called since torch 2.14."""
        choices = self._inner.append_flex_attention_choices(choices, *args)
        return self._with_descriptors("forward", choices, args, mutated=args[1][3:5])

    def append_flex_attention_backward_choices(
        self, choices: list[Any], *args: Any, mutated_inputs: list[Any]
    ) -> list[Any]:
        """Add the backward kernels that read through descriptors; called since torch 2.15."""
        choices = self._inner.append_flex_attention_backward_choices(
            choices, *args, mutated_inputs=mutated_inputs
        )
        return self._with_descriptors("backward", choices, args, mutated=mutated_inputs)

    def _configs(self, direction: Direction, args: Any, kwargs: Any) -> list[Any]:
        """Return the configurations of the other handler, pruned and extended."""
        method = _METHODS[direction]
        offered: list[Any] = getattr(self._inner, method)(*args, **kwargs)
        try:
            return self._planned(direction, offered, args, kwargs)
        except Exception:  # as in `_handler`
            logger.exception("inductor-plugin: FlexAttention's configurations stay Inductor's")
            return offered

    def _planned(self, direction: Direction, offered: list[Any], args: Any, kwargs: Any) -> Any:
        pinned = self._pinned(direction)
        if pinned:
            logger.debug("flex %s: the call sets %s itself", direction, ", ".join(pinned))
            return offered
        call = dataclasses.replace(self._call, direction=direction)
        tiles = [_tile(direction, config) for config in offered]
        if not inductor_config.max_autotune and len(offered) == 1:
            chosen = single(call, tiles[0], self._target)
        else:
            chosen = plan(
                call,
                tiles,
                self._default(direction, args, kwargs) or tiles[-1],
                self._target,
                more=self._is_stock(direction, offered, args, kwargs),
            )
        _log(call, chosen)
        by_tile = dict(zip(tiles, offered, strict=True))
        return [
            by_tile.get(tile) or _config(direction, tile, offered[0]) for tile in chosen.tiles
        ] or offered

    def _default(self, direction: Direction, args: Any, kwargs: Any) -> Tile | None:
        """Return Inductor's configuration without tuning; None if the handler returns several."""
        untyped: Any = inductor_config
        with untyped.patch(max_autotune=False):
            configs = getattr(self._inner, _METHODS[direction])(*args, **kwargs)
        return _tile(direction, configs[0]) if len(configs) == 1 else None

    def _is_stock(self, direction: Direction, offered: list[Any], args: Any, kwargs: Any) -> bool:
        """Return True if the list is Inductor's default: not a user's, and not the exhaustive one."""
        space = getattr(inductor_config, "max_autotune_flex_search_space", "DEFAULT")
        if space != "DEFAULT":
            return False
        stock: Any = getattr(InductorChoices, _METHODS[direction])
        return bool(stock(InductorChoices(), *args, **kwargs) == offered)

    def _pinned(self, direction: Direction) -> list[str]:
        """Return the tuning options the user set."""
        names = [*(block.upper() for block in _BLOCKS[direction]), "num_stages", "num_warps"]
        return [
            option
            for name in names
            for option in (name, self._prefix + name)
            if option in self._options
        ]

    def _exact(self) -> bool:
        precision = self._options.get("FLOAT32_PRECISION")
        if precision is not None:
            return "ieee" in str(precision)
        return float32_precision("cuda") == "highest"

    def _with_descriptors(
        self, direction: Direction, choices: list[Any], args: Any, mutated: Any
    ) -> list[Any]:
        """Return the choices with those that read Q, K and V (and dO) through descriptors."""
        if not inductor_config.max_autotune or len(choices) < 2 or self._pinned(direction):
            return choices
        nodes = args[1]
        read = [*nodes[:3], *([nodes[5]] if direction == "backward" else [])]
        untyped: Any = inductor_utils
        use_tma = self._options.get("USE_TMA", self._options.get(self._prefix + "USE_TMA"))
        if use_tma is not None or not untyped.can_use_tma(*read):
            return choices
        call = dataclasses.replace(self._call, direction=direction)
        for tile in descriptors(call, self._target):
            with contextlib.suppress(NotImplementedError):
                self._append(direction, choices, tile, args, mutated)
        return choices

    def _append(
        self, direction: Direction, choices: list[Any], tile: Tile, args: Any, mutated: Any
    ) -> None:
        """Append a choice, as Inductor's lowering appends its own."""
        _, nodes, subgraphs, layout, call_options, q_block, kv_block = args
        other = "fwd_" if direction == "backward" else "bwd_"
        options = {
            name.removeprefix(self._prefix): value
            for name, value in call_options.items()
            if not name.startswith(other)
        }
        names = [block.upper() for block in _BLOCKS[direction]]
        options |= dict(zip(names, tile.blocks, strict=True))
        options |= {"num_stages": tile.stages, "num_warps": tile.warps, "USE_TMA": True}
        options |= {"SPARSE_Q_BLOCK_SIZE": q_block, "SPARSE_KV_BLOCK_SIZE": kv_block}
        flex: Any = importlib.import_module(_MODULE)
        backward = direction == "backward"
        template = (
            flex.flex_attention_backward_template if backward else flex.flex_attention_template
        )
        query, key = nodes[0].get_size(), nodes[1].get_size()
        error = template.maybe_append_choice(
            choices=choices,
            input_nodes=nodes,
            layout=layout,
            subgraphs=subgraphs,
            mutated_inputs=list(mutated),
            call_sizes=[*query, *key[1:3]] if backward else query,
            **options,
        )
        if error is not None:
            logger.debug("flex %s: %s was not made: %s", direction, tile, error)


def _tile(direction: Direction, config: Any) -> Tile:
    blocks = tuple(int(getattr(config, name)) for name in _BLOCKS[direction])
    return Tile(blocks, int(config.num_stages), int(config.num_warps))


def _config(direction: Direction, tile: Tile, like: Any) -> Any:
    blocks = dict(zip(_BLOCKS[direction], tile.blocks, strict=True))
    return dataclasses.replace(like, **blocks, num_stages=tile.stages, num_warps=tile.warps)


def _log(call: FlexCall, chosen: FlexPlan) -> None:
    name = f"flex {call.direction}, head dimension {call.head_dim}, {call.dtype}"
    for tile, reason in chosen.left_out:
        logger.debug("%s: %s is left out: %s", name, tile, reason)
    if chosen.last_resort:
        logger.debug("%s: %s", name, chosen.last_resort)
