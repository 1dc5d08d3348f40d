"""Installs the hooks of the lowering when the first graph is compiled that is not in Inductor's cache.

Every such graph goes through ``fx_codegen_and_compile`` (torch 2.11 to 2.15), which is wrapped for that.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from torch._inductor import compile_fx as compile_fx_module

from inductor_plugin.inductor.facts.scope import active_config
from inductor_plugin.inductor.graph import stored, unstored

_NAME = "fx_codegen_and_compile"
_INSTALLING = threading.Lock()
"""Threads compile: none lowers a graph before all hooks are installed."""
_LOADED: list[Any] = []
"""The module of the hooks, once it was imported."""


def install() -> None:
    """Wrap Inductor's function; without effect outside the plugin's scope."""
    if installed():
        return
    module: Any = compile_fx_module
    stock = getattr(module, _NAME)

    @functools.wraps(stock)
    def compiled(*arguments: Any, **keywords: Any) -> Any:
        # The state of the graph before, which is still there if that graph was not stored, or had no products.
        unstored.mark_due(None)
        stored.forget_decisions()
        hooks = None if active_config() is None else _lowering_hooks()
        if hooks is None:
            return stock(*arguments, **keywords)
        return hooks.compile_graph(stock, *arguments, **keywords)

    compiled.__module__ = __name__
    setattr(module, _NAME, compiled)


def installed() -> bool:
    """Return True if Inductor's function is wrapped."""
    return getattr(getattr(compile_fx_module, _NAME), "__module__", "") == __name__


def uninstall() -> None:
    """Restore Inductor's own function, and those that the hooks of the lowering have replaced."""
    module: Any = compile_fx_module
    if installed():
        setattr(module, _NAME, getattr(module, _NAME).__wrapped__)
    with _INSTALLING:
        for hooks in _LOADED:
            hooks.uninstall()


def _lowering_hooks() -> Any:
    """Return the module of the hooks, which are installed by then; None if `uninstall` was called in between."""
    from inductor_plugin.inductor import lowering_hooks  # noqa: PLC0415  0.2 s, see there

    with _INSTALLING:
        if not installed():
            return None
        if not _LOADED:
            _LOADED.append(lowering_hooks)
        lowering_hooks.install()
    return lowering_hooks
