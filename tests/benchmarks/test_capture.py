"""CUDA graphs of the benchmarks without a GPU: on which stream forward, backward and capture are."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false
# pyright: reportIncompatibleMethodOverride=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.attention import arm
from benchmarks.gemm import arm as gemm_arm
from benchmarks.harness import arms, capture
from benchmarks.harness.attention import Shape, operands
from tests.support.attention import reference

SMALL = Shape("small", 1, 2, 2, 8, 8, 16)
ENDING = """
import json, os, sys
for _ in sys.stdin:
    print(json.dumps({"pid": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}), flush=True)
open(os.environ["LAST"], "a").write("ended ")
"""


class FakeStream:
    """A stream that keeps which streams it waits for."""

    def __init__(self, name: str = "side") -> None:
        self.name = name
        self.waited_for: list[str] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.waited_for.append(other.name)


@dataclass
class FakeCuda:
    """What `torch.cuda` has of streams and graphs; kernels say on which stream they run.

    Attributes:
        legacy: The default stream, which may not take part in a capture.
        now: The current stream.
        capturing: The stream of the capture; None outside of one.
        ran: The streams of the kernels that ran outside of a capture, and of those captured.
    """

    legacy: FakeStream = field(default_factory=lambda: FakeStream("legacy"))
    now: FakeStream | None = None
    capturing: FakeStream | None = None
    ran: list[str] = field(default_factory=list[str])
    captured: list[str] = field(default_factory=list[str])

    def current_stream(self) -> FakeStream:
        return self.now or self.legacy

    @contextmanager
    def stream(self, stream: FakeStream) -> Generator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    @contextmanager
    def graph(self, graph: object, stream: FakeStream) -> Generator[None]:
        self.capturing = stream
        with self.stream(stream):
            yield
        self.capturing = None

    def kernel(self, stream: FakeStream) -> None:
        """Run a kernel on a stream, as CUDA allows it."""
        if self.capturing is None:
            self.ran.append(stream.name)
        elif stream is not self.capturing:
            raise RuntimeError("CUDA error: operation would make the legacy stream depend on ...")
        else:
            self.captured.append(stream.name)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Put a fake into `torch.cuda`, and a clock that asks no device."""
    fake = FakeCuda()
    graphs = SimpleNamespace(replay=lambda: None)
    names = {"current_stream": fake.current_stream, "stream": fake.stream, "graph": fake.graph}
    names |= {"Stream": FakeStream, "CUDAGraph": lambda: graphs, "synchronize": lambda: None}
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    clock = SimpleNamespace(synchronize=lambda: None, sample=lambda *_, **__: 1.0)
    monkeypatch.setattr(arm, "timer_for", lambda device: clock)
    return fake


def on_streams(cuda: FakeCuda) -> Callable[..., torch.Tensor]:
    """Return an attention whose gradient runs on the stream of its forward, as autograd does it."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> torch.Tensor:
            ctx.save_for_backward(q, k, v)
            ctx.stream = cuda.current_stream()
            cuda.kernel(ctx.stream)
            return reference.forward(q, k, v, mask=SMALL.mask)[0].to(q.dtype)

        @staticmethod
        def backward(ctx: Any, do: Any) -> Any:
            cuda.kernel(ctx.stream)
            gradients = reference.backward(do, *ctx.saved_tensors, mask=SMALL.mask)
            return tuple(
                tensor.to(do.dtype) for tensor in (gradients.dq, gradients.dk, gradients.dv)
            )

    apply: Any = Attention.apply
    return apply


@pytest.mark.parametrize("backward", [False, True])
def test_a_backward_is_captured_on_the_stream_of_its_forward(
    backward: bool, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(arm, "shape_of", lambda name: SMALL)
    monkeypatch.setattr(arm, "operands", lambda shape, device: operands(shape, "cpu"))
    monkeypatch.setattr(arm, "attention", lambda *_: on_streams(cuda))
    request = {"shape": "small", "backward": backward}
    report, _ = arm.prepare("flash", tmp_path, request, dry=False)
    assert report["graph"]
    assert report["error"] < 1e-4
    assert cuda.captured == ["side"]
    assert set(cuda.ran) == {"side"}  # the first call and the warm-up
    assert len(cuda.ran) == 1 + backward + capture.WARM_UP
    assert cuda.legacy.waited_for == ["side"]


def test_a_cpu_needs_no_graph() -> None:
    calls: list[int] = []
    with capture.capture_stream("cpu") as stream:
        call, captured = capture.graphed(lambda: calls.append(1), stream)
    assert not captured
    assert calls == []
    call()
    assert calls == [1]


@pytest.mark.parametrize(
    ("message", "fatal"),
    [
        ("CUDA error: operation not permitted when stream is capturing", True),
        ("operation failed due to a previous error during capture", True),
        ("CUDA error: an illegal memory access was encountered", True),
        ("no fused evt kernel is offered", False),
    ],
)
def test_a_broken_device_or_capture_is_fatal(message: str, fatal: bool) -> None:
    assert capture.is_fatal(RuntimeError(message)) == fatal


def test_a_process_whose_device_may_be_broken_answers_no_other_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import sys\nfor n, _ in enumerate(sys.stdin):\n"
    code += '    print(\'{"failed": "broken", "fatal": true}\' if n else \'{"ms": 1}\', flush=True)'
    own = subprocess.Popen

    def popen(command: Any, **options: Any) -> Any:
        return own([sys.executable, "-S", "-c", code], **options)

    monkeypatch.setattr(arms.subprocess, "Popen", popen)
    asked = arms.Arm("one", tmp_path, "no.module", dry=True)
    try:
        answers = [asked.ask({}, 30.0) for _ in range(3)]
    finally:
        asked.stop()
    assert [answer.get("failed") for answer in answers] == [None, "broken", None]


def test_an_arm_says_that_an_error_is_fatal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    errors = iter([RuntimeError("CUDA error: illegal"), ValueError("it cannot")])

    def prepare(*_: Any, **__: Any) -> Any:
        raise next(errors)

    monkeypatch.setattr(gemm_arm, "warm", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["arm", "ours", str(tmp_path), "--dry"])
    monkeypatch.setattr(sys, "stdin", [json.dumps({"do": "prepare"})] * 2)
    monkeypatch.setattr(gemm_arm.os, "dup2", lambda *_: None)
    gemm_arm.serve(prepare)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line.get("fatal", False) for line in lines] == [True, False]


def test_a_process_has_the_variables_of_its_arm_and_ends_with_what_it_does_at_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, last = subprocess.Popen, tmp_path / "last"

    def popen(command: Any, **options: Any) -> Any:
        return own([sys.executable, "-S", "-c", ENDING], **options)

    monkeypatch.setattr(arms.subprocess, "Popen", popen)
    environment = {"OMP_NUM_THREADS": "3", "LAST": str(last)}
    arm = arms.Arm("ours", tmp_path, "no.module", dry=True, environment=environment)
    arm.end()  # it has not begun
    try:
        first = arm.ask({}, 60.0)
        assert first["threads"] == "3"
        arm.end()
        assert last.read_text() == "ended "
        with pytest.raises(ProcessLookupError):
            os.kill(first["pid"], 0)
        assert arm.ask({}, 60.0)["pid"] != first["pid"]
    finally:
        arm.stop()
    assert last.read_text() == "ended "  # killed
