"""The hooks that only the lowering of a graph calls. Importing them takes 0.2 s, which a graph out of Inductor's cache saves."""

from __future__ import annotations

from inductor_plugin.inductor import flex, jinja, reductions
from inductor_plugin.inductor.attention import lowering
from inductor_plugin.inductor.fusion import decide, kernel_arguments, limits, visitors
from inductor_plugin.inductor.graph import selector
from inductor_plugin.inductor.guard.guard import compile_graph

__all__ = ["compile_graph", "install", "uninstall"]


def install() -> None:
    """Install those that are not in place; they change nothing outside the plugin's scope."""
    selector.install()
    jinja.install()
    flex.install()
    kernel_arguments.install()
    decide.install()
    limits.install()
    visitors.install()
    lowering.install()
    reductions.install()


def uninstall() -> None:
    """Restore Inductor's own functions."""
    selector.uninstall()
    jinja.uninstall()
    flex.uninstall()
    kernel_arguments.uninstall()
    decide.uninstall()
    limits.uninstall()
    visitors.uninstall()
    lowering.uninstall()
    reductions.uninstall()
