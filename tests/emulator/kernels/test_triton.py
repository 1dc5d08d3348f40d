"""Triton's PTX for products that Inductor generates: the numbers of the kernels that run on a GPU, not of the interpreter."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils import _triton  # pyright: ignore[reportMissingTypeStubs]

from inductor_plugin.problem.target import target
from inductor_plugin.templates.triton.decode import TritonDecode
from inductor_plugin.templates.triton.persistent_tma import TritonPersistentTma
from tests.emulator.kernels import triton
from tests.emulator.machine.schedule import EAGER, LATE, Schedule
from tests.support import gpu
from tests.support.lowering import Arg
from tests.support.triton.lowering import F16, Case, codes, mm

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

CASES = {
    "decode": (TritonDecode(), Case(mm, (Arg((7, 331), F16), Arg((331, 77), F16)))),
    "persistent": (TritonPersistentTma(), Case(mm, (Arg((70, 136), F16), Arg((136, 72), F16)))),
}
LAST = Schedule(late=True, ahead="last")


@pytest.fixture(name="device")
def a_device(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower for an H100 that is not there."""
    with gpu.installed():
        monkeypatch.setattr(_triton, "has_triton_tma_device", lambda: True)
        yield


@pytest.mark.parametrize(
    ("name", "products"),
    [("decode", 0), ("persistent", 1)],
)
@pytest.mark.usefixtures("device")
def test_a_template_computes_the_product(name: str, products: int) -> None:
    template, case = CASES[name]
    modules = [(code, case.tensors) for code in codes([(template, name, case)])]
    for schedule in (EAGER, LATE, LAST):
        outputs = triton.outputs(modules, target("H100"), schedule)
        ((output,),) = outputs.results
        a, b = (tensor.double() for tensor in case.tensors)
        difference = (output.double() - a @ b).abs() / (1 + (a @ b).abs())
        assert float(difference.max()) <= case.tolerance, schedule
        assert bool(torch.isfinite(output).all())
        assert outputs.changed == 0
        assert (sum(launch.products for launch in outputs.launches) > 0) == bool(products)
