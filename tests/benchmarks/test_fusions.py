"""The command that counts fused benchmarks: its model of time, and its arms on a small network."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.fusion import fusions
from benchmarks.fusion.arms import Arm, Counts, counted
from benchmarks.fusion.cost import SETTINGS, Cost, Product, Work, factor
from benchmarks.fusion.facts import collected, read, write
from benchmarks.fusion.models import gpt2
from benchmarks.fusion.work import tile_of
from inductor_plugin.cache import Resources
from inductor_plugin.problem.target import target

needs_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

H100 = target("H100")
COST = Cost(H100, "digest")
PRODUCT = Product(1, 4096, 3072, 768)
ALONE = Work(
    PRODUCT,
    "triton_mm x",
    (128, 128),
    PRODUCT.operand_bytes,
    PRODUCT.written_bytes,
    0.0,
    "",
    alone=True,
)
GELU = replace(ALONE, cycles=40.0 * 4096 * 3072, label="gelu", alone=False)
POINTWISE = Work(None, "", (0, 0), PRODUCT.written_bytes, PRODUCT.written_bytes, 4e8, "gelu")


def test_a_factor_is_a_kernels_own() -> None:
    result = [factor(str(index)) for index in range(200)]
    assert result == [factor(str(index)) for index in range(200)]
    assert 0.85 <= min(result) < 0.88
    assert 1.12 < max(result) <= 1.15


def test_both_arms_see_the_same_product() -> None:
    """Alone it is measured as a candidate, and as a generated kernel under an epilogue."""
    assert COST.generated(ALONE) == pytest.approx(COST.triton(PRODUCT, "triton_mm x", (128, 128)))


def test_an_epilogue_costs_and_saves() -> None:
    fused, bare, apart = (COST.generated(code) for code in (GELU, ALONE, POINTWISE))
    assert bare < fused < bare + apart
    more = replace(GELU, read_bytes=GELU.read_bytes + 10**9)
    assert COST.generated(more) > fused + 100


@pytest.mark.parametrize("setting", ["faster", "slower"])
def test_a_library_that_is_always_faster_or_slower(setting: Any) -> None:
    cost = Cost(H100, setting)
    times = [cost.triton(PRODUCT, name, (128, 128)) for name in "abc"]
    ratio = min(times) / cost.library(PRODUCT, times)
    assert ratio == pytest.approx(1.3 if setting == "faster" else 1 / 1.1)


def test_noise_is_of_fused_kernels_alone() -> None:
    noisy = Cost(H100, "noisy")
    assert noisy.generated(ALONE) == COST.generated(ALONE)
    assert noisy.generated(POINTWISE) == COST.generated(POINTWISE)
    assert noisy.generated(GELU) != COST.generated(GELU)


def test_tiles_are_read_from_descriptions() -> None:
    assert tile_of("ACC_TYPE='tl.float32', BLOCK_K=32, BLOCK_M=64, BLOCK_N=256, num_stages=3") == (
        64,
        256,
    )


def test_compiled_kernels_are_kept(tmp_path: Path) -> None:
    known = {"a kernel": Resources(255, 136, 98304, 128), "another": Resources()}
    write(tmp_path / "facts.json", known)
    assert read(tmp_path / "facts.json") == known
    assert read(tmp_path / "none.json") == {}


def test_what_is_committed_says_which_kernels_spill() -> None:
    known = read()
    fused = [known_name for known_name in known if " + " in known_name]
    assert len(fused) >= 50
    assert any((known[kernel].spills or 0) > 64 for kernel in fused)
    bare = [kernel.partition(" + ")[0] for kernel in fused]
    assert set(bare) <= set(known)


@needs_cuda
def test_every_kernel_that_may_be_measured_is_there() -> None:
    """A kernel without facts would count as one that does not spill."""
    wanted = collected("gpt2")
    assert len(wanted) >= 40
    assert set(wanted) <= set(read())


def test_a_difference_is_named() -> None:
    pair = ("op1", "op2", "epilogue")
    stock = Counts(pairs={pair: False}, products={pair: "buf1"})
    ours = Counts(pairs={pair: True}, products={pair: "buf1"}, kernels={"buf1": "triton_mm 64"})
    assert fusions.differences(stock, ours) == ["op1 + op2 (epilogue): apart became triton_mm 64"]
    other = replace(ours, kernels={"buf1": "triton_mm 128"})
    assert len(fusions.differences(other, ours)) == 1
    assert fusions.differences(ours, ours) == []


def test_the_summary_holds_what_it_says() -> None:
    def row(every: int, ours: int, differs: list[str]) -> dict[str, Any]:
        benchmarked = {"benchmarks": 2, "asked": 4}
        counts = {
            "benchmarks": ours, "kernels_by_reason": {"spills": 3}, "pairs_pruned": 1,
            "saved_by_records": 2,
        }  # fmt: skip
        return {
            "setting": "digest", "stock": benchmarked, "all": {**benchmarked, "benchmarks": every}, "ours": counts,
            "differs_from_all": differs, "differs_from_stock": [],
        }  # fmt: skip

    good = fusions.summary([row(20, 3, []), row(10, 3, [])], "digest")
    assert (good["fewer_than_all"], good["kept"]) == (0.8, True)
    assert good["kernels_by_reason"] == {"spills": 6}
    assert not fusions.summary([row(20, 3, ["a difference"])], "digest")["kept"]
    assert not fusions.summary([row(10, 5, [])], "digest")["kept"]
    assert fusions.summary([], "digest")["fewer_than_all"] is None


@pytest.fixture(name="arms", scope="module")
def all_arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counts]:
    """Return what the three arms did with two layers of GPT-2."""
    names: tuple[Arm, ...] = ("stock", "all", "ours")
    make = functools.partial(gpt2, 2)
    return {
        name: counted(make, name, COST, tmp_path_factory.mktemp(name), read()) for name in names
    }


@needs_cuda
@pytest.mark.slow
def test_all_arms_are_asked_about_the_same_pairs(arms: dict[str, Counts]) -> None:
    assert len(arms["ours"].pairs) == 2
    assert set(arms["ours"].pairs) == set(arms["all"].pairs) == set(arms["stock"].pairs)
    assert {kind for _, _, kind in arms["ours"].pairs} == {"epilogue"}


@needs_cuda
@pytest.mark.slow
def test_ours_measures_less_than_all_and_chooses_the_same(arms: dict[str, Counts]) -> None:
    every, ours = arms["all"], arms["ours"]
    measured = len(set(ours.screened))
    assert 0 < measured <= (1 - fusions.GOAL) * fusions.distinct(every)
    assert fusions.differences(every, ours) == []
    assert fusions.code(every) == fusions.code(ours) != fusions.code(arms["stock"])
    assert len(set(ours.compiled)) < len(set(every.compiled))


@needs_cuda
@pytest.mark.slow
def test_inductors_single_kernel_spills(arms: dict[str, Counts]) -> None:
    """It tries the fastest kernel alone; with this epilogue that one spills, and it fuses none."""
    assert sum(arms["stock"].pairs.values()) == 0
    assert sum(arms["ours"].pairs.values()) == 2
    assert len(fusions.differences(arms["stock"], arms["ours"])) == 2


@needs_cuda
@pytest.mark.slow
def test_the_counts_add_up(arms: dict[str, Counts]) -> None:
    stock, ours = arms["stock"], arms["ours"]
    assert len(stock.calls) == 2 * len(stock.pairs)  # apart and fused
    assert fusions.distinct(stock) == 2  # the second layer's are the first one's
    assert ours.asked == len(ours.pairs)
    assert len(ours.refused) == ours.pruned
    # Two layers, one problem: the second pair is answered by what is known of the first.
    assert ours.problems == ours.tasks == 1
    assert len(ours.screened) == len(set(ours.screened))
    assert sum(name.startswith("unfused.") for _, name in ours.screened) == ours.problems
    assert ours.calls == []
    kept = [candidate for _, candidate in ours.screened if candidate.startswith("fused.")]
    tried = {source for _, what, source in arms["all"].calls if what == "fused"}
    # All of them are fused kernels of one product: measured, behind, spilling, or over the limit.
    rejected = sum(count for kind, count in ours.rejected.items() if kind != "cutlass")
    assert len(kept) + rejected >= len(tried)


def test_the_settings_are_all_run() -> None:
    assert SETTINGS == ("digest", "faster", "slower", "noisy")
