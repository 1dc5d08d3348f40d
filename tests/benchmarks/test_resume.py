"""How the GPU benchmark keeps its budget, and what it takes over from its last run."""

from __future__ import annotations

import contextlib
import json
from argparse import Namespace
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from benchmarks.gemm import __main__
from benchmarks.gemm.products import kind, missing_call
from benchmarks.harness import arms as arms_module
from benchmarks.harness import campaign
from benchmarks.harness.resume import CUT, SAME, Budget, Rows, failed_arms, is_better, waiting
from benchmarks.harness.sources import PLUGIN, REPOSITORY, sources_digest

PRODUCTS = __main__.todo(["bf16"])[:3]
NAMES = [__main__.name_of(*product) for product in PRODUCTS]
ARMS = ("cublas", "stock", "ours")
FACTS: dict[str, str] = dict.fromkeys(SAME, "same")


@dataclass
class World:
    """A clock, and arms that take their time on it."""

    cost_s: dict[str, float] = field(default_factory=dict[str, float])
    sample_s: float = 1.0
    broken: tuple[str, ...] = ()
    now_s: float = 1000.0
    asked: list[tuple[str, str, float]] = field(default_factory=list[tuple[str, str, float]])


@dataclass
class FakeArm:
    """Answers after its cost, or not in time."""

    name: str
    world: World

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        preparing = request["do"] == "prepare"
        what = f"{request['shape']} {request['kind']}" if preparing else "sample"
        self.world.asked.append((self.name, what, limit_s))
        cost_s = self.world.cost_s.get(self.name, 1.0) if preparing else self.world.sample_s
        self.world.now_s += min(cost_s, limit_s)
        if cost_s > limit_s:
            return {"failed": f"no answer within {limit_s:.0f} s"}
        if preparing and self.name in self.world.broken:
            return {"failed": "RuntimeError: broken"}
        return {"first_call_s": cost_s} if preparing else {"ms": 0.5}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    created = World()

    @contextlib.contextmanager
    def arms(names: list[str], module: str, *, dry: bool) -> Generator[list[FakeArm], None, None]:
        yield [FakeArm(name, created) for name in names]

    monkeypatch.setattr(campaign, "arms", arms)
    return created


def go(world: World, out: Path, budget_s: float, *, rounds: int = 2, **more: Any) -> list[str]:
    """Run the benchmark on the fake arms, going on from ``out``; return what is left."""
    arguments = Namespace(
        **{"arms": list(ARMS), "dry": True, "cutlass_s": 150.0, "arm_s": 180.0, "rounds": rounds}
        | more
    )
    rows = Rows(out, FACTS, [out])
    return __main__.run(rows, PRODUCTS, arguments, Budget(budget_s, lambda: world.now_s))


def rows(out: Path) -> dict[str, dict[str, Any]]:
    return {row["product"]: row for row in json.loads(out.read_text())["rows"]}


def test_a_run_ends_with_its_budget(world: World, tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    # A product takes 3 s and 6 samples of 1 s: two fit into 20 s, the third would not.
    assert go(world, out, 20.0) == NAMES[2:]
    assert list(rows(out)) == NAMES[:2]
    assert world.now_s == 1018.0
    assert go(world, out, 20.0) == []
    assert list(rows(out)) == NAMES
    assert [what for _, what, _ in world.asked].count(NAMES[0]) == len(ARMS)
    assert go(world, out, 20.0) == []
    assert world.now_s == 1027.0  # nothing was left to ask


@pytest.mark.parametrize("budget_s", [450.0, 100.0, 5.0])
def test_no_product_takes_more_than_the_budget(
    world: World, tmp_path: Path, budget_s: float
) -> None:
    world.cost_s = dict.fromkeys(__main__.ARMS, 10_000.0)
    go(world, tmp_path / "gemm.json", budget_s, arms=list(__main__.ARMS))
    assert world.now_s <= 1000.0 + budget_s
    spent_s = 0.0
    for _, _, limit_s in world.asked:
        assert 0 < limit_s <= min(180.0, budget_s - spent_s)
        spent_s += limit_s


def test_samples_keep_to_the_budget_too(world: World, tmp_path: Path) -> None:
    world.sample_s = 50.0
    out = tmp_path / "gemm.json"
    go(world, out, 120.0, rounds=100)
    assert world.now_s == 1120.0
    row = rows(out)[NAMES[0]]
    # 3 s to compile, two samples of 50 s, and a third that is cut: no result.
    assert row["arms"] == {}
    assert "ours had no more time after 120 of the run's 120 s" in row[CUT]


def test_a_product_that_the_budget_cut_is_begun_again(world: World, tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    world.cost_s = {"ours": 40.0}
    # 48 s for the first one; the second would fit by that, but its arm hangs then.
    original = FakeArm.ask

    def ask(self: FakeArm, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if request.get("shape") == PRODUCTS[1][0].label:
            world.cost_s = {"ours": 170.0}
        return original(self, request, limit_s)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeArm, "ask", ask)
        assert go(world, out, 100.0) == NAMES[1:]
    assert list(rows(out)) == NAMES[:1]
    assert CUT not in rows(out)[NAMES[0]]
    assert 1090.0 <= world.now_s <= 1100.0


def test_a_product_that_no_run_is_long_enough_for_stops_nobody(
    world: World, tmp_path: Path
) -> None:
    out = tmp_path / "gemm.json"
    world.cost_s = {"ours": 100.0}
    assert go(world, out, 60.0) == NAMES[1:]
    assert "ours had no more time" in rows(out)[NAMES[0]][CUT]
    world.cost_s, world.asked = {}, []
    assert go(world, out, 60.0) == []
    begun = [what for name, what, _ in world.asked if name == "cublas" and what != "sample"]
    assert begun == [NAMES[1], NAMES[2], NAMES[0]]
    assert [failed_arms(row, ARMS) for row in rows(out).values()] == [[], [], []]
    assert not any(CUT in row for row in rows(out).values())
    assert list(rows(out)) == NAMES  # the order of the file stays


@pytest.mark.parametrize("hanging", ["cublas", "stock"])
def test_the_plugin_has_its_share_of_a_budget_that_others_would_spend(
    hanging: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.cost_s = {hanging: 10_000.0, "ours": 60.0}
    out = tmp_path / "gemm.json"
    go(world, out, 210.0)
    (limit_s,) = [s for name, what, s in world.asked if name == "ours" and what == NAMES[0]]
    assert limit_s > 60.0
    # The other has not had all the time that it may have: the row is no result, and it says so.
    assert rows(out)[NAMES[0]]["arms"] == {}
    assert f"{NAMES[0]}: {hanging} had no more time" in capsys.readouterr().out


def test_a_row_stays_where_only_the_sampled_arm_was_cut(world: World, tmp_path: Path) -> None:
    world.cost_s = {__main__.SAMPLED: 170.0}
    out = tmp_path / "gemm.json"
    go(world, out, 100.0, arms=list(__main__.ARMS))
    row = rows(out)[NAMES[0]]
    assert list(row["arms"]) == list(ARMS)
    assert all("median_ms" in report for report in row["arms"].values())


def test_a_row_that_was_cut_does_not_take_the_place_of_a_result(
    world: World, tmp_path: Path
) -> None:
    out = tmp_path / "gemm.json"
    world.broken = ("stock",)
    assert go(world, out, 1000.0) == []
    before = rows(out)
    world.broken, world.cost_s = (), {"ours": 1000.0}
    go(world, out, 60.0)
    assert rows(out) == before


def test_an_arm_that_failed_is_tried_again_after_the_others(world: World, tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    world.broken = ("stock",)
    assert go(world, out, 9.0) == NAMES[1:]
    assert rows(out)[NAMES[0]]["arms"]["stock"]["failed"] == "RuntimeError: broken"
    world.broken, world.asked = (), []
    assert go(world, out, 1000.0) == []
    begun = [what for name, what, _ in world.asked if name == "cublas" and what != "sample"]
    assert begun == [NAMES[1], NAMES[2], NAMES[0]]
    assert rows(out)[NAMES[0]]["arms"]["stock"]["median_ms"] == 0.5


@pytest.mark.parametrize(("broken", "status"), [((), 0), (("stock",), 0), (("ours",), 1)])
def test_the_exit_status_says_whether_the_plugin_was_measured(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: tuple[str, ...],
    status: int,
) -> None:
    world.broken = broken
    arguments = ["gemm", "--dry", "--fresh", "--limit", "1", "--out", str(tmp_path / "gemm.json")]
    monkeypatch.setattr("sys.argv", arguments)
    assert __main__.main() == status
    monkeypatch.setattr("sys.argv", ["gemm"])
    monkeypatch.setattr(campaign, "opened", Mock(return_value=None))
    assert __main__.main() == 2


def test_a_worse_row_does_not_take_the_place_of_a_better_one() -> None:
    good, bad = {"median_ms": 1.0}, {"failed": "why"}
    kept = {"product": "one", "arms": {"stock": bad, "ours": good}}
    assert not is_better({"arms": {"stock": bad, "ours": bad}}, kept)
    assert not is_better({"arms": {"ours": good}}, kept)
    assert is_better({"arms": {"stock": good, "ours": good}}, kept)
    assert is_better(kept, kept)


def test_an_arm_nobody_asks_for_is_not_tried_again() -> None:
    known: list[dict[str, Any]] = [
        {"product": "one", "arms": {"stock_cutlass": {"failed": "why"}, "ours": {}}}
    ]
    assert waiting(known, ["two", "one"], ["cublas", "ours"]) == ["two"]
    assert waiting(known, ["one", "two"], ["stock_cutlass"]) == ["two", "one"]


def test_stock_cutlass_is_tried_again_where_it_failed(world: World, tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    world.broken = (__main__.SAMPLED,)
    go(world, out, 1000.0, arms=list(__main__.ARMS))
    before = rows(out)
    where = [name for name, row in before.items() if __main__.SAMPLED in row["arms"]]
    assert where[0] == NAMES[0]
    go(world, out, 1000.0, arms=list(__main__.ARMS), cutlass_s=0.0)
    assert rows(out) == before  # a row without that arm does not take the place of one with it
    world.broken, world.asked = (), []
    go(world, out, 1000.0, arms=list(__main__.ARMS))
    begun = {what for _, what, _ in world.asked if what != "sample"}
    assert begun == set(where)
    assert rows(out)[NAMES[0]]["arms"][__main__.SAMPLED]["median_ms"] == 0.5


@pytest.mark.parametrize("fact", SAME)
def test_rows_of_other_facts_are_not_taken_over(tmp_path: Path, fact: str) -> None:
    out = tmp_path / "results" / "gemm.json"
    Rows(out, FACTS).put({"product": "one", "arms": {}})
    assert Rows(out, FACTS, [tmp_path / "none.json", out]).rows == [{"product": "one", "arms": {}}]
    other = Rows(out, FACTS | {fact: "another"}, [out])
    assert other.rows == []
    assert f"another {fact}" in other.rejection


@pytest.mark.parametrize("many", ["rows", "tests"])
@pytest.mark.parametrize("content", ["[]", "3", "{", "{}", FACTS, {**FACTS, "rows": {"one": 1}}])
def test_a_file_without_rows_is_empty_with_a_note(tmp_path: Path, content: Any, many: str) -> None:
    out = tmp_path / "gemm.json"
    out.write_text(content if isinstance(content, str) else json.dumps(content))
    begun = Rows(out, FACTS, [out], many=many)
    assert begun.rows == []
    assert "begins anew" in begun.rejection
    assert Rows(out, FACTS, [tmp_path / "none.json"], many=many).rejection == ""


def test_a_row_without_a_name_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    out.write_text(json.dumps({**FACTS, "rows": [3, {"kind": "bf16"}, {"product": "one"}]}))
    assert Rows(out, FACTS, [out]).rows == [{"product": "one"}]


def test_the_facts_of_a_run_name_its_sources(tmp_path: Path) -> None:
    facts = arms_module.machine(__main__.SOURCES, dry=True)
    assert facts is not None
    assert facts["sources"] == sources_digest(__main__.SOURCES)
    assert set(PLUGIN) < set(__main__.SOURCES)
    assert all((REPOSITORY / source).exists() for source in __main__.SOURCES)
    kernel = tmp_path / "templates" / "source" / "one.cuh"
    kernel.parent.mkdir(parents=True)
    arm = tmp_path / "arm.py"
    seen: set[str] = set()
    for number in range(2):
        for path in (kernel, arm):
            path.write_text(f"{number}")
            seen.add(sources_digest(("templates", "arm.py"), tmp_path))
    assert len(seen) == 4


def test_the_products_of_these_tests_exist() -> None:
    assert len(set(NAMES)) == 3
    assert all(missing_call(shape, kind(types)) is None for shape, types in PRODUCTS)


def test_a_file_is_named_where_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.closing("products", ["one"], tmp_path / "none.json")
    assert capsys.readouterr().out == "1 products are left (one is next); run it again to go on.\n"
    (tmp_path / "some.json").touch()
    campaign.closing("products", [], tmp_path / "some.json")
    assert capsys.readouterr().out == f"Written to {tmp_path / 'some.json'}.\n"
