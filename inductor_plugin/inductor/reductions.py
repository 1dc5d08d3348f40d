"""One tile for each reduction of a compile that others repeat.

With ``max_autotune`` Inductor gives a Triton reduction several tiles, and a process takes the one that is fastest in its first call
(torch 2.14, `heuristics/triton_codegen/reduction.py`). The order of the additions follows the tile, and the bits follow the order: two
ranks, or two replays of the same pins, could differ. Inductor's own deterministic mode takes a tile without timing
(`filter_reduction_configs_for_determinism`); here it is asked for reductions alone, by the field of a kernel's metadata that says
so. Elementwise kernels are timed as ever: their bits are the same with every tile.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.select_algorithm import TritonTemplateKernel

from inductor_plugin.inductor.facts.scope import active_config, is_reproducible

_NAME, _FIELD = "inductor_meta_common", "deterministic"


def install() -> None:
    """Have reductions keep one tile where a compile is reproducible; nothing changes elsewhere."""
    if installed():
        return
    stock: Any = TritonKernel.__dict__[_NAME].__func__

    @functools.wraps(stock)
    def meta_common(cls: Any) -> dict[str, Any]:
        meta: dict[str, Any] = stock(cls)
        config = active_config()
        # A template's kernel has one tile, and its text is part of its key.
        if config is None or issubclass(cls, TritonTemplateKernel) or not is_reproducible(config):
            return meta
        return {**meta, _FIELD: True}

    meta_common.__module__ = __name__
    setattr(TritonKernel, _NAME, classmethod(meta_common))


def uninstall() -> None:
    """Restore Inductor's own method."""
    if installed():
        stock = getattr(TritonKernel, _NAME).__wrapped__
        setattr(TritonKernel, _NAME, classmethod(stock))


def installed() -> bool:
    """Return True if reductions keep one tile."""
    return getattr(getattr(TritonKernel, _NAME, None), "__module__", "") == __name__
