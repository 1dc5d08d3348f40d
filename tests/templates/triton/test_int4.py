"""Products with 4-bit weights: what is refused, and that ATen's packing is read right."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.inductor import int4 as lowering_int4
from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.ops import int4 as int4_op
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.templates.triton.int4 import (
    TritonInt4,
    Weighted,
    candidate,
    tiles_of,
    weighted_of,
)
from inductor_plugin.worker.child.inductor import extern_function
from tests.support import gpu
from tests.support.lowering import BF16, Arg, Lab, library_first
from tests.support.triton import (
    H100,
    Case,
    Every,
    check,
    compiled,
    epilogues,
    lowered,
    matrix,
    offered,
)

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

TEMPLATE = TritonInt4()
NAME = "triton_int4"


@pytest.fixture(autouse=True)
def device(inductor_cache: Path) -> Iterator[None]:
    with gpu.installed():
        yield


def weight(n: int = 4096, k: int = 4096, words: int = 4, **facts: Any) -> Operand:
    size = (n // 8, k // (32 * words), 32, words)
    stride = (size[1] * 32 * words, 32 * words, words, 1)
    return replace(Operand(size, stride, "int32", "cuda"), **facts)


def problem(a: Operand | None = None, b: Operand | None = None, **facts: Any) -> Problem:
    a, b = a or matrix(4, 4096), b or weight()
    n = b.size[0] * 8
    scales = Operand((a.size[1] // 64, n, 2), (2 * n, 2, 1), "bfloat16", "cuda")
    given = Problem(
        int4_op.NAME,
        (a, b, scales),
        matrix(a.size[0], n),
        arguments=(("group", "64"),),
        target=H100,
    )
    return replace(given, **facts)


REJECTED: dict[str, tuple[Problem, str]] = {
    "many rows": (problem(matrix(65, 4096)), "at most 64 rows, this has 65"),
    "float16": (problem(matrix(4, 4096, dtype="float16")), "they are float16 and bfloat16"),
    "another group": (problem(arguments=(("group", "48"),)), "this one 48"),
    "groups of another length": (problem(arguments=(("group", "128"),)), "not one pair a group"),
    "another K": (problem(matrix(4, 2048)), "does not hold 2048 rows"),
    "bytes": (problem(b=weight(dtype="uint8")), "B must be int32, it is uint8"),
    "a transposed weight": (problem(b=weight(stride=(1, 1, 1, 1))), "B must be contiguous"),
    "a dynamic K": (problem(dynamic=(SizeClass(0, 1, 9, 16, 16),)), "known only at run time"),
    "a CPU": (problem(matrix(4, 4096, device="cpu")), "not all on a CUDA device"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_it_cannot_run_is_refused_with_the_reason(name: str) -> None:
    given, reason = REJECTED[name]
    assert reason in (TEMPLATE.reject(given) or "")


def test_a_dynamic_number_of_rows_is_taken() -> None:
    assert TEMPLATE.reject(problem(dynamic=(SizeClass(0, 0, 4, 4, 4),))) is None


def test_wide_tiles_come_first_where_they_fill_the_device_and_narrow_ones_else() -> None:
    wide, narrow = (
        [one.config["BLOCK_N"] for one in TEMPLATE.candidates(problem(b=weight(n)))]
        for n in (65536, 1024)
    )
    assert wide[0] == 64
    assert narrow[0] == 16


def int4(group: int) -> Any:
    def function(a: Any, b: Any, scales: Any) -> tuple[torch.Tensor]:
        return (torch.ops.aten._weight_int4pack_mm(a, b, group, scales),)

    return function


def unpacked(words: torch.Tensor) -> torch.Tensor:
    """Return the values [n, k] of packed words, as int4mm.cu writes each lane's."""
    tiles, chunks, lanes, inner = words.shape
    found = torch.full((tiles * 8, chunks * inner * 32), -1)
    for lane in range(lanes):
        for i in range(inner):
            # In bytes of two values, the first of them the high half.
            base = i * 16 + lane % 4
            for byte, k in enumerate((base, base + 4, base + 8, base + 12)):
                for half, shift in ((0, 4 * byte), (1, 16 + 4 * byte)):
                    nibbles = (words[:, :, lane, i] >> shift) & 15
                    found[lane // 4 :: 8, 2 * k + half :: inner * 32] = nibbles.long()
    assert (found >= 0).all()
    return found


def reference(group: int) -> Any:
    def function(a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor]:
        scale, zero = (scales[:, :, i].t().repeat_interleave(group, 1) for i in (0, 1))
        dense = ((unpacked(b) - 8) * scale + zero).to(BF16).float()
        return (a @ dense.t(),)

    return function


def given(m: int, n: int, k: int, words: int, group: int) -> tuple[Arg, ...]:
    packed = Arg((n // 8, k // (32 * words), 32, words), torch.int32)
    return Arg((m, k), BF16), packed, Arg((k // group, n, 2), BF16)


CASES: dict[str, Case] = {
    "eight inner tiles": Case(int4(64), given(3, 64, 256, 4, 64), 0, reference(64), 1e-2),
    "four inner tiles": Case(int4(32), given(16, 72, 192, 2, 32), 1, reference(32), 1e-2),
    "two inner tiles": Case(int4(128), given(20, 40, 384, 1, 128), 2, reference(128), 1e-2),
    "a long group and relu": Case(
        lambda a, b, s: (torch.relu(int4(256)(a, b, s)[0]),),
        given(33, 136, 512, 4, 256),
        3,
        lambda a, b, s: (torch.relu(reference(256)(a, b, s)[0]),),
        1e-2,
    ),
    "padded rows": Case(
        int4(32),
        (Arg((5, 192), BF16, (200, 1)), *given(5, 72, 192, 2, 32)[1:]),
        0,
        reference(32),
        1e-2,
    ),
}
BEHIND = epilogues(
    lambda *given: int4(64)(*given)[0],
    given(6, 72, 256, 4, 64),
    (6, 72),
    lambda *given: reference(64)(*given)[0],
)


@pytest.mark.slow
def test_generated_kernels_compute_what_the_packed_weight_means() -> None:
    check(TEMPLATE, NAME, CASES)


@pytest.mark.slow
def test_epilogues_fuse_and_are_right() -> None:
    check(TEMPLATE, NAME, BEHIND)


def test_where_the_library_is_faster_its_operator_is_called(cache_dir: Path) -> None:
    with offered(TEMPLATE), Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(int4(64), *given(4, 512, 1024, 4, 64))
    assert "extern_kernels.weight_int4pack_mm(a_1, b_1, scales_1, group=64)" in code
    (library,) = [one.candidate for one in lab.entries("extern")]
    assert library is not None
    kernel = library.kernel
    assert isinstance(kernel, ExternKernel)
    assert extern_function(kernel.name) is int4_op.weight_int4pack_mm
    assert kernel.kwargs == (("group", 64),)
    assert lab.record()["problem"]["op"] == int4_op.NAME


def test_outside_the_plugins_scope_aten_is_called_as_ever(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering_int4, "active_config", lambda: None)
    a, b, scales = given(4, 512, 1024, 4, 64)
    with offered(TEMPLATE), Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(
            lambda a, b, s: int4(64)(a.t().relu(), b, s), replace(a, size=a.size[::-1]), b, scales
        )
    assert lab.tasks == []
    assert "torch.ops.aten._weight_int4pack_mm.default(buf0, b_1, 64, s_1)" in code
    assert "buf0 = empty_strided_cuda((4, 1024), (1024, 1)" in code


def test_uninstalled_it_leaves_the_operator_to_inductor() -> None:
    lowering_int4.install()
    assert lowering_int4.installed()
    lowering_int4.uninstall()
    assert not lowering_int4.installed()


def test_default_kernels_compile_without_spilling() -> None:
    made = lowered(TEMPLATE, NAME, int4(64), given(16, 4096, 4096, 4, 64))
    for arch in (80, 90, 100):
        compiled(made, arch, [0])


def all_kernels(problem: Problem) -> list[Any]:
    found = weighted_of(problem)
    assert isinstance(found, Weighted)
    return [candidate(found, one) for one in tiles_of(found)]


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_all_tiles_compile_without_spilling(arch: int) -> None:
    for rows in (16, 32, 64):
        arguments = given(rows, 4096, 4096, 4, 64)
        made = lowered(Every(TEMPLATE, all_kernels), NAME, int4(64), arguments)
        assert len(compiled(made, arch)) == 4
