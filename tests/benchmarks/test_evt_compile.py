"""Kernels with an epilogue compiled by nvcc, loaded and asked; and the file of all that were compiled."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fusion import evt_compile
from benchmarks.fusion.evt_compile import (
    BLACKWELL,
    OUT,
    TILES,
    Pair,
    call_of,
    compiled,
    complaints,
    configured,
    pairs,
)
from inductor_plugin.errors import KernelError
from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource, unique_symbol
from inductor_plugin.ops import gemm_abi
from inductor_plugin.templates.cutlass.evt import Evt, Node, Output, TreeOperand
from tests.support.cutlass.toolkit import a_toolkit, load_runtime
from tests.support.graphs.epilogues import CASES

__all__ = ["a_toolkit"]  # the fixture


def rows() -> list[dict[str, Any]]:
    return json.loads(OUT.read_text())["kernels"]


def test_the_file_has_every_epilogue_on_every_tile() -> None:
    wanted = {(case.name, tile.tile) for case in CASES for tile in TILES}
    result = {(row["name"], tuple(row["tile"])) for row in rows()}
    assert wanted <= result
    assert len(wanted) >= 40
    assert complaints(rows()) == []
    for line in rows():
        assert line["instructions"] == ["HGMMA"]
        assert line["workspace_bytes"] == 0
        assert (line["epilogue"] is None) == (line["name"] == "none")


def test_what_an_epilogue_takes_of_shared_memory_is_known_before_it_is_compiled() -> None:
    """The rest is whole stages of A and B, and less than the 2048 bytes kept for barriers."""
    for row in rows():
        m, n, k = row["tile"]
        rest = row["shared_bytes"] - row["epilogue_bytes"]
        assert rest % ((m + n) * k * 2) < 2048, row["kernel"]


def test_a_kernel_is_complained_about_if_it_spills_refuses_or_multiplies_without_tensor_cores() -> (
    None
):
    fine = rows()[0]
    wrong: list[dict[str, Any]] = [
        {"spills": 8},
        {"refusal": "no"},
        {"instructions": []},
        {"status": "hung"},
    ]
    for bad in wrong:
        assert len(complaints([{**fine, **bad}, fine])) == 1


GATED = (
    Node("sums"),
    Node("operand"),
    Node("operand", (), 1),
    Node("mul", (0, 1)),
    Node("add", (2, 3)),
)
HALF = Evt(GATED, (TreeOperand("column", "f32"), TreeOperand("source", "f16")), (Output(4, "f16"),))
WHOLE = Evt(GATED, (TreeOperand("source", "f32"), TreeOperand("full", "bf16")), (Output(4, "f32"),))
SCALED = Evt(
    (*GATED[:4], Node("mul", (3, 2))),
    (TreeOperand("row", "f32"), TreeOperand("column", "f32")),
    (Output(3, "bf16"), Output(4, "bf16")),
)
NARROW = Evt(
    (*GATED, Node("tanh", (4,))),
    (TreeOperand("source", "f32"), TreeOperand("scalar", "bf16")),
    (Output(0, "f32"), Output(5, "e4m3"), Output(4, "f16")),
)
PLAIN = TILES[0]
OTHERS = {
    "f16": configured(
        replace(
            PLAIN, a="f16", b="f16", layout_b="row", schedule="cooperative", tile=(128, 128, 64)
        ),
        HALF,
    ),
    "tf32": configured(
        replace(PLAIN, a="tf32", b="tf32", align_a=4, align_b=4, tile=(64, 128, 32)), WHOLE
    ),
    "int8": configured(
        replace(
            PLAIN, a="s8", b="s8", accumulator="s32", align_a=16, align_b=16, tile=(64, 128, 128)
        ),
        SCALED,
    ),
    "narrow": configured(PLAIN, NARROW),
}


@pytest.mark.slow
def test_other_types_and_more_outputs_are_fused_too(toolkit: Toolkit, tmp_path: Path) -> None:
    chosen = [Pair(name, None, config) for name, config in OTHERS.items()]
    usages = compiled(toolkit, chosen, tmp_path, "sm_90a")
    assert [(usage["status"], usage["reason"]) for usage in usages] == [("ok", "")] * len(chosen)
    assert complaints(usages) == []
    (library,) = tmp_path.glob("*.so")
    load_runtime(toolkit)
    for pair in chosen:
        symbol = unique_symbol(CppSource(pair.digest, pair.text, pair.config.name))
        kernel = gemm_abi.load(library, symbol)
        call = call_of(pair.config)
        assert gemm_abi.can_implement(kernel, call) is None
        assert gemm_abi.workspace_bytes(kernel, call) == 0
        call.operands[1].along_m += 3
        assert "a stride" in (gemm_abi.can_implement(kernel, call) or "")
        call = call_of(pair.config)
        call.a = call.b = call.d = 256
        with pytest.raises(KernelError, match="a pointer is missing"):
            gemm_abi.run(kernel, call, 0)


@pytest.mark.slow
def test_blackwell_kernels_fuse_one_operand_and_one_output(
    toolkit: Toolkit, tmp_path: Path
) -> None:
    if toolkit.release < (12, 8):
        pytest.skip(f"sm_100a needs CUDA 12.8, this is {toolkit.version}")
    (_, pair) = pairs(["residual"], BLACKWELL)
    (kernel,) = compiled(toolkit, [pair], tmp_path, "sm_100a")
    assert complaints([kernel]) == []


def test_what_has_the_same_text_is_taken_over_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [
        {**rows()[0], "name": pair.name, "text": pair.digest, "kernel": pair.config.name}
        for pair in pairs(["relu"], TILES)
    ]
    out = tmp_path / "kernels.json"
    out.write_text(json.dumps({"kernels": known[:-1]}))
    asked: list[str] = []

    def compiled_now(toolkit: Toolkit, unit: Sequence[Pair], *_others: Any) -> list[dict[str, Any]]:
        asked.extend(kernel.digest for kernel in unit)
        return known[-1:]

    monkeypatch.setattr(evt_compile, "compiled", compiled_now)
    monkeypatch.setattr("sys.argv", ["evt_compile", "--epilogue", "relu", "--out", str(out)])
    if not isinstance(nvcc.find("", dict(os.environ)), Toolkit):
        pytest.skip("needs nvcc")
    assert evt_compile.main() == 0
    assert "4 kernels, none spills" in capsys.readouterr().out
    assert asked == [known[-1]["text"]]
    assert len(json.loads(out.read_text())["kernels"]) == 4
