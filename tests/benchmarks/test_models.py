"""The benchmark of whole networks: its runs, its figures, its processes and its networks."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.harness.arms import Arm
from benchmarks.models import __main__ as command
from benchmarks.models.arm import compiler, differentiated, training
from benchmarks.models.figures import (
    LOOKS,
    OPEN,
    SLOWER,
    WITHIN,
    by_configuration,
    claims,
    interval,
    is_settled,
    ratios,
    summary,
    verdict,
)
from benchmarks.models.networks import NETWORKS
from benchmarks.models.plan import ARMS, GUARDED, Run, chosen, planned

GUARD = {
    "problems": 3,
    "first_call_s": 10.0,
    "guard_s": 0.5,
    "graphs_compared": 1,
    "graphs_reduced": 0,
    "graphs_left_out": 2,
}
FACTS = {"gpu": "cpu", "torch": "2", "sources": "a"}


def test_each_network_runs_in_eight_configurations() -> None:
    runs = planned(list(NETWORKS))
    assert len(runs) == len({run.name for run in runs}) == 8 * len(NETWORKS) == 80
    assert len({run.configuration for run in runs}) == 8
    assert runs[0].name == "inference, 2 threads, quiet, mixer"


def test_runs_are_chosen_by_parts_of_their_names() -> None:
    runs = planned(["bert", "lstm"])
    assert chosen(runs, []) == runs
    assert len(chosen(runs, ["bert"])) == 8
    assert [
        run.name for run in chosen(runs, ["training,1 thread, 2 busy, lstm", "lstm, quiet"])
    ] == [
        "inference, 2 threads, quiet, lstm",
        "training, 2 threads, quiet, lstm",
        "inference, 1 thread, quiet, lstm",
        "training, 1 thread, quiet, lstm",
        "training, 1 thread, 2 busy, lstm",
    ]
    with pytest.raises(ValueError, match="no run has ber in its name"):
        chosen(runs, ["bert", "ber"])


def test_ratios_are_those_of_each_round() -> None:
    """The machine was slower in the second round, for all alike."""
    launch = {"plain": [2, 20, 2], "stock": [1, 10, 1], "ours": [1, 10, 1]}
    row = ratios([launch, launch])
    assert row["to_plain"] == {"median": 0.5, "low": 0.5, "high": 0.5, "verdict": WITHIN}
    assert row["to_stock"]["median"] == 1.0
    assert row["stock_to_plain"]["median"] == 0.5


def test_an_arm_that_failed_in_a_launch_has_no_ratio() -> None:
    whole = {"plain": [2.0], "stock": [1.0], "ours": [1.0]}
    assert list(ratios([whole, {"plain": [2.0], "ours": [1.0]}])) == ["to_plain"]
    assert ratios([]) == {}
    assert ratios([{}]) == {}


def test_an_interval_holds_its_figure_and_grows_with_the_spread() -> None:
    calm, wild = interval([[1.0], [1.01], [0.99]]), interval([[1.0], [1.5], [0.5]])
    for each in (calm, wild):
        assert each["low"] <= each["median"] <= each["high"]
    assert wild["high"] - wild["low"] > calm["high"] - calm["low"]


def test_processes_that_differ_widen_the_interval_whatever_their_rounds() -> None:
    alike, apart = interval([[1.0] * 60] * 3), interval([[0.97] * 60, [1.0] * 60, [1.03] * 60])
    assert (alike["low"], alike["high"], alike["verdict"]) == (1.0, 1.0, WITHIN)
    # t of two degrees of freedom times the standard error 0.03 / sqrt(3), of logarithms
    assert apart["high"] == pytest.approx(math.exp(6.205 * 0.03 / 3**0.5), abs=2e-3)
    assert (apart["low"] * apart["high"], apart["verdict"]) == (pytest.approx(1.0, abs=2e-3), OPEN)
    lone = interval([[1.0] * 60])
    assert (lone["low"], lone["high"], lone["verdict"]) == (0.0, None, OPEN)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of 2,000 networks with launches that differ by 1.5 %, looked at twice as the command does."""
    drawn, held = random.Random(1), 0
    for _ in range(2000):
        launches = [[1.01 * math.exp(drawn.gauss(0, 0.015))] for _ in range(LOOKS[-1])]
        first = interval(launches[: LOOKS[0]])
        last = interval(launches) if first["verdict"] == OPEN else first
        held += last["low"] <= 1.01 <= last["high"]
    assert held >= 0.95 * 2000


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.9, 1.02, WITHIN), (1.01, 1.03, OPEN), (1.021, 1.03, SLOWER)]
)
def test_a_verdict_is_that_of_the_interval(low: float, high: float, said: str) -> None:
    assert verdict(low, high) == said
    figure = {"verdict": said}
    assert is_settled({"to_plain": figure}) is (said != OPEN)
    assert is_settled({"stock_to_plain": figure})  # nothing is claimed of it


def row(
    network: str, of: Run, low: float, median: float, high: float, problems: int = 3
) -> dict[str, Any]:
    ratio = {"median": median, "low": low, "high": high, "verdict": verdict(low, high)}
    return {
        "configuration": of.configuration,
        "network": network,
        "tuning": {"ours": GUARD | {"problems": problems}},
        "later_guard_s": 0.25,
        "to_plain": ratio,
    }


def test_configurations_are_summed_up_and_judged_each_for_itself() -> None:
    busy, quiet = Run("", load="2 busy"), Run("")
    rows = [
        row("slow", busy, 1.03, 1.04, 1.05),
        row("fast", quiet, 0.49, 0.5, 0.51),
        row("same", quiet, 1.0, 1.0, 1.0),
        row("unsure", quiet, 0.98, 1.01, 1.03),
        row("nothing to choose", quiet, 0.8, 0.8, 0.8, problems=0),
    ]
    figures = by_configuration(rows)
    assert [each["name"] for each in figures] == [busy.configuration, quiet.configuration]
    ratio = figures[1]["to_plain"]
    assert ratio["mean"] == pytest.approx((0.5 * 1.01) ** (1 / 3), rel=1e-3)
    assert ratio["low"] < ratio["mean"] < ratio["high"]
    assert ratio["without_the_fastest"] == pytest.approx(1.01**0.5, rel=1e-3)
    assert (ratio["slower"], ratio["open"], ratio["largest"]) == ([], ["unsure"], 1.01)
    assert (figures[1]["networks"], figures[1]["without_choices"]) == (4, ["nothing to choose"])
    assert (figures[1]["guard_s"], figures[1]["guard_share"]) == (2.0, 0.05)
    assert (figures[1]["later_guard_s"], figures[1]["graphs_left_out"]) == (1.0, 8)
    assert summary(figures) == {"to_plain": ratio["mean"], "largest_to_plain": 1.01}
    assert summary([]) == {}
    assert summary(figures[:1])["largest_to_plain"] == 1.04
    said = {each["name"]: (each["none_slower"], each["mean_at_most_1"]) for each in claims(figures)}
    assert said == {
        f"{busy.configuration}: to_plain": (False, False),
        f"{quiet.configuration}: to_plain": (None, True),
    }


def test_where_there_is_nothing_to_choose_no_mean_is_claimed() -> None:
    (figure,) = by_configuration([row("fixed", Run(""), 0.89, 0.89, 0.9, problems=0)])
    (claim,) = claims([figure])
    assert (claim["mean"], claim["mean_at_most_1"], claim["none_slower"]) == (None, None, True)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_finite_and_the_same_every_time(name: str) -> None:
    results: list[torch.Tensor] = []
    for _ in range(2):
        torch.manual_seed(0)
        model, inputs = NETWORKS[name]()
        with torch.no_grad():
            results.append(model.eval()(*inputs))
    assert bool(results[0].isfinite().all())
    assert torch.equal(results[0], results[1])


def test_the_gradient_of_the_input_is_looked_at_where_weights_are_in_8_bits() -> None:
    torch.manual_seed(0)
    model, inputs = NETWORKS["int8_mlp"]()
    assert differentiated(model, inputs) is inputs[0]
    gradient = training(model, model, inputs)()
    assert gradient.shape == inputs[0].shape
    assert bool(gradient.isfinite().all())
    model, inputs = NETWORKS["lstm"]()
    assert differentiated(model, inputs) is next(model.parameters())


class World:
    """Has the place of the arms' processes.

    Attributes:
        events: What happened, in order.
        variables: The variables of each set of arms.
        broken: Arms that cannot compile.
        ms: Milliseconds of each arm.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.variables: list[Mapping[str, str]] = []
        self.broken: tuple[str, ...] = ()
        self.ms = {"plain": 2.0, "stock": 1.0, "ours": 1.0, "guarded": 1.0}

    @contextmanager
    def load(self, name: str) -> Generator[None]:
        self.events.append(f"{name} begins")
        yield
        self.events.append(f"{name} ends")

    @contextmanager
    def arms(self, names: Any, module: str, *, dry: bool, environment: Any) -> Generator[list[Any]]:
        assert (module, dry) == ("benchmarks.models.arm", True)
        self.variables.append(environment)
        yield [FakeArm(self, name) for name in names]


class FakeArm:
    """An arm of a `World`."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert limit_s > 0
        self.world.events.append(f"{self.name} {request['do']}")
        if request["do"] == "sample":
            return {"ms": self.world.ms[self.name]}
        return {"failed": "RuntimeError: broken"} if self.name in self.world.broken else dict(GUARD)

    def end(self) -> None:
        self.world.events.append(f"{self.name} ends")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    this = World()
    monkeypatch.setattr(command, "load", this.load)
    monkeypatch.setattr(command, "arms", this.arms)
    monkeypatch.setattr(command, "machine", mock.Mock(return_value=dict(FACTS)))
    return this


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    out = tmp_path / "models.json"

    def call(*arguments: str) -> tuple[int, Any]:
        status = command.main(["--rounds", "2", "--out", str(out), *arguments])
        return status, json.loads(out.read_text()) if out.exists() else None

    return call


def test_networks_are_tuned_beside_a_load_and_sampled_in_later_processes_without(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    status, written = go(
        "--only", "inference, 1 thread, 2 busy, bert", *("--launches", "2", "--most-launches", "2")
    )
    assert status == 0
    tuned = [
        event
        for arm in ARMS
        for event in ("2 busy begins", f"{arm} prepare", "2 busy ends", f"{arm} ends")
    ]
    assert world.events[:12] == tuned
    launch = [
        "ours prepare",
        "stock prepare",
        "plain prepare",
        *("plain sample", "stock sample", "ours sample"),
        *("stock sample", "ours sample", "plain sample"),
        *("plain ends", "stock ends", "ours ends"),
    ]
    assert world.events[12:] == 2 * launch
    assert world.variables == [{"OMP_NUM_THREADS": "1"}]
    (only,) = written["rows"]
    assert only["to_plain"] == {"median": 0.5, "low": 0.5, "high": 0.5, "verdict": WITHIN}
    assert (only["tuning"]["ours"]["guard_s"], only["later_guard_s"]) == (0.5, 1.0)
    assert written["samples"][only["name"]]["ours"]["samples_ms"] == [1.0] * 4
    assert written["summary"]["to_plain"] == 0.5
    assert all(each["none_slower"] and each["mean_at_most_1"] for each in written["claims"])


def test_one_configuration_of_each_network_has_an_arm_that_always_compares_its_graphs(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    runs = planned(list(NETWORKS))
    guarded = [run.network for run in runs if GUARDED in run.arms]
    assert guarded == list(NETWORKS)
    _, written = go("--only", "2 threads, quiet, bert")
    first, second = written["rows"]
    assert first["tuning"]["guarded"] == GUARD
    assert (first["guarded_to_ours"]["median"], first["guarded_to_plain"]["median"]) == (1.0, 0.5)
    assert "guarded" not in second["tuning"]
    said = {each["name"]: each for each in written["claims"]}
    (name,) = [name for name in said if "guarded" in name]
    assert name == f"{first['configuration']}: guarded"
    assert (said[name]["compares"], said[name]["none_slower"]) == (True, True)
    assert (said[name]["guard_s"], said[name]["guard_share"]) == (0.5, 0.05)
    assert "guarded prepare" in world.events


def test_a_guard_that_compared_nothing_costs_nothing_and_shows_nothing() -> None:
    idle = {**GUARD, "guard_s": 0.0, "graphs_compared": 0}
    rows = [row("fast", Run(""), 0.49, 0.5, 0.51)]
    rows[0] |= {"tuning": {"ours": idle, "guarded": idle}, "guarded_to_plain": rows[0]["to_plain"]}
    *_, guard = claims(by_configuration(rows))
    assert (guard["compares"], guard["none_slower"], guard["mean_at_most_1"]) == (False, None, None)
    rows[0]["tuning"] = {"ours": idle, "guarded": GUARD}
    *_, guard = claims(by_configuration(rows))
    assert (guard["compares"], guard["none_slower"], guard["mean_at_most_1"]) == (True, True, True)


def test_what_is_finished_is_not_measured_again(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    go("--only", "inference, 2 threads, bert")
    world.events.clear()
    status, written = go("--only", "inference, 2 threads, bert", "lstm, training, quiet")
    assert status == 0
    assert len(world.variables) == 4
    assert len(written["rows"]) == len(written["samples"]) == 4
    assert len(written["configurations"]) == 4
    status, written = go("--minutes", "0")
    assert (status, len(written["rows"]), len(world.variables)) == (0, 4, 4)


def test_launches_go_on_while_an_interval_is_open(
    world: World, go: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.97, 0.97, 1.07, 1.07] * 50)  # two rounds a launch
    ask = FakeArm.ask

    def unsteady(arm: FakeArm, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        answer = ask(arm, request, limit_s)
        return {"ms": next(times)} if arm.name == "ours" and "ms" in answer else answer

    monkeypatch.setattr(FakeArm, "ask", unsteady)
    only = (
        "--only",
        "bert, inference, 2 threads, quiet",
        "--launches",
        "2",
        "--most-launches",
        "4",
    )
    _, written = go(*only)
    assert written["rows"][0]["launches"] == 4
    assert written["rows"][0]["to_stock"]["verdict"] == OPEN
    monkeypatch.setattr(FakeArm, "ask", ask)
    _, written = go(*only, "--fresh")
    assert written["rows"][0]["launches"] == 2


def test_an_arm_that_fails_is_named_and_its_run_is_measured_again(
    world: World, go: Callable[..., tuple[int, Any]]
) -> None:
    only = ("--only", "bert, inference, 2 threads, quiet")
    world.broken = ("stock",)
    status, written = go(*only)
    assert status == 1
    assert written["rows"][0]["failed"] == ["stock: RuntimeError: broken"]
    assert "to_stock" not in written["rows"][0]
    assert written["rows"][0]["to_plain"]["median"] == 0.5
    assert "stock sample" not in world.events
    world.broken = ()
    status, written = go(*only)
    assert (status, written["rows"][0]["failed"]) == (0, [])


def test_a_run_that_is_none_is_refused(
    go: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        go("--only", "berta")
    assert "no run has berta in its name" in capsys.readouterr().err


def test_tuned_graphs_are_compared_with_those_of_library_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def compiled(model: torch.nn.Module, **how: Any) -> torch.nn.Module:
        given.append(how)
        return model

    monkeypatch.setattr(torch, "compile", compiled)
    for arm in (*ARMS, GUARDED):
        compiler(arm, tmp_path)(torch.nn.Identity())
    plain, stock, ours, guarded = given
    assert (plain["options"], stock["options"]) == ({"max_autotune": False}, {"max_autotune": True})
    assert ours["backend"] == "inductor_plugin"
    assert "verify_graph" not in ours["options"]
    assert guarded["options"] == {**ours["options"], "verify_graph": "on"}
    assert Path(ours["options"]["cache_dir"]).parent == tmp_path


@pytest.mark.slow
def test_a_later_process_of_an_arm_compiles_and_samples_a_network(tmp_path: Path) -> None:
    request = {"do": "prepare", "network": "half_mlp", "training": False}
    arm = Arm("ours", tmp_path, "benchmarks.models.arm", dry=True)
    try:
        first = arm.ask(request, 600.0)
        arm.end()
        second = arm.ask(request, 600.0)
        assert arm.ask({"do": "sample"}, 60.0)["ms"] > 0
    finally:
        arm.stop()
    assert first["problems"] > 0
    assert max(first["error"], second["error"]) < 0.05
    assert 0.0 <= first["guard_s"] < first["first_call_s"]
