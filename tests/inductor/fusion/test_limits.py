"""What Inductor does not fuse or combine because of the plugin's limits is in the log."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import logging
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.triton_combo_kernel import ComboKernel
from torch._inductor.scheduler import Scheduler

import inductor_plugin
from inductor_plugin.inductor.fusion import limits
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.compat,
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

SQUARES = [Arg((64, 64))] * 6
APART = [Arg((64 * rows,)) for rows in range(1, 7)]


def neighbours(*tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.relu(left + other) for left, other in pairwise(tensor))


def alone(*tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return kernels of two tensors each, that share nothing."""
    return tuple(torch.relu(part) for part in tensor)


def lowered(function: Any, arguments: list[Arg], cache_dir: Path, **options: Any) -> str:
    with Lab(library_first, cache_dir).open() as lab:
        code = lab.lower(function, *arguments, **options)
    return re.sub(r"'kernel_num_gb': \S+|# AOT ID.*", "", code)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == limits.__name__]


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, limits.__name__)
    return caplog


def test_each_pair_that_inductor_refuses_is_told_once_with_count_limit_and_option(
    cache_dir: Path, debug: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: set[str] = set()
    stock = Scheduler.fusion_prevent_too_many_reads_and_writes

    def noted(scheduler: Any, node1: Any, node2: Any, threshold: int) -> bool:
        answer = stock(scheduler, node1, node2, threshold)
        if answer and threshold == 5:
            refused.add(f"{node1.get_name()} + {node2.get_name()}")
        return answer

    inductor_plugin.disable()
    monkeypatch.setattr(Scheduler, "fusion_prevent_too_many_reads_and_writes", noted)
    code = lowered(neighbours, SQUARES, cache_dir, max_fusion_buffers=5)
    inductor_plugin.disable()
    lines = warnings_of(debug)
    assert len(lines) == len(refused) > 0
    assert {line.partition(":")[0] for line in lines} == refused
    counts = {re.sub(r"^\S+ \+ \S+: ", "", line) for line in lines}
    assert counts <= {
        f"not fused: the fused kernel would read and write {count} tensors; max_fusion_buffers is 5"
        for count in range(6, 12)
    }
    # Two neighbours read three tensors and write two; a third one makes it seven.
    assert any("write 7 tensors" in line for line in lines)
    assert code.count("async_compile.triton(") > 1


def test_what_is_told_is_not_changed(
    cache_dir: Path, debug: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = lowered(neighbours, SQUARES, cache_dir, max_fusion_buffers=5)
    assert warnings_of(debug)
    debug.clear()
    debug.set_level(logging.INFO, limits.__name__)
    assert lowered(neighbours, SQUARES, cache_dir, max_fusion_buffers=5) == loud
    assert warnings_of(debug) == []
    inductor_plugin.disable()
    monkeypatch.setattr(limits, "install", lambda: None)
    assert lowered(neighbours, SQUARES, cache_dir, max_fusion_buffers=5) == loud


def test_nothing_is_told_without_a_limit_and_an_own_one_has_inductor_s_name(
    cache_dir: Path, debug: pytest.LogCaptureFixture
) -> None:
    lowered(neighbours, SQUARES, cache_dir)
    assert warnings_of(debug) == []
    with inductor_config.patch(max_fusion_unique_io_buffers=5):
        lowered(neighbours, SQUARES, cache_dir)
    assert all(
        "Inductor's max_fusion_unique_io_buffers is 5" in warning for warning in warnings_of(debug)
    )
    assert warnings_of(debug)


def test_a_product_s_epilogue_is_told_too(cache_dir: Path, debug: pytest.LogCaptureFixture) -> None:
    def scaled(a: torch.Tensor, b: torch.Tensor, *more: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.relu(torch.mm(a, b)) * more[0] * more[1],)

    lowered(scaled, SQUARES[:4], cache_dir, max_fusion_buffers=4)
    (line,) = warnings_of(debug)
    assert line.endswith("would read and write 5 tensors; max_fusion_buffers is 4")


def test_a_kernel_that_is_not_combined_is_told(
    cache_dir: Path, debug: pytest.LogCaptureFixture
) -> None:
    combined: list[str] = []
    for limit in ("", "6"):
        with inductor_config.patch(combo_kernels=True, benchmark_combo_kernel=False):
            combined.append(lowered(alone, APART, cache_dir, max_kernel_arguments=limit))
        assert bool(warnings_of(debug)) == bool(limit)
    assert combined[0] != combined[1]
    lines = warnings_of(debug)
    assert len(lines) == 1  # six kernels of two tensors each, three in each combined one
    assert re.fullmatch(
        r"op\d+, op\d+, op\d+ \+ op\d+: not combined: the combined kernel would take 8 tensors; "
        r"max_kernel_arguments is 6",
        lines[0],
    )


def test_disabling_puts_inductor_s_own_functions_back(cache_dir: Path) -> None:
    inductor_plugin.disable()
    stock = (
        Scheduler.fusion_prevent_too_many_reads_and_writes,
        vars(ComboKernel)["_update_partition"],
    )
    lowered(neighbours, SQUARES, cache_dir)
    assert Scheduler.fusion_prevent_too_many_reads_and_writes is not stock[0]
    inductor_plugin.disable()
    assert Scheduler.fusion_prevent_too_many_reads_and_writes is stock[0]
    assert vars(ComboKernel)["_update_partition"].__func__ is stock[1].__func__
