"""Whole graphs in the benchmark worker: what is built for them, and their turns."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from inductor_plugin.device import BoundCall
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child import graphs
from inductor_plugin.worker.child.graphs import built
from inductor_plugin.worker.graph_job import (
    MKLDNN_CONVOLUTION,
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
    ],
)
def test_weights_are_packed_as_those_of_the_user(
    size: tuple[int, ...], packing: str, arguments: tuple[int | tuple[int, ...], ...]
) -> None:
    if packing == "mkl_linear" and not torch.backends.mkl.is_available():
        pytest.skip("this torch has no MKL")
    tensor = built(GraphTensor(spec(*size), packing=packing, packing_arguments=arguments), {})
    assert tensor.layout is not torch.strided
    assert packing == "mkl_linear" or tuple(tensor.size()) == size


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


@pytest.mark.parametrize("alone", [True, False])
def test_a_changed_input_is_restored_and_what_another_process_disturbs_is_known(
    monkeypatch: pytest.MonkeyPatch, inductor_cache: object, alone: bool
) -> None:
    held: list[str] = []

    @contextmanager
    def turn(uuid: str, wait_s: float) -> Generator[bool]:
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
    job = GraphJob(
        (code, code), (GraphTensor(spec(4, seed=7)),), (0,), "cpu", LoadSettings(), limit_s=0.2
    )
    times = graphs.compare(job)
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
    held: list[str] = []

    @contextmanager
    def turn(uuid: str, wait_s: float) -> Generator[bool]:
        held.append(uuid)
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
    graphs.compare(GraphJob((GraphCode(source),) * 2, (), (), device, LoadSettings(), limit_s=0.2))
    assert held == [uuid]


def test_graphs_whose_calls_take_too_long_are_not_run_again(
    monkeypatch: pytest.MonkeyPatch, inductor_cache: object
) -> None:
    monkeypatch.setattr(graphs, "_apply", lambda settings: nullcontext())  # pyright: ignore
    source = "import time\ndef call(inputs):\n    time.sleep(0.05)\n    return ()\n"
    job = GraphJob((GraphCode(source),) * 2, (), (), "cpu", LoadSettings(), limit_s=0.5)
    times = graphs.compare(job)
    assert times.samples_ms == ()
    assert "16 calls of" in times.reason
