"""Products with 4-bit weights: which tiles come first, and where the library or Inductor computes them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.inductor import int4 as lowering_int4
from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.ops import int4 as int4_op
from inductor_plugin.problem import SizeClass
from inductor_plugin.worker.child.inductor import extern_function
from tests.support.lowering import Lab, library_first
from tests.support.triton.lowering import NEEDS_CUDA_BUILD, matrix, offered
from tests.support.triton.products.int4 import TEMPLATE, arguments, int4, problem, weight

pytestmark = NEEDS_CUDA_BUILD


def test_a_dynamic_number_of_rows_is_taken() -> None:
    assert TEMPLATE.reject(problem(dynamic=(SizeClass(0, 0, 4, 4, 4),))) is None


def test_wide_tiles_come_first_where_they_fill_the_device_and_narrow_ones_else() -> None:
    wide, narrow = (
        [candidate.config["BLOCK_N"] for candidate in TEMPLATE.candidates(problem(b=weight(n)))]
        for n in (65536, 1024)
    )
    assert wide[0] == 64
    assert narrow[0] == 16


@pytest.mark.parametrize(("rows", "tile"), [(16, 16), (17, 32), (32, 32), (33, 64), (64, 64)])
def test_a_tile_holds_all_rows(rows: int, tile: int) -> None:
    candidates = TEMPLATE.candidates(problem(matrix(rows, 4096)))
    assert candidates
    assert all(candidate.config["BLOCK_M"] == tile for candidate in candidates)


def test_a_k_that_a_step_does_not_divide_is_masked() -> None:
    k = 4096 + 128
    candidates = TEMPLATE.candidates(problem(matrix(4, k), weight(k=k)))
    even = {candidate.config["BLOCK_K"]: candidate.config["EVEN_K"] for candidate in candidates}
    assert even == {128: True, 256: False}


def test_where_the_library_is_faster_its_operator_is_called(cache_dir: Path) -> None:
    with offered(TEMPLATE), Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(int4(64), *arguments(4, 512, 1024, 4, 64))
    assert "extern_kernels.weight_int4pack_mm(a_1, b_1, scales_1, group=64)" in code
    (library,) = [entry.candidate for entry in lab.entries("extern")]
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
    a, b, scales = arguments(4, 512, 1024, 4, 64)
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
