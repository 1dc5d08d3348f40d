"""Products with 4-bit weights: where the library or Inductor computes them, and whose lowering is in place."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import lowering as inductor_lowering

from inductor_plugin.inductor import int4 as inductor_int4
from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.ops import int4 as ops_int4
from inductor_plugin.worker.child.inductor import extern_function
from tests.support.lowering import Lab, library_first
from tests.support.triton.lowering import offered
from tests.support.triton.products.int4 import TEMPLATE, arguments, int4

NEEDS_CUDA = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")


@NEEDS_CUDA
@pytest.mark.compat
@pytest.mark.usefixtures("fake_gpu")
def test_where_the_library_is_faster_its_operator_is_called(cache_dir: Path) -> None:
    with offered(TEMPLATE), Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(int4(64), *arguments(4, 512, 1024, 4, 64))
    assert "extern_kernels.weight_int4pack_mm(a_1, b_1, scales_1, group=64)" in code
    (library,) = [entry.candidate for entry in lab.entries("extern")]
    assert library is not None
    kernel = library.kernel
    assert isinstance(kernel, ExternKernel)
    assert extern_function(kernel.name) is ops_int4.weight_int4pack_mm
    assert kernel.kwargs == (("group", 64),)
    assert lab.record()["problem"]["op"] == ops_int4.NAME


@NEEDS_CUDA
@pytest.mark.compat
@pytest.mark.usefixtures("fake_gpu")
def test_outside_the_plugins_scope_aten_is_called_as_ever(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor_int4, "active_config", lambda: None)
    a, b, scales = arguments(4, 512, 1024, 4, 64)
    with offered(TEMPLATE), Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(
            lambda a, b, s: int4(64)(a.t().relu(), b, s), replace(a, size=a.size[::-1]), b, scales
        )
    assert lab.tasks == []
    assert "torch.ops.aten._weight_int4pack_mm.default(buf0, b_1, 64, s_1)" in code
    assert "buf0 = empty_strided_cuda((4, 1024), (1024, 1)" in code


@pytest.mark.usefixtures("inductor_cache")
def test_on_a_cpu_aten_is_called_as_ever(cache_dir: Path) -> None:
    operands = [replace(each, device="cpu") for each in arguments(4, 512, 1024, 4, 64)]
    with offered(TEMPLATE), Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(int4(64), *operands)
    assert lab.tasks == []
    assert "torch.ops.aten._weight_int4pack_mm.default(a_1, b_1, 64, scales_1)" in code


@pytest.fixture
def lowerings() -> Iterator[dict[Any, Any]]:
    """Return Inductor's table of lowerings, and put its entry for the operator back."""
    table: dict[Any, Any] = inductor_lowering.lowerings
    before = table.pop(inductor_int4._OP, None)
    yield table
    table.pop(inductor_int4._OP, None)
    if before is not None:
        table[inductor_int4._OP] = before


@pytest.mark.compat
def test_uninstalled_it_leaves_the_operator_to_inductor(lowerings: dict[Any, Any]) -> None:
    for _ in range(2):
        inductor_int4.install()
        assert inductor_int4.installed()
    inductor_int4.uninstall()
    assert not inductor_int4.installed()
    assert inductor_int4._OP not in lowerings


def test_a_lowering_of_others_is_not_taken_away(lowerings: dict[Any, Any]) -> None:
    """Inductor's own is there where the operator was lowered before the plugin was on."""
    other = object()
    lowerings[inductor_int4._OP] = other
    assert not inductor_int4.installed()
    inductor_int4.uninstall()
    assert lowerings[inductor_int4._OP] is other
