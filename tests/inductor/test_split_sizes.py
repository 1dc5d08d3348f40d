"""Where others repeat a compile, Inductor times no size of the pieces in which it sums rows and columns: sums would be rounded otherwise."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.codegen.triton import TritonScheduling

import inductor_plugin
from inductor_plugin.config import Config
from inductor_plugin.inductor import hooks
from inductor_plugin.tuning.pins.recording import Recording, recording
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

SIZE = "triton.mix_order_reduction_split_size"
SQUARE, TALL = Arg((256, 256)), Arg((8192, 1024))


def summed(gradient: Any, x: Any, a: Any, b: Any) -> Any:
    """Return sums by row and by column, as gradients of a normalization have them, and a product."""
    both = gradient.float() * x.float()
    return both.sum(-1), both.sum(0), a @ b


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch, fake_gpu: object) -> Callable[..., tuple[int, set[str]]]:
    """Return what compiles the sums, and returns how often Inductor has measured, and the sizes in its code."""
    del fake_gpu
    measured: list[float] = []
    times = itertools.cycle([0.5, 0.25, 1.0, 0.125, 2.0])

    def bench(*_: Any, **__: Any) -> tuple[float, str]:
        measured.append(next(times))
        return measured[-1], ""

    for scheduling in (TritonScheduling, CUDACombinedScheduling):
        monkeypatch.setattr(scheduling, "benchmark_codegened_module", bench)

    def compiled(folder: Path, **options: Any) -> tuple[int, set[str]]:
        measured.clear()
        with Lab(library_first, folder).open() as lab:
            code = lab.lower(summed, TALL, TALL, SQUARE, SQUARE, **options)
        return len(measured), {*re.findall(r"'RSPLIT_SIZE': (\d+)", code)}

    return compiled


def test_recorded_compiles_and_those_by_pins_have_one_size(
    sizes: Callable[..., tuple[int, set[str]]], tmp_path: Path
) -> None:
    count, own = sizes(tmp_path / "own")
    assert count > 1
    assert len(own) == 1
    pins = tmp_path / "pins.json"
    with inductor_plugin.record(pins):
        assert sizes(tmp_path / "recorded") == (0, {"32"})
    again = sizes(tmp_path / "again", policy="pinned", pin_file=str(pins), strict=True)
    assert again == (0, {"32"})


def test_a_size_that_the_user_has_stated_stays() -> None:
    def created(**others: Any) -> Any:
        return hooks.compile_options(None, Config.load({}, {}), others).get(SIZE)

    assert created() is None
    with recording(Recording()):
        assert created() == 32
        assert created(**{SIZE: 64}) == 64
        with inductor_config.patch({SIZE: 16}):
            assert created() is None
