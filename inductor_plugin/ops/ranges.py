"""Ranges of ``torch.profiler`` around the kernels that generated code calls: each has its record and candidate as its name.

    range_K = inductor_plugin.ops.ranges.KernelRange(globals(), "K", "inductor_plugin ENVIRONMENT/PROBLEM CANDIDATE ...")

The kernel K is replaced in the generated module when a profiler starts, and put back when it stops: while none runs, a call
costs what it costs without this line. The line is the module's last: before it the kernel may be a future, which Inductor
would not find under another object, and a profiler that runs already when the module is loaded has ranges, too. Inductor's own range of a Triton kernel has the kernel's name
(``inductor_meta["kernel_name"]``), which AOTInductor uses as a key and which therefore cannot have another value. A C++
kernel has no range of its own. The calls that a replayed CUDA graph contains have no range, ours as little as Inductor's.

A library kernel or an operator is no global of the module: ``extern_kernels.mm`` is that of all products. So its call is between two lines,

    if range_buf0.on: range_buf0.begin()
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    if range_buf0.begun: range_buf0.end()

with ``range_buf0 = inductor_plugin.ops.ranges.CallRange(LABEL)`` at the end of the module.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any

from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

_RANGES: weakref.WeakSet[KernelRange | CallRange] = weakref.WeakSet()
"""Of all generated modules that are alive."""
_LISTING = threading.Lock()
"""Held while ranges are added, listed, begun and ended: a thread may load code while another starts a profiler."""


class KernelRange:
    """The range of one kernel of a generated module, which holds it."""

    def __init__(self, module: dict[str, Any], kernel: str, label: str) -> None:
        """Put a range around a kernel whenever a profiler starts, and now if there is a profiler.

        Args:
            module: The globals of the generated module.
            kernel: The global's name: a Triton kernel, a function, or a call site.
            label: Name of the range.
        """
        self._module, self._kernel, self._label = module, kernel, label
        _list(self)

    def follow(self, *, profiles: bool) -> None:
        """Begin if a profiler runs, else end."""
        if profiles:
            self.begin()
        else:
            self.end()

    def begin(self) -> None:
        """Replace the kernel by one that is called in a range."""
        kernel = self._module.get(self._kernel)
        if kernel is not None and not isinstance(kernel, _Ranged):
            self._module[self._kernel] = _Ranged(kernel, self._label)

    def end(self) -> None:
        """Put the kernel back."""
        kernel = self._module.get(self._kernel)
        if isinstance(kernel, _Ranged):
            self._module[self._kernel] = kernel.kernel


class CallRange:
    """The range of one call in a generated module, which holds it.

    Attributes:
        on: Whether a profiler runs.
        begun: The ranges that have begun and not ended, by thread.
    """

    def __init__(self, label: str) -> None:
        """Be a range whenever a profiler runs; ``label`` is its name."""
        self.on = False
        self.begun: dict[int, _RecordFunctionFast] = {}
        self._label = label
        _list(self)

    def follow(self, *, profiles: bool) -> None:
        """Be a range from now on, or none."""
        self.on = profiles

    def begin(self) -> None:
        """Begin the range of this thread; of a call that raised an error it ends here."""
        self.end()
        entered = _RecordFunctionFast(self._label)
        entered.__enter__()
        self.begun[threading.get_ident()] = entered

    def end(self) -> None:
        """End the range of this thread, if it has begun."""
        entered = self.begun.pop(threading.get_ident(), None)
        if entered is not None:
            entered.__exit__(None, None, None)


class _Ranged:
    """A kernel that is called in a range; it has all attributes of the kernel."""

    def __init__(self, kernel: Any, label: str) -> None:
        self.kernel, self._label = kernel, label

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with _RecordFunctionFast(self._label):
            return self.kernel(*arguments, **named)

    def run(self, *arguments: Any, **named: Any) -> Any:
        """Launch a Triton kernel."""
        with _RecordFunctionFast(self._label):
            return self.kernel.run(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


def _list(new: KernelRange | CallRange) -> None:
    """Have a range follow each profiler from now on, the one that runs now included."""
    _follow_profiler()
    with _LISTING:
        _RANGES.add(new)
        new.follow(profiles=_profiles())


def _profiles() -> bool:
    return bool(getattr(profiler, "_is_profiler_enabled", False))


@functools.cache
def _follow_profiler() -> None:
    """Begin and end all ranges with each profiler, by the two functions that every profiler of torch 2.11 to 2.15 calls."""
    _follow_after("_run_on_profiler_start")
    _follow_after("_run_on_profiler_stop")


def _follow_after(name: str) -> None:
    function = getattr(profiler, name, None)
    if function is None:  # a later torch: no ranges
        return

    @functools.wraps(function)
    def changed() -> None:
        function()
        # Each looks at the profiler itself: another thread may have stopped by now what this one has started.
        with _LISTING:
            for each in list(_RANGES):
                each.follow(profiles=_profiles())

    setattr(profiler, name, changed)
