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
from inductor_plugin.templates.triton.decode import (
    TritonDecode,
    candidate,
    dots_of,
    vectors_of,
)
from inductor_plugin.templates.triton.product import Product, product_of
from tests.support import gpu
from tests.support.lowering import Arg
from tests.support.triton import (
    Case,
    Every,
    batch,
    check,
    compiled,
    epilogues,
    lowered,
    matrix,
    problem,
)

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F16 = torch.float16
TEMPLATE = TritonDecode()


@pytest.fixture(autouse=True)
def device(inductor_cache: Path) -> Iterator[None]:
    with gpu.installed():
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
        "B needs a unit stride, its strides are (1024, 2)",
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
    assert 2 <= len(found) <= 6
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert isinstance(one.kernel, TritonSource)
        assert one.config["USE_DOT"] is (rows > 2) or one.config["BLOCK_M"] == 16
        assert one.config["BLOCK_M"] == (rows if not one.config["USE_DOT"] else 16 * -(-rows // 16))


def a_product(**facts: Any) -> Product:
    found = product_of(problem(**facts))
    assert isinstance(found, Product)
    return found


def test_wide_tiles_come_first_where_they_fill_the_device_and_narrow_ones_else() -> None:
    wide, narrow = (TEMPLATE.candidates(problem(n=n))[0].config["BLOCK_N"] for n in (65536, 2048))
    assert (wide, narrow) == (64, 32)


def test_each_order_of_b_has_tiles_along_its_unit_stride() -> None:
    by_n = a_product(m=1)
    by_k = a_product(m=1, inputs=(matrix(1, 4096), matrix(4096, 4096, stride=(1, 4096))))
    assert max(one.n for one in vectors_of(by_k)) < 32
    assert min(one.n for one in vectors_of(by_n)) >= 64
    assert vectors_of(a_product(m=3)) == []


def test_products_in_a_batch_are_taken() -> None:
    many = batch(24, 4, 512, 128)
    assert TEMPLATE.reject(many) is None
    assert all(one.config["BATCHED"] for one in TEMPLATE.candidates(many))
    assert not any(one.config["BATCHED"] for one in TEMPLATE.candidates(problem()))
    assert "at most 32 rows" in (TEMPLATE.reject(batch(24, 64, 512, 128)) or "")


def test_a_dynamic_size_is_never_taken_for_even() -> None:
    dynamic = problem(dynamic=(SizeClass(0, 1, 4096, 4096, 4096), SizeClass(1, 1, 1, 9999, 4096)))
    for one in TEMPLATE.candidates(dynamic):
        assert (one.config["EVEN_K"], one.config["EVEN_N"]) == (False, False)
    for one in TEMPLATE.candidates(problem()):
        assert (one.config["EVEN_K"], one.config["EVEN_N"]) == (True, True)


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def bmm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.bmm(a, b),)


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
    "bfloat16": Case(mm, (Arg((9, 300)), Arg((300, 70))), tolerance=1e-2),
    "float32 written": Case(
        lambda a, b: (torch.ops.aten.mm.dtype(a, b, torch.float32),),
        (Arg((5, 256), F16), Arg((256, 96), F16)),
        reference=mm,
    ),
    "a batch of rows": Case(bmm, (Arg((3, 1, 256), F16), Arg((3, 256, 77), F16))),
    "a batch, odd sizes": Case(bmm, (Arg((3, 19, 171), F16), Arg((3, 171, 77), F16)), winner=1),
    "a batch, transposed, padded": Case(
        lambda a, b: (torch.bmm(a.transpose(1, 2), b.transpose(1, 2)),),
        (Arg((2, 160, 5), F16, (1280, 8, 1)), Arg((2, 96, 160), F16, (16400, 168, 1))),
    ),
    "a batch of heads side by side": Case(
        bmm, (Arg((4, 3, 128), F16, (128, 512, 1)), Arg((4, 128, 70), F16, (128, 1, 512)))
    ),
    "a batch that shares B": Case(
        lambda a, b: (torch.bmm(a, b.expand(3, 160, 72)),),
        (Arg((3, 4, 160), F16), Arg((1, 160, 72), F16)),
    ),
    "a batch with a scaled bias": Case(
        lambda c, a, b: (torch.relu(torch.baddbmm(c, a, b, alpha=0.5, beta=2)),),
        (Arg((2, 1, 70), F16), Arg((2, 7, 150), F16), Arg((2, 150, 70), F16)),
    ),
}
BEHIND = epilogues(torch.mm, (Arg((6, 200), F16), Arg((200, 90), F16)), (6, 90))
BEHIND_A_BATCH = epilogues(torch.bmm, (Arg((2, 2, 200), F16), Arg((2, 200, 90), F16)), (2, 2, 90))


@pytest.mark.slow
def test_generated_kernels_compute_what_torch_computes() -> None:
    check(TEMPLATE, "triton_decode", CASES)


@pytest.mark.slow
def test_epilogues_fuse_and_are_right() -> None:
    check(TEMPLATE, "triton_decode", BEHIND)
    check(TEMPLATE, "triton_decode", BEHIND_A_BATCH)


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


WEIGHTS = (Arg((4096, 4096), F16), Arg((4096, 4096), F16, (1, 4096)))


def test_default_kernels_compile_without_spilling() -> None:
    for rows, arguments, function in (
        (1, WEIGHTS[1], mm),
        (16, WEIGHTS[0], mm),
        (4, Arg((8, 4096, 512), F16), bmm),
    ):
        a = Arg((*arguments.size[:-2], rows, 4096), F16)
        made = lowered(TEMPLATE, "triton_decode", function, (a, arguments))
        for arch in (80, 90, 100):
            compiled(made, arch, [0])


def all_kernels(given: Problem) -> list[Any]:
    product = product_of(given)
    assert isinstance(product, Product)
    return [candidate(product, one) for one in (*vectors_of(product), *dots_of(product))]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_all_tiles_compile_without_spilling(arch: int) -> None:
    counts: list[int] = []
    for rows in (1, 2, 16, 32):
        for weight in WEIGHTS:
            arguments = (Arg((rows, 4096), F16), weight)
            made = lowered(Every(TEMPLATE, all_kernels), "triton_decode", mm, arguments)
            counts.append(len(compiled(made, arch)))
    assert counts == [8, 9, 8, 9, 6, 6, 6, 6]
