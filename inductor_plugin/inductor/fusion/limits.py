"""Logs which nodes Inductor does not fuse or combine because of the plugin's limits.

`max_fusion_buffers` and `max_kernel_arguments` become Inductor's own limits, and Inductor applies them
before it asks the plugin: `Scheduler.fusion_prevent_too_many_reads_and_writes` (choices.py, `can_fuse`)
to two nodes, `ComboKernel._update_partition` to another kernel in a combined one. Both are called
unchanged; their decisions are only logged.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Sequence
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.codegen.triton_combo_kernel import ComboKernel
from torch._inductor.scheduler import Scheduler

from inductor_plugin.config import Config
from inductor_plugin.cost.limits import limits_of
from inductor_plugin.inductor.facts.scope import active_config

logger = logging.getLogger(__name__)

_FUSION, _COMBINED = "fusion_prevent_too_many_reads_and_writes", "_update_partition"
_STOCK: dict[str, Any] = {}
"""Inductor's own functions, while ours replace them."""
_LOGGED: weakref.WeakKeyDictionary[Any, set[tuple[str, str]]] = weakref.WeakKeyDictionary()
"""Pairs of each scheduler that were logged: Inductor asks again in each of up to ten rounds."""


def install() -> None:
    """Replace Inductor's functions by ones that log; silent outside the plugin's scope."""
    if _STOCK:
        return
    refuses: Any = _STOCK.setdefault(_FUSION, getattr(Scheduler, _FUSION))
    combine: Any = _STOCK.setdefault(_COMBINED, getattr(ComboKernel, _COMBINED))

    @functools.wraps(refuses)
    def prevents(scheduler: Any, node1: Any, node2: Any, threshold: int) -> bool:
        refused: bool = refuses(scheduler, node1, node2, threshold)
        config = _debug_config()
        if refused and config is not None:
            _log_fusion(scheduler, node1, node2, threshold, config)
        return refused

    @functools.wraps(combine)
    def update_partition(state: Any, count: int, node: Any) -> None:
        before, count_before = state.cur_partition, state.cur_count
        combine(state, count, node)
        config = _debug_config()
        if config is not None and before and state.cur_partition is not before:
            _log_combined(before, node, count_before + count, config)

    setattr(Scheduler, _FUSION, prevents)
    setattr(ComboKernel, _COMBINED, staticmethod(update_partition))


def uninstall() -> None:
    """Put Inductor's own functions back."""
    if _STOCK:
        setattr(Scheduler, _FUSION, _STOCK.pop(_FUSION))
        setattr(ComboKernel, _COMBINED, staticmethod(_STOCK.pop(_COMBINED)))


def _debug_config() -> Config | None:
    return active_config() if logger.isEnabledFor(logging.DEBUG) else None


def _log_fusion(scheduler: Any, node1: Any, node2: Any, limit: int, config: Config) -> None:
    names = node1.get_name(), node2.get_name()
    logged = _LOGGED.setdefault(scheduler, set())
    if names in logged:
        return
    logged.add(names)
    # Inductor does not return the count, only whether it is above a limit.
    refuses, count = _STOCK[_FUSION], limit + 1
    while refuses(scheduler, node1, node2, count):
        count += 1
    ours = limits_of(config, node1.get_device().type).buffers == limit
    logger.debug(
        "%s + %s: not fused: the fused kernel would read and write %d tensors; %s is %d",
        *(*names, count),
        *("max_fusion_buffers" if ours else "Inductor's max_fusion_unique_io_buffers", limit),
    )


def _log_combined(before: Sequence[Any], node: Any, count: int, config: Config) -> None:
    limit = inductor_config.combo_kernel_max_num_args
    ours = limits_of(config, node.get_device().type).arguments == limit
    logger.debug(
        "%s + %s: not combined: the combined kernel would take %d tensors; %s is %d",
        *(", ".join(part.get_name() for part in before), node.get_name(), count),
        *("max_kernel_arguments" if ours else "Inductor's combo_kernel_max_num_args", limit),
    )
