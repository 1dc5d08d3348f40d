"""The kernels of a fusion as one candidate, on the tensors that they share."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.inductor.fusion import offers
from inductor_plugin.inductor.fusion.offers import FusionOperands, StridedRead
from inductor_plugin.kernels.call import (
    BufferRef,
    ExternKernel,
    ModuleKernel,
    SequenceStep,
    TensorSpec,
)
from inductor_plugin.tuning.task import TaskCandidate
from tests.support.fakes.tasks import cpp_build, entry, offer

FIRST, SECOND = ModuleKernel("first"), ModuleKernel("second")


def spec(seed: int, columns: int = 8) -> TensorSpec:
    return TensorSpec((4, columns), (columns, 1), "float32", "cuda:0", seed=seed)


A, B, C = spec(1), spec(2), spec(3)
WRITTEN = {"product": spec(0), "beside": spec(0, 16), "out": spec(0, 32)}


class GeneratedNodes:
    """A node of the scheduler, or several that are fused."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_nodes(self) -> list[str]:
        return [*self.names]


def fusion_of(**facts: Any) -> Any:
    """Return a fusion of a product with what reads it, which Inductor generates as kernels named by their nodes."""
    swapped: list[Any] = []

    @contextmanager
    def swap(choice: Any) -> Generator[None, None, None]:
        swapped.append(choice)
        yield
        swapped.append(None)

    return SimpleNamespace(
        written=WRITTEN,
        call=SimpleNamespace(timeout_s=7.0, compile_timeout_s=9.0),
        scheduler=None,
        first=GeneratedNodes("product"),
        second=GeneratedNodes("epilogue"),
        product=SimpleNamespace(get_name=lambda: "product", swap_as_triton_caller=swap),
        prepared=lambda generated: (ModuleKernel(generated), [A, "out"]),
        swapped=swapped,
        **facts,
    )


def test_what_one_kernel_writes_and_another_reads_is_scratch_memory() -> None:
    operands = FusionOperands(fusion_of())
    operands.call(ExternKernel("mm"), [A, B], "product")
    operands.call(FIRST, ["product", C, A, 5, "out"])
    candidate = operands.candidate("both")
    assert (candidate.inputs, candidate.output) == ((A, B, C), WRITTEN["out"])
    kernel: Any = candidate.kernel
    # Nobody uses the other buffer.
    assert (kernel.scratch, kernel.names) == ((WRITTEN["product"],), ("product",))
    assert kernel.parts == (
        SequenceStep(ExternKernel("mm"), (BufferRef(0), BufferRef(1)), BufferRef(3)),
        SequenceStep(FIRST, (BufferRef(3), BufferRef(2), BufferRef(0), 5, BufferRef(4))),
    )
    assert candidate.timeout_s == 7.0


def test_each_buffer_that_is_written_has_its_own_place() -> None:
    operands = FusionOperands(fusion_of())
    operands.call(FIRST, [A, "beside", "product"])
    operands.call(SECOND, ["beside", "product", "row", "out"])
    kernel: Any = operands.candidate("both").kernel
    assert kernel.names == ("product", "beside")
    assert kernel.parts[0].arguments == (BufferRef(0), BufferRef(2), BufferRef(1))
    assert kernel.parts[1].arguments == (BufferRef(2), BufferRef(1), "row", BufferRef(3))


def test_a_read_with_strides_of_its_own_is_a_view_of_its_tensor() -> None:
    operands = FusionOperands(fusion_of())
    read = StridedRead(C, (4, 1), (4, 1), (0, 1), 2)
    operands.call(FIRST, [A, (read, B)], "out")
    candidate = operands.candidate("one")
    kernel: Any = candidate.kernel
    assert candidate.inputs == (A, C, B)
    view = BufferRef(1, (4, 1), (0, 1), 2)
    assert kernel.parts == (
        SequenceStep(FIRST, (BufferRef(0), (view, BufferRef(2))), BufferRef(3)),
    )
    assert kernel.scratch == ()


def unfused(fusion: Any, settled: str | None, bare: TaskCandidate) -> TaskCandidate:
    identity = offer("apart").identity
    alone: Any = SimpleNamespace(entry=lambda: bare)
    return offers._unfused(fusion, identity, settled, "its kernel", alone)


def test_two_kernels_are_the_product_as_it_was_measured_and_what_inductor_generates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offers, "generated", lambda _scheduler, nodes: " ".join(nodes))
    build = cpp_build("kernel")
    product = entry("product", build=build)
    candidate = SimpleNamespace(kernel=ExternKernel("mm"), inputs=(A, B))
    product.bench = lambda library, _symbol: candidate if library == "lib" else None  # pyright: ignore
    fusion = fusion_of()
    both = unfused(fusion, None, product)
    assert both.build is build
    assert both.bench is not None
    kernel: Any = both.bench("lib", "").kernel
    assert [part.kernel for part in kernel.parts] == [ExternKernel("mm"), ModuleKernel("epilogue")]
    assert kernel.parts[0].out == BufferRef(2)
    assert fusion.swapped == []
    product.bench = None  # its operands cannot be sent
    nothing = unfused(fusion, None, product)
    assert (nothing.bench, nothing.build) == (None, None)


def test_where_a_fusion_is_settled_the_product_is_generated_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fusion = fusion_of()
    chosen: list[Any] = []

    def generated(_scheduler: Any, nodes: list[str]) -> str:
        chosen.append(fusion.swapped[-1] if fusion.swapped else None)
        return " ".join(nodes)

    monkeypatch.setattr(offers, "generated", generated)
    both = unfused(fusion, "a kernel", entry("product"))
    assert both.bench is not None
    kernel: Any = both.bench("", "").kernel
    assert [part.kernel for part in kernel.parts] == [
        ModuleKernel("product"),
        ModuleKernel("epilogue"),
    ]
    assert chosen == [None, "its kernel"]


def test_a_fused_kernel_is_another_candidate_for_another_epilogue_or_kernel() -> None:
    estimate: Any = None
    choice = SimpleNamespace(name="triton_mm_17", description="BLOCK_M=64")

    def identity(epilogue: str, name: str = "triton_mm-1") -> Any:
        fusion: Any = SimpleNamespace(problem=SimpleNamespace(epilogue=epilogue))
        return offers.fused_offer(fusion, name, choice, estimate).identity

    relu = identity("relu-1")
    assert relu == identity("relu-1")
    assert relu.candidate_id.startswith("fused.triton_mm-")
    assert (relu.name, relu.kind, relu.library) == ("fused.triton_mm", "triton", False)
    others = {identity("relu-2").candidate_id, identity("relu-1", "triton_mm-2").candidate_id}
    assert len({relu.candidate_id, *others}) == 3
