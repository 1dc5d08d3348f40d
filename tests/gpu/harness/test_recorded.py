"""What the GPU tests expect holds for a lowering for an H200, where kernels are measured by a stub."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.worker.jobs import BenchCandidate
from tests.gpu import test_lowering
from tests.gpu.harness import recorded
from tests.support.lowering import Arg, Lab

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

A, B = Arg((512, 1024)), Arg((1024, 512))


def lowered(function: Any, cache_dir: Path, *arguments: Arg, **options: Any) -> Lab:
    def milliseconds(candidate: BenchCandidate) -> float:
        return 0.02 if "extern" in candidate.candidate_id else 0.01

    with Lab(milliseconds, cache_dir).open() as lab:
        lab.lower(lambda *tensors: (function(*tensors),), *arguments, **options)
    return lab


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("mm", (A, B)), ("mm and relu", (A, B)), ("two products and their sum", (A, B, A, B))],
)
def test_products_are_told_from_fusions_by_their_records(
    name: str, arguments: tuple[Arg, ...], cache_dir: Path
) -> None:
    function, _ = test_lowering.OPERATORS[name]
    lowered(function, cache_dir, *arguments)
    records = test_lowering.records(cache_dir)
    plain = recorded.products(records)
    assert plain
    assert [recorded.unexpected(record) for record in plain] == [""] * len(plain)
    if name == "mm and relu":
        assert len(records) > len(plain)
        others = [record for record in records if record not in plain]
        assert all(map(recorded.unexpected, others))  # a fusion has no library kernel


def row(kind: str, status: str) -> dict[str, str]:
    return {"kind": kind, "status": status}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row("extern", "ok"), row("triton", "ok"), row("triton", "pruned")], ""),
        ([row("extern", "ok"), row("triton", "raised")], "no kernel of triton has run"),
        ([row("triton", "ok")], "no kernel of extern has run"),
        ([row("extern", "ok"), row("triton", "ok"), row("template", "wrong")], "a kernel is wrong"),
    ],
)
def test_a_record_of_a_product_is_judged(rows: list[dict[str, str]], reason: str) -> None:
    assert recorded.unexpected({"candidates": dict(enumerate(rows))}) == reason


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        (
            ["ok", "ok", "ok", "pruned", "raised"],
            "",
        ),  # 128x128x128 in four stages wants 262144 bytes
        (["ok", "ok", "hung"], "candidates are hung"),
        (["ok", "pruned"], "most candidates have not run"),
    ],
)
def test_a_tile_that_does_not_fit_is_no_fault(statuses: list[str], reason: str) -> None:
    rows = dict(enumerate(row("triton", status) for status in statuses))
    assert recorded.strange({"candidates": rows}) == reason


def test_kernels_of_all_of_inductors_templates_are_counted(cache_dir: Path, tmp_path: Path) -> None:
    lab = lowered(torch.mm, cache_dir, A, B, max_candidates=0)
    names = {job.kernel_name for job in lab.builds}
    assert len(names) > 1  # not all of them are called triton_mm
    for number, name in enumerate(sorted(names)):
        folder = tmp_path / "triton" / "0" / str(number)
        folder.mkdir(parents=True)
        (folder / f"{name}.cubin").touch()
    assert len(recorded.triton_kernels(tmp_path)) == len(names)
