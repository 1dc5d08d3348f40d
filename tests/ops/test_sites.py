"""Call sites compute what their operators compute, in C++ once their kernel is found; C functions are the kernels."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from inductor_plugin.ops import launch, sites
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.ops.operators import resolve
from tests.support.native import call_sites, host_kernels
from tests.support.native.echo import Echo, echoes, product
from tests.support.native.site_cases import CASES, KV, LSE, Q, is_bound, site_of
from tests.support.profiles import names_in, profile_of_the_host

__all__ = ["echoes", "product"]  # the fixtures
pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    host_kernels.install(monkeypatch, tmp_path / "none")
    with call_sites.on_the_host():
        yield


@pytest.fixture
def cached(product: Echo, tmp_path: Path) -> Echo:
    """Return a kernel in a cache: there is a fallback only for one that is not named by a path."""
    cache, library = tmp_path / "cache", Path(product.kernel.partition("@")[2])
    kernel = host_kernels.stored(cache, library, "echo")
    launch.add_kernel_folder(cache)
    path = launch.library_path(kernel.partition("@")[2])
    assert path is not None
    echo = Echo(path, GemmCall)
    echo.kernel = kernel
    return echo


SlowCalls = Callable[[], list[tuple[Any, ...]]]


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> SlowCalls:
    """Return a function that replaces the slow path from then on, and returns the list of its calls."""
    calls: list[tuple[Any, ...]] = []

    def slow(*operands: Any, out: Tensor) -> Tensor:
        calls.append(operands)
        return out

    def replaced() -> list[tuple[Any, ...]]:
        monkeypatch.setattr(sites._SiteCall, "__call__", slow)
        return calls

    return replaced


@pytest.mark.parametrize("name", CASES)
def test_a_site_makes_the_call_of_its_operator(name: str, echoes: dict[str, Echo]) -> None:
    echo = echoes["fmha" if CASES[name][0].startswith("fmha") else "mm"]
    echo.answer()
    call, operands, out = site_of(name, echo)
    runs = echo.runs
    assert call(*operands, None, out=out) is out  # by the operator, which finds the kernel
    by_operator = echo.call
    assert is_bound(call, *operands, out=out)
    assert echo.runs == runs + 2
    assert echo.call == by_operator


def test_a_bound_site_enters_no_python(product: Echo, slow_calls: SlowCalls) -> None:
    call, operands, out = site_of("mm", product)
    call(*operands, None, out=out)
    slow = slow_calls()
    call(*operands, None, out=out)
    parameters = [nn.Parameter(operand, requires_grad=False) for operand in operands]
    call(*parameters, None, out=out)
    assert slow == []


OPENED: list[str] | None = None
"""Files opened by this process while it is a list."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED is not None:
        OPENED.append(str(arguments[0]))


@pytest.mark.parametrize("name", ["mm", "epilogue", "attention"])
def test_a_bound_call_allocates_nothing_and_opens_no_file(
    name: str, echoes: dict[str, Echo], monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = echoes["fmha" if name == "attention" else "mm"]
    echo.answer()
    call, operands, out = site_of(name, echo)
    for _ in range(3):
        call(*operands, None, out=out)
    sys.addaudithook(_watch)  # there is no way to remove one
    monkeypatch.setattr(sys.modules[__name__], "OPENED", [])
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for _ in range(1000):
            call(*operands, None, out=out)
        blocks = sys.getallocatedblocks() - before
    finally:
        gc.enable()
    assert OPENED == []
    assert blocks < 10


def test_a_workspace_is_allocated_where_none_is_given(product: Echo) -> None:
    call, operands, out = site_of("mm", product)
    call(*operands, None, out=out)
    product.answer(needed=128)
    call(*operands, None, out=out)
    assert product.call["workspace_bytes"] == 128
    memory = torch.empty(256, dtype=torch.uint8)
    call(*operands, memory, out=out)
    assert (product.call["workspace"], product.call["workspace_bytes"]) == (memory.data_ptr(), 256)


@pytest.mark.parametrize("name", ["mm", "attention"])
def test_another_workspace_is_allocated_where_the_given_begins_elsewhere(
    name: str, echoes: dict[str, Echo]
) -> None:
    """The pools of Inductor's memory planning begin at multiples of 64 bytes, which attention cannot use."""
    echo = echoes["fmha" if name == "attention" else "mm"]
    echo.answer(needed=128)
    call, operands, out = site_of(name, echo)
    memory = torch.empty(512, dtype=torch.uint8)
    begin = -memory.data_ptr() % 128 + (64 if name == "attention" else 32)
    for _ in range(3):  # the operator, then the bound kernel
        call(*operands, memory[begin : begin + 128], out=out)
        assert echo.call["workspace_bytes"] == 128
        assert not memory.data_ptr() <= echo.call["workspace"] < memory.data_ptr() + 512
    assert not any(symbol in echo.kernel for symbol in launch._warned)


@pytest.mark.parametrize(
    "workspace",
    [
        torch.empty(64),
        torch.empty(256, dtype=torch.uint8)[::2],
    ],
    ids=["float", "gaps"],
)
def test_a_workspace_that_cannot_be_one_is_the_operators_error(
    product: Echo, workspace: Tensor
) -> None:
    call, operands, out = site_of("mm", product)
    call(*operands, None, out=out)
    with pytest.raises(Exception, match="the workspace must"):
        call(*operands, workspace, out=out)


def test_other_threads_run_while_a_kernel_waits(product: Echo) -> None:
    """A launch waits where the device's queue is full, maybe for what another thread has yet to launch."""
    call, operands, out = site_of("mm", product)
    call(*operands, None, out=out)
    runs = product.runs
    product.set_gate(0)
    started = threading.Event()

    def other() -> None:
        started.set()
        time.sleep(0.1)
        product.set_gate(1)

    thread = threading.Thread(target=other)
    thread.start()
    started.wait()
    call(*operands, None, out=out)
    thread.join()
    assert product.runs == runs + 1  # it has not ended with the limit of its wait


def test_another_kernel_is_bound_without_what_the_last_has_kept(product: Echo) -> None:
    call, operands, out = site_of("mm", product)
    call(*operands, None, out=out)
    call(*operands, None, out=out)
    forgotten = product.forgotten
    call.__self__.bind(0, -1, 0)  # pyright: ignore[reportFunctionMemberAccess]
    assert product.forgotten == forgotten + 1


def test_what_a_kernel_refuses_is_computed_by_the_library(cached: Echo) -> None:
    call = sites.site("inductor_plugin::cutlass_mm.out", (cached.kernel, "tt", 1, 0, 1))
    a, b, out = torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)
    call(a, b, None, out=out)
    assert is_bound(call, a, b, out=out)
    cached.answer(status=2)
    with pytest.warns(RuntimeWarning, match="the library product is computed instead"):
        call(a, b, None, out=out)
    assert torch.equal(out, a @ b)
    cached.answer()
    runs = cached.runs
    call(a, b, None, out=out)
    assert cached.runs == runs + 1  # other operands may suit it


def test_a_kernel_that_does_not_start_is_not_tried_again(cached: Echo) -> None:
    call = sites.site("inductor_plugin::cutlass_mm.out", (cached.kernel, "tt", 1, 0, 1))
    a, b, out = torch.randn(5, 7), torch.randn(7, 6), torch.empty(5, 6)
    call(a, b, None, out=out)
    cached.answer(status=7)
    with pytest.warns(RuntimeWarning, match="did not start"):
        call(a, b, None, out=out)
    assert not is_bound(call, a, b, out=out)
    cached.answer()
    runs = cached.runs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(a, b, None, out=out)
    assert torch.equal(out, a @ b)
    assert cached.runs == runs


@pytest.mark.parametrize("name", ["mm", "attention"])
def test_an_output_without_elements_needs_no_kernel(name: str, echoes: dict[str, Echo]) -> None:
    echo = echoes["fmha" if name == "attention" else "mm"]
    echo.answer()
    call, operands, out = site_of(name, echo)
    call(*operands, None, out=out)
    runs = echo.runs
    if name == "mm":
        call(torch.randn(0, 7), operands[1], None, out=torch.empty(0, 6))
    else:
        call(Q[:0], KV[:0], KV[:0], LSE[:0], None, out=torch.empty_like(Q[:0]))
    assert echo.runs == runs


def test_an_unordered_sum_is_left_out_where_order_matters(
    echoes: dict[str, Echo], slow_calls: SlowCalls
) -> None:
    echoes["fmha"].answer()
    call, operands, out = site_of("attention, backward", echoes["fmha"])
    call(*operands, None, out=out)
    slow = slow_calls()
    torch.use_deterministic_algorithms(True)
    try:
        call(*operands, None, out=out)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(slow) == 1


class Marked(Tensor):
    """A subclass, whose operators may mean something else."""


def test_a_subclass_goes_through_the_dispatcher(product: Echo, slow_calls: SlowCalls) -> None:
    call, (a, b), out = site_of("mm", product)
    call(a, b, None, out=out)
    slow = slow_calls()
    call(a.as_subclass(Marked), b, None, out=out)
    assert len(slow) == 1


def test_what_a_kernel_keeps_is_freed_with_its_site(product: Echo) -> None:
    gc.collect()  # those of earlier tests
    call, operands, out = site_of("mm", product)
    call(*operands, None, out=out)
    call(*operands, None, out=out)
    forgotten = product.forgotten
    del call
    gc.collect()
    assert product.forgotten == forgotten + 1


def test_a_site_wants_its_output_by_name(product: Echo) -> None:
    call, operands, out = site_of("mm", product)
    with pytest.raises(TypeError, match="out="):
        call(*operands, None, out)


@pytest.mark.parametrize("name", CASES)
def test_torch_finds_nothing_wrong_with_its_operator(name: str, echoes: dict[str, Echo]) -> None:
    op, arguments, (reads, _), operands, out = CASES[name]
    echo = echoes["fmha" if op.startswith("fmha") else "mm"]
    echo.answer()
    inputs: tuple[Any, ...] = (*operands, echo.kernel, *arguments)
    if op == "mm_epilogue":
        read, aux = list(operands[2 : 2 + reads]), list(operands[2 + reads :])
        inputs = (*operands[:2], read, echo.kernel, *arguments, aux)
    checks = torch.library.opcheck(
        resolve(f"inductor_plugin::cutlass_{op}.out"), inputs, {"out": out}
    )
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("in_cpp", [True, False])
@pytest.mark.parametrize("name", ["mm", "attention"])
def test_a_profile_names_the_kernel_of_each_call(
    name: str, in_cpp: bool, echoes: dict[str, Echo]
) -> None:
    echo = echoes["fmha" if name == "attention" else "mm"]
    echo.answer()
    with (
        contextlib.nullcontext()
        if in_cpp
        else mock.patch.object(sites.library, "sites", return_value=None)
    ):
        call, operands, out = site_of(name, echo)
    call(*operands, None, out=out)  # now it is bound
    with profile_of_the_host() as profile:
        call(*operands, None, out=out)
        call(*operands, None, out=out)
    call(*operands, None, out=out)
    ranges = [name for name in names_in(profile) if name.endswith(echo.kernel)]
    assert ranges == [f"inductor_plugin::cutlass_{CASES[name][0]} {echo.kernel}"] * 2


def test_an_error_passes_through_the_range_of_its_call(product: Echo) -> None:
    call, (a, b), out = site_of("mm", product)
    with profile_of_the_host() as profile:
        with pytest.raises(Exception, match="the workspace must"):
            call(a, b, torch.empty(4), out=out)
        call(a, b, None, out=out)
    assert sum(name.endswith(product.kernel) for name in names_in(profile)) == 2


@pytest.mark.parametrize("name", ["mm", "epilogue", "attention"])
def test_without_the_library_a_site_is_its_operator(name: str, echoes: dict[str, Echo]) -> None:
    echo = echoes["fmha" if name == "attention" else "mm"]
    echo.answer()
    with mock.patch.object(sites.library, "sites", return_value=None):
        call, operands, out = site_of(name, echo)
    runs = echo.runs
    assert call(*operands, None, out=out) is out
    assert isinstance(call, sites._SiteCall)
    assert echo.runs == runs + 1


@pytest.mark.parametrize("name", CASES)
def test_a_worker_calls_a_site_with_the_arguments_of_the_operator(
    name: str, echoes: dict[str, Echo]
) -> None:
    op, arguments, (reads, _), operands, out = CASES[name]
    echo = echoes["fmha" if op.startswith("fmha") else "mm"]
    echo.answer()
    call, _, _ = site_of(name, echo)
    call(*operands, None, out=out)
    expected = echo.call
    inputs: tuple[Any, ...] = (*operands, echo.kernel, *arguments)
    if op == "mm_epilogue":
        lists = list(operands[2 : 2 + reads]), list(operands[2 + reads :])
        inputs = (*operands[:2], lists[0], echo.kernel, *arguments, lists[1])
    bound = sites.bound(f"inductor_plugin::cutlass_{op}.out", inputs, out)
    bound()
    bound()
    assert echo.call == expected
