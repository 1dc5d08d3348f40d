"""Writes the profiler's range of each chosen kernel into the generated code: record and candidate are its name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch._inductor.config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.wrapper import CommentLine, MemoryPlanningLine
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from inductor_plugin.inductor.graph.chosen import Chosen
from inductor_plugin.ops import ranges

_MODULE = ranges.__name__
_SITE = re.compile(r"(launch_\w+)\(")
"""The call of a kernel through its call site, see `ops.sites`."""
_CPP_RANGE = "torch::aot_inductor::RAIIAtenRecordFunctionHandle"


class RangeWriter:
    """Writes the ranges of one graph; a kernel that several problems share has the name of the first."""

    def __init__(self) -> None:
        """Begin without a range."""
        self._written: set[str] = set()

    def before(self, scheduler: Any, nodes: Sequence[Any], chosen: Chosen) -> Callable[[], None]:
        """Return the function that writes the range, once the call of the kernel is written."""
        del scheduler
        wrapper: Any = V.graph.wrapper_code
        first = len(wrapper.lines)

        def write_range() -> None:
            if any(isinstance(node.node, ir.MultiOutput) for node in nodes):
                return  # a result of a call that has its range
            called = range(first, len(wrapper.lines))
            at = next((line for line in called if _calls(wrapper.lines[line])), None)
            if at is None:
                return
            kernel = next(filter(None, map(_kernel_of, wrapper.lines[first:])), None)
            if V.graph.cpp_wrapper:
                _around_cpp(wrapper, at, _name(nodes), label(chosen))
            elif kernel is None:
                _around(wrapper, at, _name(nodes), label(chosen))
            elif kernel not in self._written:
                self._written.add(kernel)
                arguments = f"globals(), {kernel!r}, {label(chosen)!r}"
                _at_the_end(wrapper, kernel, f"{ranges.KernelRange.__name__}({arguments})")

        return write_range


def are_written(graph: GraphLowering) -> bool:
    """Return whether a graph's code has ranges: C++ has them if Inductor is to write its own there, too.

    ``TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE`` asks for these, which look for a profiler at each call. Code that
    Inductor writes as a graph of ``torch.fx`` has no lines.
    """
    if graph.cpp_wrapper:
        return inductor_config.cpp.enable_kernel_profile and sys.platform == "linux"
    return not getattr(graph, "fx_wrapper", False)


def label(chosen: Chosen) -> str:
    """Return the name of a candidate's range."""
    return f"inductor_plugin {chosen.key} {chosen.candidate} {chosen.problem}"


def _at_the_end(wrapper: Any, name: str, value: str) -> None:
    """Write a range after the functions of the module: by then its kernels are compiled and loaded."""
    wrapper.add_import_once(f"import {_MODULE}")
    while (parent := getattr(wrapper, "parent_wrapper", None)) is not None:
        wrapper = parent  # a partition or a subgraph is a function of the module
    wrapper.suffix.writeline(f"range_{name} = {_MODULE}.{value}")


def _around(wrapper: Any, at: int, name: str, text: str) -> None:
    """Write a range around the lines from ``at`` on: the call of a library kernel or an operator."""
    wrapper.lines.insert(at, f"if range_{name}.on: range_{name}.begin()")
    wrapper.writeline(f"if range_{name}.begun: range_{name}.end()")
    _at_the_end(wrapper, name, f"{ranges.CallRange.__name__}({text!r})")


def _around_cpp(wrapper: Any, at: int, name: str, text: str) -> None:
    """Write a range around lines of C++, without a scope: they declare variables that are read later."""
    # The quotes of JSON are C++'s.
    begin = f"auto range_{name} = std::make_unique<{_CPP_RANGE}>({json.dumps(text)}, nullptr);"
    wrapper.lines.insert(at, begin)
    wrapper.writeline(f"range_{name}.reset();")


def _name(nodes: Sequence[Any]) -> str:
    """Return the name of the buffer that nodes, run as one kernel, write last."""
    return str(nodes[-1].node.get_name())


def _calls(line: Any) -> bool:
    """Return whether a line may be the call itself, and neither a comment above it nor the memory of its output."""
    if isinstance(line, str):
        return not line.lstrip().startswith(("#", "//"))
    return not isinstance(line, CommentLine | MemoryPlanningLine)


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
