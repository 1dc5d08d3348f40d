"""Who refused a call and why is kept, also where only one candidate is left."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.cli import main
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.refusal import REASON
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.cli.committed import hold
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

SINGLE = Arg((64, 64), torch.float32)  # float32, and TF32 is off unless a user asks for it


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def plus_one(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b) + 1,)


@pytest.fixture
def lab(cache_dir: Path) -> Iterator[Lab]:
    with Lab(library_first, cache_dir).open() as opened:
        yield opened


def explained(cache_dir: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    (path,) = cache_dir.glob("records/*/*/*.json")
    assert main(["explain", "--cache-dir", str(cache_dir), path.stem, *more]) == 0
    return capsys.readouterr().out


def test_explain_says_why_only_the_library_kernel_is_left(
    lab: Lab, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS")
    assert "extern_kernels.mm(" in code
    said = explained(cache_dir, capsys)
    assert "Runs: mm-" in said
    assert f"Why:  {REASON}\n" in said
    listed = said.partition("Not offered for this problem, and why:\n")[2].partition("\n\n")[0]
    head, *rows = [line.split(maxsplit=1) for line in listed.splitlines()]
    assert head == ["TEMPLATE", "REASON"]
    reasons = dict(rows)
    assert "TF32" in reasons["cutlass"]
    assert "without TRITON" in reasons["triton_split_k"]
    starts = {line.index(why) for line, (_, why) in zip(listed.splitlines()[1:], rows, strict=True)}
    assert len(starts) == 1
    assert "MEDIAN MS" not in said  # there is nothing measured to list


def test_explain_says_who_refused_beside_what_was_measured(
    lab: Lab, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,TRITON,CUTLASS")
    parsed: dict[str, Any] = json.loads(explained(cache_dir, capsys, "--json"))
    hold("explain", parsed)
    assert len(parsed["candidates"]) > 5
    assert "TF32" in parsed["rejected"]["cutlass"]
    assert parsed["winner"].startswith("mm-")
    said = explained(cache_dir, capsys)
    assert "MEDIAN MS" in said
    assert parsed["rejected"]["cutlass"] in said


def test_nothing_is_tuned_or_started_or_counted(lab: Lab, cache_dir: Path) -> None:
    before = COUNTERS.snapshot()
    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS")
    assert (lab.order, lab.screens, lab.builds, lab.units) == ([], [], [], [])
    assert all(site.started is None for site in RUNTIME._contexts.values())
    spent = COUNTERS.snapshot().since(before)
    assert (spent.problems, spent.record_hits, spent.record_misses, spent.candidates) == (0,) * 4
    store = open_store(cache_dir)
    assert store.counters().get("hits", 0) == store.counters().get("misses", 0) == 0
    (record,) = store.iter_records()
    assert not store.has_records(record.environment)


def test_it_is_written_once(lab: Lab, cache_dir: Path) -> None:
    def written() -> tuple[int, bytes]:
        (path,) = cache_dir.glob("records/*/*/*.json")
        return path.stat().st_ino, path.read_bytes()  # a write puts a new file in its place

    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS")
    first = written()
    RUNTIME.forget()
    lab.lower(plus_one, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS")
    assert written() == first


def test_who_only_reads_writes_nothing(lab: Lab, cache_dir: Path) -> None:
    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS", policy="cached")
    assert list(cache_dir.glob("records/*/*/*.json")) == []


def test_who_only_compiles_is_told_who_refused(lab: Lab) -> None:
    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS", policy="build")
    assert "float32" in lab.record()["rejected"]["cutlass"]
    assert lab.screens == []


def test_tuning_later_replaces_it(lab: Lab) -> None:
    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,CUTLASS")
    assert lab.record()["candidates"] == {}
    lab.lower(product, SINGLE, SINGLE, gemm_backends="ATEN,TRITON,CUTLASS")
    record = lab.record()
    assert record["decision"]["reason"] != REASON
    assert record["decision"]["candidates"] == len(record["candidates"]) > 5
    assert "without TRITON" not in " ".join(record["rejected"].values())
