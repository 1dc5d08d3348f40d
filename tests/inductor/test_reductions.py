"""Reductions of compiles that others repeat have one tile, whatever a process would find fastest."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.runtime import triton_heuristics

import inductor_plugin
from inductor_plugin.config import Config
from inductor_plugin.inductor import reductions
from inductor_plugin.inductor.facts.scope import ConfigCarrier
from inductor_plugin.tuning.ranks import job
from tests.support.lowering import Arg, Lab, library_first, library_last

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

A, B = Arg((256, 512)), Arg((512, 4096))
_META = re.compile(r"@triton_heuristics\.(\w+)\((?:.*\n)*?.*inductor_meta=(\{.*\})")


def normalized(a: Any, b: Any) -> Any:
    return (torch.softmax((a @ b).float(), dim=-1),)


def flags(code: str) -> dict[str, set[bool]]:
    """Return of each kind of kernel whether Inductor takes a tile without timing."""
    known: dict[str, set[bool]] = {}
    for kind, meta in _META.findall(code):
        text = re.sub(r"'(\w+)': (?!\[|'|\d|True|False|None|\{)[^,}]+", r"'\1': None", meta)
        known.setdefault(kind, set()).add(bool(ast.literal_eval(text)["deterministic"]))
    return known


def lowered(cache_dir: Path, winner: Any = library_first, **options: Any) -> dict[str, set[bool]]:
    with Lab(winner, cache_dir).open() as lab:
        return flags(lab.lower(normalized, A, B, **options))


@pytest.mark.usefixtures("fake_gpu")
def test_a_compile_of_its_own_times_its_reductions(cache_dir: Path) -> None:
    kinds = lowered(cache_dir)
    assert any("reduction" in kind for kind in kinds)
    assert set.union(*kinds.values()) == {False}


@pytest.mark.usefixtures("fake_gpu")
def test_a_compile_that_is_recorded_and_one_of_its_pins_do_not(
    cache_dir: Path, tmp_path: Path
) -> None:
    pins = tmp_path / "pins.json"
    with inductor_plugin.record(pins):
        recorded = lowered(cache_dir)
    replayed = lowered(tmp_path / "other", policy="pinned", pin_file=str(pins))
    for kinds in (recorded, replayed):
        assert all(kinds[kind] == {True} for kind in kinds if "reduction" in kind)
        assert any("reduction" in kind for kind in kinds)


@pytest.mark.usefixtures("fake_gpu")
def test_the_kernel_of_a_template_keeps_its_text(cache_dir: Path, tmp_path: Path) -> None:
    """Its text is part of its key: it has one tile in any case."""
    pins = tmp_path / "pins.json"
    with inductor_plugin.record(pins):
        kinds = lowered(cache_dir, library_last, gemm_backends="ATEN,TRITON")
    assert kinds["template"] == {False}


def test_inductor_keeps_one_tile_where_the_field_says_so() -> None:
    untyped: Any = triton_heuristics
    tiles = ((1, 2048), (8, 512), (64, 64))
    configs = [untyped.Config({"XBLOCK": x, "R0_BLOCK": r}, num_warps=8) for x, r in tiles]
    for field, count in ((True, 1), (False, 3)):
        kept = untyped.filter_reduction_configs_for_determinism({"deterministic": field}, configs)
        assert len(kept) == count


def test_a_graph_of_a_rank_is_another_one_in_inductors_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carrier, jobs = ConfigCarrier(Config()), [object(), None]

    def current(_: Config) -> object:
        return jobs.pop(0)

    alone = carrier.uuid()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(job, "current", current)
    assert carrier.uuid() != alone
    assert carrier.uuid() == alone


def test_inductors_own_method_is_put_back() -> None:
    reductions.uninstall()
    stock = TritonKernel.__dict__["inductor_meta_common"].__func__
    reductions.install()
    reductions.install()
    assert reductions.installed()
    reductions.uninstall()
    assert TritonKernel.__dict__["inductor_meta_common"].__func__ is stock
