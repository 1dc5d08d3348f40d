"""Triton kernels are launched as generated code launches them: with its arguments, on the stream of the moment."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import functools
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.autotune_process import TensorMeta, TritonGPUBenchmarkRequest
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_heuristics

from inductor_plugin.worker.child import triton_launch

pytestmark = pytest.mark.compat

CUDA = torch.device("cuda", 0)


class Tuner:
    """Takes the place of Inductor's CachingAutotuner."""

    def __init__(self, **meta: Any) -> None:
        self.inductor_meta = meta
        self.launchers = [None]
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(self, *arguments: Any, stream: int, **more: Any) -> None:
        self.calls.append((arguments, {"stream": stream, **more}))


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list whose only item is the handle of the current stream."""
    handles = [7]
    interfaces: Any = importlib.import_module("torch._dynamo.device_interface")
    interface = SimpleNamespace(get_raw_stream=lambda index: 100 * index + handles[0])
    monkeypatch.setattr(interfaces, "get_interface_for_device", lambda _: interface)
    process: Any = importlib.import_module("torch._inductor.autotune_process")
    monkeypatch.setattr(process, "get_interface_for_device", lambda _: interface)
    return handles


def bound_by_inductor(tuner: Tuner, monkeypatch: pytest.MonkeyPatch, out: Any) -> Any:
    """Return what a request of the installed torch binds for a kernel with two more arguments."""
    module = SimpleNamespace(kernel=tuner)
    monkeypatch.setattr(PyCodeCache, "load_by_key_path", lambda *_, **__: module)
    meta = TensorMeta(CUDA, torch.float32, [1], [1], 0)
    request = TritonGPUBenchmarkRequest("kernel", [meta], meta, (5, 6), "path", "key", 1, 1)
    return request.make_run_fn("a", "b", out=out)  # type: ignore[arg-type]


def test_a_request_is_launched_without_the_word_that_keeps_it_slow(
    stream: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, out = Tuner(), SimpleNamespace(device=CUDA)
    call = bound_by_inductor(tuner, monkeypatch, out)
    call()
    assert tuner.calls.pop()[1].get("benchmark_run") is True
    launch = triton_launch.of_request(call, out)  # type: ignore[arg-type]
    assert launch is not None
    launch()
    stream[0] = 8
    launch()
    assert tuner.calls == [
        (("a", "b", out, 5, 6), {"stream": 7}),
        (("a", "b", out, 5, 6), {"stream": 8}),
    ]


def test_other_calls_stay_as_they_are(stream: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    out: Any = SimpleNamespace(device=CUDA)
    another: Any = functools.partial(dict, stream=0)
    assert triton_launch.of_request(another, out) is None
    assert triton_launch.of_request(lambda: None, out) is None

    def run_fn() -> None:
        """Return nothing that a later torch might bind under other names."""

    assert triton_launch.of_request(run_fn, out) is None
    stores = bound_by_inductor(Tuner(store_cubin=True), monkeypatch, out)
    assert triton_launch.of_request(stores, out) is None

    class Debug(Tuner, triton_heuristics.DebugAutotuner):
        """Times itself."""

    debug = bound_by_inductor(Debug(), monkeypatch, out)
    assert triton_launch.of_request(debug, out) is None
    on_cpu: Any = SimpleNamespace(device=torch.device("cpu"))
    call = bound_by_inductor(Tuner(), monkeypatch, on_cpu)
    assert triton_launch.of_request(call, on_cpu) is None


def test_a_module_is_launched_without_making_its_device_current(stream: list[int]) -> None:
    tuner = Tuner()
    module = SimpleNamespace(triton_=tuner, call=print, torch=torch)
    launch = triton_launch.of_module(module, ["a", 3], torch.device("cuda", 2))
    assert launch is not None
    launch()
    assert tuner.calls == [(("a", 3), {"stream": 207})]
    two = SimpleNamespace(triton_=tuner, other=Tuner())
    assert triton_launch.of_module(two, [], CUDA) is None


def test_a_call_that_does_more_than_launch_is_not_replaced_by_its_launch(stream: list[int]) -> None:
    out: Any = SimpleNamespace(device=CUDA)
    run_method, input_tensors, extra_args, is_debug_autotuner = Tuner().run, ("a",), (5,), False

    def run_and_flush() -> None:
        """Has all that a launch needs, and more to do."""
        assert not is_debug_autotuner
        run_method(*input_tensors, out, *extra_args, stream=0)
        stream.clear()

    assert triton_launch.of_request(run_and_flush, out) is None
    assert triton_launch.of_request(print, out) is None  # not written in Python: nothing to read

    run_and_flush.__name__ = "run_fn"  # as Inductor names the function that only launches
    assert triton_launch.of_request(run_and_flush, out) is not None
