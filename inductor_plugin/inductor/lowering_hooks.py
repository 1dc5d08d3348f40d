"""The hooks that only the lowering of a graph calls. Importing them takes 0.2 s, which a graph out of Inductor's cache saves."""

from __future__ import annotations

from inductor_plugin.inductor import flex, jinja, reductions
from inductor_plugin.inductor.attention import lowering
from inductor_plugin.inductor.fusion import decide, kernel_arguments, limits, visitors
from inductor_plugin.inductor.graph import selector
from inductor_plugin.inductor.guard.guard import compile_graph

__all__ = ["compile_graph", "install", "uninstall"]

_HOOKS = (
    selector,
    jinja,
    flex,
    kernel_arguments,
    decide,
    limits,
    visitors,
    lowering,
    reductions,
)
"""Modules that replace functions of Inductor, each with `install` and `uninstall`, in the order of their installation."""


def install() -> None:
    """Install those that are not in place; they change nothing outside the plugin's scope."""
    for hook in _HOOKS:
        hook.install()


def uninstall() -> None:
    """Restore Inductor's own functions."""
    for hook in _HOOKS:
        hook.uninstall()
