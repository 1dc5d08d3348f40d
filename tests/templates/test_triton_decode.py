"""Products of a few rows: what is refused, which tiles come first, and that the kernels are right."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.problem import Problem, SizeClass
from inductor_plugin.template import TritonSource
from inductor_plugin.templates.triton_decode import TritonDecode, ranked
from inductor_plugin.templates.triton_product import PROGRAMS, Product, product_of
from tests import fake_cuda, triton_interpreter
from tests.cuda_lowering import Arg
from tests.templates.triton_cases import Case, check, lowered, matrix, problem

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F16 = torch.float16
TEMPLATE = TritonDecode()


@pytest.fixture(autouse=True)
def device(inductor_cache: Path) -> Iterator[None]:
    with fake_cuda.installed():
        yield


REJECTED: dict[str, tuple[Problem, str]] = {
    "many rows": (problem(m=33), "at most 32 rows, this has 33"),
    "a small B": (problem(n=32), "B[4096, 32] is too small"),
    "a short K": (problem(k=64), "B[64, 4096] is too small"),
    "a CPU": (
        problem(inputs=(matrix(4, 512, device="cpu"), matrix(512, 512))),
        "not all on a CUDA device",
    ),
    "float32": (
        problem(inputs=(matrix(4, 512, dtype="float32"), matrix(512, 512, dtype="float32"))),
        "they are float32 and float32",
    ),
    "two types": (
        problem(inputs=(matrix(4, 512, dtype="float16"), matrix(512, 512))),
        "they are float16 and bfloat16",
    ),
    "another result": (problem(output=matrix(4, 4096, dtype="float16")), "this asks for float16"),
    "no unit stride": (
        problem(inputs=(matrix(4, 512), matrix(512, 512, stride=(1024, 2)))),
        "the strides are (512, 1) and (1024, 2)",
    ),
    "an empty one": (problem(m=0), "a dimension is empty"),
    "an opaque one": (
        problem(inputs=(matrix(4, 512), matrix(512, 512, layout="mkldnn"))),
        "opaque layout",
    ),
    "a factor that is no number": (
        problem(
            op="addmm",
            inputs=(matrix(4, 512), matrix(4, 512), matrix(512, 512)),
            arguments=(("alpha", "s0"),),
        ),
        "must be numbers",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_it_cannot_run_is_refused_with_the_reason(name: str) -> None:
    given, reason = REJECTED[name]
    assert reason in (TEMPLATE.reject(given) or "")


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 17, 32])
def test_a_few_rows_are_taken(rows: int) -> None:
    assert TEMPLATE.reject(problem(m=rows)) is None
    found = TEMPLATE.candidates(problem(m=rows))
    assert 2 <= len(found) <= 5
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert isinstance(one.kernel, TritonSource)
        assert one.config["USE_DOT"] is (rows > 2) or one.config["BLOCK_M"] == 16
        assert one.config["BLOCK_M"] == (rows if not one.config["USE_DOT"] else 16 * -(-rows // 16))


def a_product(**facts: Any) -> Product:
    found = product_of(problem(**facts))
    assert isinstance(found, Product)
    return found


def test_tiles_that_fill_the_device_come_first() -> None:
    wide, narrow = a_product(n=65536), a_product(n=2048)
    assert ranked(wide)[0].programs(wide) >= PROGRAMS
    assert ranked(wide)[0].block_n == 128
    assert ranked(narrow)[0].block_n == min(one.block_n for one in ranked(narrow))


def test_each_order_of_b_has_tiles_along_its_unit_stride() -> None:
    by_n = ranked(a_product(m=1))
    by_k = ranked(a_product(m=1, inputs=(matrix(1, 4096), matrix(4096, 4096, stride=(1, 4096)))))
    assert max(one.block_n for one in by_k if not one.dot) < 32
    assert min(one.block_n for one in by_n if not one.dot) >= 64


def test_a_dynamic_size_is_never_taken_for_even() -> None:
    dynamic = problem(dynamic=(SizeClass(0, 1, 4096, 4096, 4096), SizeClass(1, 1, 1, 9999, 4096)))
    for one in TEMPLATE.candidates(dynamic):
        assert (one.config["EVEN_K"], one.config["EVEN_N"]) == (False, False)
    for one in TEMPLATE.candidates(problem()):
        assert (one.config["EVEN_K"], one.config["EVEN_N"]) == (True, True)


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def linear(c: torch.Tensor, a: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.addmm(c, a, w.t()),)


CASES: dict[str, Case] = {
    "one row": Case(mm, (Arg((1, 256), F16), Arg((256, 128), F16))),
    "one row, odd sizes": Case(mm, (Arg((1, 331), F16), Arg((331, 77), F16)), winner=1),
    "two rows of a linear layer": Case(
        linear, (Arg((130,), F16), Arg((2, 200), F16), Arg((130, 200), F16))
    ),
    "one row, padded strides": Case(
        mm, (Arg((1, 200), F16, (256, 1)), Arg((200, 96), F16, (1, 232)))
    ),
    "one row through tensor cores": Case(mm, (Arg((1, 256), F16), Arg((256, 130), F16)), winner=3),
    "seven rows": Case(mm, (Arg((7, 384), F16), Arg((384, 130), F16))),
    "32 rows, transposed": Case(
        lambda a, b: (torch.mm(a.t(), b.t()),), (Arg((160, 32), F16), Arg((96, 160), F16))
    ),
    "17 rows of a linear layer, scaled": Case(
        lambda c, a, w: (torch.addmm(c, a, w.t(), alpha=0.5, beta=2),),
        (Arg((70,), F16), Arg((17, 150), F16), Arg((70, 150), F16)),
        winner=2,
    ),
    "relu and a residual": Case(
        lambda c, a, w, r: (torch.relu(torch.addmm(c, a, w.t())) + r,),
        (Arg((96,), F16), Arg((5, 136), F16), Arg((96, 136), F16), Arg((5, 96), F16)),
    ),
    "a slice": Case(
        lambda a, b: (torch.mm(a[:, 3:150], b[5:152, :]),),
        (Arg((4, 160), F16), Arg((160, 72), F16)),
    ),
}


@pytest.mark.slow
def test_generated_kernels_compute_what_torch_computes() -> None:
    check(TEMPLATE, "triton_decode", CASES)


def test_a_prologue_fuses_into_the_load_of_b() -> None:
    made = lowered(
        TEMPLATE,
        "triton_decode",
        lambda a, b: (torch.mm(a, b.to(F16)),),
        (Arg((4, 4096), F16), Arg((4096, 2048), torch.int8)),
    )
    assert made.code.count(".run(") == 1
    assert "'arg_B': '*i8'" in made.code or "*i8" in made.code


def test_a_kernel_for_a_dynamic_number_of_rows_takes_it_as_an_argument() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(a, b))

    made = lowered(
        TEMPLATE,
        "triton_decode",
        function,
        (Arg((4, 512), F16), Arg((512, 256), F16)),
        dynamic=True,
    )
    assert re.search(r"def triton_tem_fused_\w+\(arg_A, arg_B, out_ptr\d, ks0", made.code)
    assert "// 16" in made.code.rsplit(".run(", 1)[1]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_default_kernels_compile_without_spilling(arch: int) -> None:
    for rows in (1, 16, 32):
        for weight in (Arg((4096, 4096), F16), Arg((4096, 4096), F16, (1, 4096))):
            made = lowered(TEMPLATE, "triton_decode", mm, (Arg((rows, 4096), F16), weight))
            for index, entry in enumerate(made.entries):
                usage = triton_interpreter.compiled(made.job(index).source, arch)
                assert usage.spills == 0, f"{entry.description}: {usage.spills} bytes spilled"
                assert usage.shared <= (163 if arch == 80 else 227) << 10, entry.description
