"""Ranges of ``torch.profiler`` around kernels: there while a profiler runs, and nothing at all otherwise."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from inductor_plugin.ops import ranges
from inductor_plugin.ops.ranges import KernelRange
from tests.support.profiles import names_in, profile_of_the_host

pytestmark = pytest.mark.compat

LABEL = "inductor_plugin e1/d1 cpp_1 mm(2x3, 3x4)"


class Launcher:
    """Like a compiled Triton kernel."""

    def __init__(self) -> None:
        self.inductor_meta = {"kernel_name": "triton_mm"}
        self.launched: list[Any] = []

    def run(self, *arguments: Any, stream: int) -> str:
        self.launched.append((arguments, stream))
        return "launched"


def function(a: int, *, out: int) -> int:
    return a + out


def a_module(kernel: Any) -> ModuleType:
    """Return a generated module whose kernel is defined after its range."""
    module = ModuleType("generated")
    exec(
        f"import inductor_plugin.ops.ranges\n"
        f"range_kernel = inductor_plugin.ops.ranges.KernelRange(globals(), 'kernel', {LABEL!r})\n"
        "def call():\n    return kernel\n",
        vars(module),
    )
    vars(module)["kernel"] = kernel
    return module


def test_a_call_of_a_function_is_a_range() -> None:
    module = a_module(function)
    with profile_of_the_host() as run:
        assert module.call()(1, out=2) == 3
        assert module.call()(2, out=2) == 4
    assert names_in(run).count(LABEL) == 2
    assert module.call() is function


def test_a_launch_of_a_triton_kernel_is_a_range() -> None:
    launcher = Launcher()
    module = a_module(launcher)
    with profile_of_the_host() as run:
        assert module.call().run(1, 2, stream=3) == "launched"
        assert module.call().inductor_meta == {"kernel_name": "triton_mm"}
    assert launcher.launched == [((1, 2), 3)]
    assert names_in(run).count(LABEL) == 1
    assert module.call() is launcher


def test_a_call_that_raises_ends_its_range() -> None:
    module = a_module(function)
    with profile_of_the_host() as run:
        with pytest.raises(TypeError):
            module.call()(1)
        torch.ones(2).sin_()
    events: Any = run.events()
    parents = {event.name: event.cpu_parent for event in events}
    assert (parents["aten::sin_"], parents[LABEL]) == (None, None)
    assert module.call() is function


def test_without_a_profiler_the_kernel_itself_is_called() -> None:
    module = a_module(function)
    assert module.call() is function
    with profile_of_the_host():
        assert module.call() is not function
    assert module.call() is function
    with profile_of_the_host():
        profiler._run_on_profiler_start()  # a second profiler
        assert module.call().kernel is function  # a range, not a range in a range
    assert module.call() is function


def test_a_module_that_lacks_its_kernel_is_left_alone() -> None:
    module = a_module(None)
    with profile_of_the_host():
        assert module.call() is None
    del vars(module)["kernel"]
    with profile_of_the_host():
        assert not hasattr(module, "kernel")


def test_a_module_that_is_gone_has_no_range() -> None:
    module = a_module(function)
    held = module.range_kernel
    assert held in ranges._RANGES
    before = len(ranges._RANGES)
    del held, module
    gc.collect()
    assert len(ranges._RANGES) < before


def test_code_may_be_loaded_while_a_profiler_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    modules: list[ModuleType] = []
    loading = threading.Thread(target=lambda: modules.append(a_module(function)))

    class Interrupted(weakref.WeakSet[KernelRange]):
        def __iter__(self) -> Iterator[KernelRange]:
            for each in super().__iter__():
                yield each
                if loading.ident is None:
                    loading.start()
                    loading.join(0.5)  # without a lock it has added its range by then

    alive = [a_module(function), a_module(function)]
    monkeypatch.setattr(ranges, "_RANGES", Interrupted(m.range_kernel for m in alive))
    with profile_of_the_host():
        loading.join(60)
    assert vars(modules[0])["range_kernel"] in ranges._RANGES


def test_a_torch_without_these_functions_has_no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(profiler, "_run_on_profiler_start")
    ranges._call_after("_run_on_profiler_start", KernelRange.begin)
    assert not hasattr(profiler, "_run_on_profiler_start")
