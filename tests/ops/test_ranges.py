"""Ranges of ``torch.profiler`` around kernels: there while a profiler runs, and nothing at all otherwise."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from inductor_plugin.ops import ranges
from inductor_plugin.ops.ranges import CallRange, KernelRange
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


def a_module(kernel: Any, wait: Callable[[dict[str, Any]], None] | None = None) -> ModuleType:
    """Return a generated module: it defines its kernel, waits until that is compiled, and has its range last."""
    module = ModuleType("generated")
    vars(module).update(kernel=kernel, wait=wait)
    exec(
        f"import inductor_plugin.ops.ranges\n"
        "if wait: wait(globals())\n"
        "def call():\n    return kernel\n"
        f"range_kernel = inductor_plugin.ops.ranges.KernelRange(globals(), 'kernel', {LABEL!r})\n",
        vars(module),
    )
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


def test_code_that_is_loaded_while_a_profiler_runs_has_its_ranges() -> None:
    with profile_of_the_host() as run:
        module = a_module(function)
        assert module.call()(1, out=2) == 3
    assert names_in(run).count(LABEL) == 1
    assert module.call() is function


def test_a_profiler_that_starts_while_a_kernel_is_compiled_has_its_calls() -> None:
    run = profile_of_the_host()
    earlier = a_module(function)

    def wait(scope: dict[str, Any]) -> None:
        """Resolve the kernel's future; meanwhile another thread starts a profiler."""
        pending = scope["kernel"]
        run.start()
        assert scope["kernel"] is pending  # Inductor looks for futures
        scope["kernel"] = pending.result()

    future: Future[Any] = Future()
    future.set_result(function)
    module = a_module(future, wait)
    for each in (module, earlier):
        assert each.call()(1, out=2) == 3
    run.stop()
    assert names_in(run).count(LABEL) == 2
    assert (module.call(), earlier.call()) == (function, function)


def test_a_profiler_that_starts_during_a_first_call_has_the_next() -> None:
    run = profile_of_the_host()

    def first(a: int, *, out: int) -> int:
        if a == 1:
            run.start()
        return a + out

    module = a_module(first)
    assert [module.call()(a, out=2) for a in (1, 2, 3)] == [3, 4, 5]
    run.stop()
    assert names_in(run).count(LABEL) == 2
    assert module.call() is first


def test_a_profiler_that_another_thread_has_stopped_by_now_leaves_no_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = a_module(function)
    monkeypatch.setattr(profiler, "_starts_and_is_stopped", lambda: None, raising=False)
    ranges._follow_after("_starts_and_is_stopped")
    vars(profiler)["_starts_and_is_stopped"]()
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
    ranges._follow_after("_run_on_profiler_start")
    assert not hasattr(profiler, "_run_on_profiler_start")


def called(site: CallRange, call: Callable[[], Any]) -> Any:
    """Call something as generated code does."""
    if site.on:
        site.begin()
    result = call()
    if site.begun:
        site.end()
    return result


def test_a_call_between_the_lines_of_a_range_is_in_it_while_a_profiler_runs() -> None:
    site = CallRange(LABEL)
    assert called(site, lambda: site.on) is False
    with profile_of_the_host() as run:
        assert called(site, lambda: bool(site.begun)) is True
        called(site, lambda: None)
        assert site.begun == {}
    assert names_in(run).count(LABEL) == 2
    assert called(site, lambda: site.on) is False


def test_a_call_that_fails_costs_the_next_no_range() -> None:
    site = CallRange(LABEL)
    with profile_of_the_host() as run:
        with pytest.raises(ZeroDivisionError):
            called(site, lambda: 1 // 0)
        called(site, lambda: None)
        assert site.begun == {}
    assert names_in(run).count(LABEL) == 2


def test_a_profiler_that_starts_or_stops_during_a_call_leaves_no_range_open() -> None:
    site = CallRange(LABEL)
    run = profiler.profile()
    called(site, run.__enter__)
    assert site.on
    called(site, lambda: run.__exit__(None, None, None))
    assert (site.on, site.begun) == (False, {})


def test_threads_have_ranges_of_their_own() -> None:
    """A profiler does not record other threads than its own; what they begin, they end."""
    site, begun = CallRange(LABEL), list[int]()
    both = threading.Barrier(2, timeout=30.0)

    def call() -> None:
        both.wait()
        begun.append(len(site.begun))
        both.wait()

    with profile_of_the_host():
        threads = [threading.Thread(target=called, args=(site, call)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert begun == [2, 2]
    assert site.begun == {}
