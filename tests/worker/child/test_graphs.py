"""Whole graphs in the benchmark worker: what is built for them, and their turns."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child import graphs
from inductor_plugin.worker.child.graphs import built
from inductor_plugin.worker.graph_job import (
    FEWEST_TURNS,
    MKLDNN_CONVOLUTION,
    TURN_WAIT_S,
    GraphCode,
    GraphJob,
    GraphTensor,
    LoadSettings,
)


def spec(*size: int, dtype: str = "float32", seed: int = 1) -> TensorSpec:
    return TensorSpec(size, tuple(torch.empty(size).stride()), dtype, "cpu", seed=seed)


@pytest.mark.parametrize(
    ("below", "values"), [(1, {0}), (2, {1}), (3, {1, 2}), (1000, {*range(1, 8)})]
)
def test_integers_are_in_bounds_and_divide(below: int, values: set[int]) -> None:
    tensor = built(GraphTensor(spec(1000, dtype="int64"), below=below), {})
    assert {int(each) for each in tensor} == values


def test_values_that_matter_are_those_of_the_user() -> None:
    whole = torch.arange(12, dtype=torch.int32)
    view = TensorSpec((2, 3), (4, 1), "int32", "cpu", offset=1)
    tensor = built(GraphTensor(view, data=whole.numpy().tobytes()), {})
    assert torch.equal(tensor, whole.as_strided((2, 3), (4, 1), 1))
    assert built(GraphTensor(spec(0), data=b""), {}).numel() == 0


def test_the_same_tensor_of_two_graphs_is_one_and_another_of_its_size_is_not() -> None:
    tensors: dict[GraphTensor, torch.Tensor] = {}
    first, again, other = (built(GraphTensor(spec(4, seed=seed)), tensors) for seed in (1, 1, 2))
    assert first is again
    assert first.data_ptr() != other.data_ptr()
    assert built(3.5, tensors) == 3.5


@pytest.mark.parametrize(
    ("size", "packing", "arguments"),
    [
        ((16, 32), "mkldnn_linear", (8,)),
        ((16, 32), "mkl_linear", (8,)),
        ((16, 8, 3, 3), MKLDNN_CONVOLUTION, ((1, 1), (1, 1), (1, 1), 1, (2, 8, 6, 6))),
        ((16, 32), "onednn_qlinear", ((8, 32),)),
    ],
)
def test_weights_are_packed_as_those_of_the_user(
    size: tuple[int, ...], packing: str, arguments: tuple[int | tuple[int, ...], ...]
) -> None:
    if packing == "mkl_linear" and not torch.backends.mkl.is_available():
        pytest.skip("this torch has no MKL")
    dtype = "int8" if packing == "onednn_qlinear" else "float32"
    plain = spec(*size, dtype=dtype)
    tensor = built(GraphTensor(plain, packing=packing, packing_arguments=arguments), {})
    assert tensor.layout is not torch.strided
    packed = size[::-1] if packing == "onednn_qlinear" else size
    assert packing == "mkl_linear" or tuple(tensor.size()) == packed


SOURCE = """
def call(inputs):
    (x,) = inputs
    inputs.clear()
    x.mul_(factor)
    return (x,)
"""


class Clock:
    """A timer that runs each call once and takes a millisecond."""

    disturbed = False

    def synchronize(self) -> None:
        """Nothing runs on a device."""

    def sample(self, call: object, repeats: int, *, cold: bool) -> float:
        assert callable(call)
        call()
        return 1.0


def job_of(
    code: GraphCode,
    inputs: tuple[GraphTensor, ...] = (),
    changed: tuple[int, ...] = (),
    **other: Any,
) -> GraphJob:
    """Return the job of a graph that is compared with itself."""
    fields: dict[str, Any] = {"device": "cpu", "limit_s": 0.5, "most_s": 60.0, **other}
    return GraphJob((code, code), inputs, changed, settings=LoadSettings(), **fields)


@pytest.mark.parametrize("alone", [True, False])
def test_a_changed_input_is_restored_and_what_another_process_disturbs_is_known(
    monkeypatch: pytest.MonkeyPatch, inductor_cache: object, alone: bool
) -> None:
    held: list[str] = []

    @contextmanager
    def turn(uuid: str, wait_s: float, *, most_s: float) -> Generator[bool]:
        held.append(uuid)
        yield alone

    seen: list[float] = []
    original = graphs._restore  # pyright: ignore[reportPrivateUsage]

    def restore(job: GraphJob, inputs: list[torch.Tensor]) -> BoundCall:
        inner = original(job, inputs)

        def noted() -> None:
            inner()
            seen.append(float(inputs[0].abs().max()))

        return noted

    monkeypatch.setattr(graphs, "turn", turn)
    monkeypatch.setattr(graphs, "_restore", restore)
    monkeypatch.setattr(graphs, "timer_for", lambda device: Clock())  # pyright: ignore
    monkeypatch.setattr(graphs, "_apply", lambda settings: nullcontext())  # pyright: ignore
    factor = GraphTensor(spec(1), data=torch.tensor([0.5]).numpy().tobytes())
    code = GraphCode(SOURCE, (("factor", factor),))
    inputs = (GraphTensor(spec(4, seed=7)),)
    times = graphs.compare(job_of(code, inputs, (0,), limit_s=0.2))
    assert [len(row) for row in times.samples_ms] == [30, 30]
    assert times.disturbed is not alone
    assert held == [""]
    assert len(seen) == 60
    assert len(set(seen)) == 1


@pytest.mark.parametrize(("calm", "disturbed"), [(0, True), (1, True), (4, True), (5, False)])
def test_a_few_calm_turns_are_no_comparison(calm: int, *, disturbed: bool) -> None:
    turns = [((9.0, 1.0), True)] * 3 + [((2.0, 1.0), False)] * calm
    expected = [row for row, late in turns if disturbed or not late]
    assert graphs.counted(turns) == (expected, disturbed)


@pytest.mark.parametrize(("device", "uuid"), [("cpu", ""), ("cuda:1", "uuid of cuda:1")])
def test_graphs_are_measured_when_it_is_their_turn_on_their_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, uuid: str
) -> None:
    held: list[tuple[str, float]] = []

    @contextmanager
    def turn(uuid: str, wait_s: float, *, most_s: float) -> Generator[bool]:
        assert wait_s == TURN_WAIT_S
        held.append((uuid, most_s))
        yield True

    monkeypatch.setattr(graphs, "turn", turn)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid=f"uuid of {device}"),  # pyright: ignore
    )
    monkeypatch.setattr(graphs, "timer_for", lambda device: Clock())  # pyright: ignore
    monkeypatch.setattr(graphs, "_apply", lambda settings: nullcontext())  # pyright: ignore
    source = "def call(inputs):\n    return ()\n"
    graphs.compare(job_of(GraphCode(source), device=device, limit_s=0.2))
    assert held == [(uuid, TURN_WAIT_S)]  # its parent waits no longer, whatever the holder does


def test_graphs_whose_calls_take_too_long_are_not_run_again(
    monkeypatch: pytest.MonkeyPatch, inductor_cache: object
) -> None:
    monkeypatch.setattr(graphs, "_apply", lambda settings: nullcontext())  # pyright: ignore
    source = "import time\ndef call(inputs):\n    time.sleep(0.05)\n    return ()\n"
    times = graphs.compare(job_of(GraphCode(source), most_s=0.5))
    assert times.samples_ms == ()
    assert "16 calls of" in times.reason
    assert times.need_s >= 16 * 0.05


class Rig:
    """Two graphs without Inductor, which halve their input, and the timer with which they are compared.

    Attributes:
        calls: Which graph was called, in order.
        seen: The largest number of the input in each call.
        call_s: Returns the seconds of a call, by its number.
        late: The samples that other work prolongs, by number.
        now_s: The clock.
        held: The GPUs that were held, each with the longest wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, alone: bool = True) -> None:
        self.calls: list[int] = []
        self.seen: list[float] = []
        self.call_s: Callable[[int], float] = lambda _: 0.0
        self.now_s = 50.0
        self.late: Callable[[int], bool] = lambda _: False
        self.held: list[str] = []
        self.samples, self.disturbed, self._alone = 0, False, alone
        monkeypatch.setattr(graphs, "turn", self._turn)
        monkeypatch.setattr(graphs, "loaded", lambda code, _: self._graph(int(code.source)))  # pyright: ignore
        monkeypatch.setattr(graphs, "timer_for", lambda _: self)  # pyright: ignore
        monkeypatch.setattr(graphs, "_apply", lambda _: nullcontext())  # pyright: ignore
        monkeypatch.setattr(graphs.memory, "give_back", lambda drop: self.held.append("given back"))  # pyright: ignore
        monkeypatch.setattr(graphs, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    @contextmanager
    def _turn(self, uuid: str, wait_s: float, *, most_s: float) -> Generator[bool]:
        self.held.append(uuid)
        yield self._alone

    def _graph(self, number: int) -> Callable[[list[Any]], object]:
        def call(inputs: list[Any]) -> object:
            (x,) = inputs
            inputs.clear()
            self.now_s += self.call_s(len(self.calls))
            self.calls.append(number)
            self.seen.append(float(x.abs().max()))
            return (x.mul_(0.5),)

        return call

    def synchronize(self) -> None:
        """Nothing runs on a device."""

    def sample(self, call: Callable[[], object], repeats: int, *, cold: bool) -> float:
        call()
        self.disturbed = self.late(self.samples)
        self.samples += 1
        return 10.0 + self.calls[-1]

    def compare(self, limit_s: float = 1.0, most_s: float = 60.0) -> Any:
        codes = tuple(GraphCode(f"{number}") for number in range(2))
        inputs = (GraphTensor(spec(4, seed=7)),)
        job = GraphJob(codes, inputs, (0,), "cpu", LoadSettings(), limit_s, most_s)
        return graphs.compare(job)


FIRST_CALLS, FIRST_SAMPLES = 7, 2
"""Calls before the first turn: one, and of each graph two to warm up and a sample."""


def test_graphs_take_turns_from_either_end_on_the_first_values_of_what_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    times = rig.compare()
    assert times.samples_ms == ((10.0,) * 30, (11.0,) * 30)
    assert (times.disturbed, times.reason) == (False, "")
    assert rig.calls[FIRST_CALLS : FIRST_CALLS + 6] == [1, 0, 0, 1, 1, 0]
    assert set(rig.seen[FIRST_CALLS:]) == {rig.seen[0]}
    assert rig.held == ["", "given back"]


def test_a_turn_counts_unless_other_work_prolongs_a_call_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.late = lambda number: number in (FIRST_SAMPLES, FIRST_SAMPLES + 5)  # of turns 1 and 3
    times = rig.compare()
    assert [len(row) for row in times.samples_ms] == [28, 28]
    assert not times.disturbed
    beside = Rig(monkeypatch, alone=False).compare()
    assert ([len(row) for row in beside.samples_ms], beside.disturbed) == ([30, 30], True)


@pytest.mark.parametrize(
    ("limit_s", "most_s", "turns"),
    [(15.0, 15.0, 0), (0.5, 15.9, 0), (0.5, 16.0, 5), (16.0, 16.0, 5), (30.0, 30.0, 12)],
)
def test_no_turn_begins_after_the_limit_but_for_a_few(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, most_s: float, turns: int
) -> None:
    """Sixteen calls are the least; the first takes a second, those before the turns six more."""
    rig = Rig(monkeypatch)
    rig.call_s = lambda _: 1.0
    times = rig.compare(limit_s, most_s)
    assert [len(row) for row in times.samples_ms] == ([turns, turns] if turns else [])
    assert (f"16 calls of 1 s take longer than {most_s:.2g} s" in times.reason) is (turns == 0)
    assert times.need_s == (0.0 if turns else 16.0)
    assert times.run_s == (7.0 + 2 * turns if turns else 2.0)
    assert rig.held[-1] == "given back"


@pytest.mark.parametrize(("first_s", "later_s"), [(2.0, 0.5), (1.0, 3.0)])
def test_a_first_call_that_takes_longer_or_shorter_than_later_ones_prevents_no_comparison(
    monkeypatch: pytest.MonkeyPatch, first_s: float, later_s: float
) -> None:
    """The first call may create what later ones use: a primitive of oneDNN, the tiles of a Triton kernel."""
    rig = Rig(monkeypatch)
    rig.call_s = lambda number: later_s if number else first_s
    assert [len(row) for row in rig.compare(0.5, 16.0).samples_ms] == [FEWEST_TURNS] * 2
