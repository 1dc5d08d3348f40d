"""The arguments of a generated kernel are those of the thread that generates it."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch._inductor.codegen.triton import TritonKernel

from inductor_plugin.inductor import lowering_hooks
from inductor_plugin.inductor.fusion.nodes import generated

pytestmark = pytest.mark.compat


class GeneratedKernel:
    """A kernel with a single argument."""

    def __init__(self, name: str) -> None:
        self.args, self._name = self, name

    def python_argdefs(self) -> tuple[object, list[str], list[object], object]:
        return None, [self._name], [None], None

    def kernel_benchmark_extra_args(self) -> list[str]:
        return []


class MeetingScheduler:
    """Generates a kernel in each of two threads at the same time."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)

    def generate_kernel_code_from_nodes(
        self, nodes: Sequence[str], *, benchmark_kernel: bool
    ) -> str:
        untyped: Any = TritonKernel
        self._barrier.wait(10)
        untyped.codegen_kernel_benchmark(GeneratedKernel(nodes[0]), None)
        self._barrier.wait(10)
        return f"{nodes[0]} {benchmark_kernel}"


def stock(_kernel: Any, _num_gb: Any) -> None: ...


@pytest.fixture(autouse=True)
def placed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    lowering_hooks.uninstall()
    monkeypatch.setattr(TritonKernel, "codegen_kernel_benchmark", stock)
    yield
    lowering_hooks.uninstall()


def test_each_thread_has_the_arguments_of_its_own_kernel() -> None:
    scheduler = MeetingScheduler()
    lowering_hooks.install()
    with ThreadPoolExecutor(2) as pool:
        kernels = [pool.submit(generated, scheduler, [name]) for name in ("buf0", "buf1")]
        first, second = (kernel.result(20) for kernel in kernels)
    assert (first.arguments, second.arguments) == (("buf0",), ("buf1",))
    lowering_hooks.uninstall()
    assert vars(TritonKernel)["codegen_kernel_benchmark"] is stock


def test_what_was_disabled_meanwhile_is_not_taken_for_a_kernel_without_arguments() -> None:
    class Disabling:
        def generate_kernel_code_from_nodes(self, *_nodes: Any, **_options: Any) -> str:
            lowering_hooks.uninstall()
            return "source"

    lowering_hooks.install()
    with pytest.raises(RuntimeError, match="disabled"):
        generated(Disabling(), ["buf0"])
