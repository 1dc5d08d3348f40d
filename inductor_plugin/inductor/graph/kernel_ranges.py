"""Writes the profiler's range of each chosen kernel into the generated code: record and candidate are its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor.virtualized import V

from inductor_plugin.inductor.graph.chosen import Chosen
from inductor_plugin.ops import ranges

_MODULE = ranges.__name__
_SITE = re.compile(r"(launch_\w+)\(")
"""The call of a kernel through its call site, see `ops.sites`."""


class RangeWriter:
    """Writes the ranges of one graph; a kernel that several problems share has the name of the first."""

    def __init__(self) -> None:
        """Begin without a range."""
        self._written: set[str] = set()

    def before(self, scheduler: Any, nodes: Sequence[Any], chosen: Chosen) -> Callable[[], None]:
        """Return what writes the range of the first kernel that is called from here on."""
        del scheduler, nodes
        wrapper: Any = V.graph.wrapper_code
        first = len(wrapper.lines)

        def behind() -> None:
            kernel = next(filter(None, map(_kernel_of, wrapper.lines[first:])), None)
            if kernel is None or kernel in self._written:
                return
            self._written.add(kernel)
            wrapper.add_import_once(f"import {_MODULE}")
            # Behind the functions of the module: by then its kernels are compiled and loaded.
            _outermost(wrapper).suffix.writeline(
                f"range_{kernel} = {_MODULE}.{ranges.KernelRange.__name__}(globals(), {kernel!r}, {label(chosen)!r})"
            )

        return behind


def label(chosen: Chosen) -> str:
    """Return the name of a candidate's range."""
    return f"inductor_plugin {chosen.key} {chosen.candidate} {chosen.problem}"


def _outermost(wrapper: Any) -> Any:
    """Return what writes the module; a partition or a subgraph is a function of it."""
    while (parent := getattr(wrapper, "parent_wrapper", None)) is not None:
        wrapper = parent
    return wrapper


def _kernel_of(line: Any) -> str | None:
    """Return the global that a line of generated code calls, if it is a kernel of Inductor's or a call site."""
    if isinstance(line, str):
        site = _SITE.match(line)
        return site[1] if site else None
    name = getattr(line, "kernel_name", None)
    if name is None:  # the line of a library kernel, or of an operator
        name = getattr(getattr(line, "node", None), "python_kernel_name", None) or ""
        return name if name.startswith("launch_") else None
    return str(name)
