"""Split K: what is refused, how many parts there are, that it is right and always the same."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from inductor_plugin.problem import Problem, SizeClass
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton_product import PROGRAMS, Product, product_of
from inductor_plugin.templates.triton_split_k import Split, TritonSplitK, ranked
from tests import fake_cuda, triton_interpreter
from tests.cuda_lowering import Arg
from tests.templates.triton_cases import Case, check, lowered, matrix, problem

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F16 = torch.float16
TEMPLATE = TritonSplitK()


@pytest.fixture(autouse=True)
def device(inductor_cache: Path) -> Iterator[None]:
    with fake_cuda.installed():
        yield


REJECTED: dict[str, tuple[Problem, str]] = {
    "a short K": (problem(k=512), "K must be at least 1024"),
    "many tiles": (problem(m=4096, n=4096), "its 1024 tiles of 128x128 fill a device"),
    "a dynamic result": (
        problem(dynamic=(SizeClass(0, 0, 4, 4, 4),)),
        "the result's size is known only at run time",
    ),
    "float32": (
        problem(inputs=(matrix(4, 4096, dtype="float32"), matrix(4096, 64, dtype="float32"))),
        "they are float32 and float32",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_it_cannot_run_is_refused_with_the_reason(name: str) -> None:
    given, reason = REJECTED[name]
    assert reason in (TEMPLATE.reject(given) or "")


def test_a_dynamic_k_is_taken() -> None:
    dynamic = problem(
        dynamic=(SizeClass(0, 1, 2049, 4096, 4096), SizeClass(1, 0, 2049, 4096, 4096))
    )
    assert TEMPLATE.reject(dynamic) is None
    assert not any(one.config["EVEN_K"] for one in TEMPLATE.candidates(dynamic))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 8192), (64, 64, 65536), (512, 512, 16384)])
def test_the_parts_fill_the_device_and_are_not_too_short(m: int, n: int, k: int) -> None:
    product = product_of(problem(m, n, k))
    assert isinstance(product, Product)
    found = ranked(product)
    assert 2 <= len(found) <= 6
    for one in found:
        assert 1 < one.parts <= 32
        assert one.parts * one.tiles(product) <= PROGRAMS
        assert k // one.parts >= 2 * one.block_k


def test_scratch_memory_holds_all_parts_and_one_counter_a_tile() -> None:
    product = product_of(problem(40, 200, 4096))
    assert isinstance(product, Product)
    split = Split(16, 64, 64, 8, 3, 4)
    assert split.tiles(product) == 3 * 4
    assert split.scratch_bytes(product) == 12 * 8 * 16 * 64 * 4 + 12 * 4
    for one in TEMPLATE.candidates(problem(40, 200, 4096)):
        assert isinstance(one.kernel, TritonSource)
        assert one.kernel.scratch_bytes % 16 == 0


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


CASES: dict[str, Case] = {
    "a few rows": Case(mm, (Arg((5, 1100), F16), Arg((1100, 70), F16))),
    "a few columns": Case(mm, (Arg((70, 1024), F16), Arg((1024, 20), F16, (1, 1024)))),
    "a scaled bias": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((130,), F16), Arg((20, 1500), F16), Arg((130, 1500), F16)),
    ),
    "transposed, padded strides": Case(
        lambda a, b: (torch.mm(a.t(), b),),
        (Arg((1050, 40), F16, (64, 1)), Arg((1050, 33), F16, (48, 1))),
    ),
    "relu and a residual": Case(
        lambda a, b, r: (torch.relu(torch.mm(a, b)) + r,),
        (Arg((100, 1024), F16), Arg((1024, 100), F16), Arg((100, 100), F16)),
    ),
    "a slice": Case(
        lambda a, b: (torch.mm(a[:, 3:1030], b[5:1032, :]),),
        (Arg((4, 1040), F16), Arg((1040, 72), F16)),
        winner=1,
    ),
}


@pytest.mark.slow
def test_generated_kernels_compute_what_torch_computes_in_any_order() -> None:
    check(TEMPLATE, "triton_split_k", CASES)


def test_the_wrapper_zeroes_the_scratch_memory_and_the_benchmark_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = lowered(TEMPLATE, "triton_split_k", mm, (Arg((4, 4096), F16), Arg((4096, 512), F16)))
    (size,) = re.findall(r"workspace_\d+ = empty_strided_cuda\(\((\d+), \)", made.code)
    assert re.search(r"workspace_\d+\.zero_\(\)\n.*\n.*\.run\(", made.code)
    candidate: Any = made.entries[0].candidate
    request = pickle.loads(candidate.kernel.payload)
    assert (request.workspace_size, request.workspace_zero_fill) == (int(size), True)

    order: list[Any] = []
    stock = type(request).__mro__[1]
    monkeypatch.setattr(stock, "make_run_fn", lambda *_, out: lambda: order.append("run"))
    with mock.patch.object(torch.Tensor, "zero_", lambda t: order.append(t.nbytes)):
        call = request.make_run_fn(out=torch.empty(1))
        call()
        call()
    assert order == [int(size), "run"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_default_kernels_compile_without_spilling(arch: int) -> None:
    for rows in (1, 32, 64, 512):
        for weight in (Arg((8192, 512), F16), Arg((8192, 512), F16, (1, 8192))):
            made = lowered(TEMPLATE, "triton_split_k", mm, (Arg((rows, 8192), F16), weight))
            for index, entry in enumerate(made.entries):
                usage = triton_interpreter.compiled(made.job(index).source, arch)
                assert usage.spills == 0, f"{entry.description}: {usage.spills} bytes spilled"
                assert usage.shared <= (163 if arch == 80 else 227) << 10, entry.description
                assert re.search(r"atom\S*\.acq_rel\S*\.add", usage.ptx)
                assert "ld.global.cg" in usage.ptx
