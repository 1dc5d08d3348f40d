"""What the benchmark of choices makes of samples and choices, and that its arms name the candidates alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.choices import regret as regret_module
from benchmarks.choices.arm import LAYERS, distinct, race_all
from benchmarks.choices.figures import (
    Tuning,
    agreement,
    claims,
    costs,
    regret,
    summary,
    usual_choices,
)
from inductor_plugin.tuning import race
from inductor_plugin.tuning.report.regret import share
from inductor_plugin.worker.devices.cpu import CPU

FACTS = {"gpu": "cpu", "torch": "2", "sources": "a"}


def reference(*, disturbed: bool = False, **samples_ms: list[float]) -> dict[str, Any]:
    return {"samples_ms": samples_ms, "disturbed": disturbed}


def entry(choice: str, *, firm: bool = True, measured: bool = True) -> dict[str, Any]:
    return {"choice": choice, "firm": firm, "measured": measured}


def tuning(load_name: str = "quiet", later: dict[str, Any] | None = None, **of: Any) -> Tuning:
    return Tuning("ours", load_name, of, later or {})


KNOWN = costs(
    [
        {
            "a": reference(library=[3.0] * 12, rival=[2.0] * 12),
            "b": reference(library=[1.0] * 12, rival=[1.01] * 12),
        }
    ]
)


def test_a_candidate_costs_what_it_takes_more_than_the_fastest() -> None:
    assert KNOWN.keys() == {"a", "b"}
    assert (KNOWN["a"]["library"]["ratio"], KNOWN["a"]["rival"]["ratio"]) == (1.5, 1.0)
    assert KNOWN["b"]["rival"]["ratio"] == 1.01


def test_a_rival_that_is_slow_is_not_the_fastest() -> None:
    """Of three candidates: whoever chooses the slow rival has not chosen as the fast one."""
    (problem,) = costs(
        [{"a": reference(library=[2.0] * 12, fast=[1.0] * 12, slow=[4.0] * 12)}]
    ).values()
    assert {name: cost["ratio"] for name, cost in problem.items()} == {
        "library": 2.0,
        "fast": 1.0,
        "slow": 4.0,
    }
    facts = regret([tuning(a=entry("slow"))], {"a": problem})
    assert (facts["near"], facts["most_time"], facts["model_time"]) == (0.0, 4.0, 4.0)


def test_problems_of_which_nothing_is_known_are_left_out_and_counted() -> None:
    few, calm = [1.0] * 3, [1.0] * 12
    known = costs(
        [
            {
                "alone": reference(library=calm),
                "few": reference(library=few, rival=few),
                "disturbed": reference(disturbed=True, library=calm, rival=calm),
                "unpaired": reference(),
            }
        ]
    )
    assert known == {}
    assert costs([]) == {}
    assert regret([tuning(alone=entry("library"))], known) == {"choices": 0}
    facts = regret([tuning(a=entry("library"), new=entry("library"))], KNOWN)
    assert (facts["choices"], facts["unknown"]) == (1, 1)


def test_turns_of_several_processes_count_alike_and_disturbed_ones_not_at_all() -> None:
    slow, fast = [2.0] * 12, [1.0] * 12
    processes = [
        {"a": reference(library=slow, rival=fast)},
        {"a": reference(disturbed=True, library=fast, rival=slow)},
        {"a": reference(library=slow, rival=fast, third=fast)},
    ]
    (problem,) = costs(processes).values()
    assert {name: cost["ratio"] for name, cost in problem.items()} == {"library": 2.0, "rival": 1.0}


def test_what_choices_cost() -> None:
    facts = regret([tuning(a=entry("library", firm=False), b=entry("rival"))], KNOWN)
    assert (facts["choices"], facts["near"], facts["most_time"]) == (2, 0.5, 1.5)
    assert facts["mean_time"] == pytest.approx((1.5 * 1.01) ** 0.5, rel=1e-3)
    assert facts["mean_time_low"] < facts["mean_time"] < facts["mean_time_high"]
    assert facts["model_time"] == pytest.approx((3.0 + 1.01) / (2.0 + 1.0), rel=1e-3)


def test_rounds_of_the_same_problems_do_not_narrow_the_interval() -> None:
    once = [(str(number), number > 0) for number in range(50)]
    assert share([]) is None
    assert share(once) == share(once * 4)
    part, low, high = share(once) or (0.0, 0.0, 0.0)
    assert (part, low, high) == (
        0.98,
        pytest.approx(0.895, abs=0.01),
        pytest.approx(0.996, abs=0.01),
    )
    assert (share([(str(n), True) for n in range(50)]) or (0, 1, 0))[1] < 0.94


def test_firm_choices_are_compared_with_those_of_the_quiet_machine() -> None:
    quiet = [tuning(a=entry("rival"), b=entry("library"))] * 2
    busy = tuning("2 busy", a=entry("library"), b=entry("rival"), c=entry("rival"))
    facts = agreement([busy], quiet, KNOWN)
    assert (facts["firm"], facts["same"], facts["same_or_near"]) == (3, 0.0, 0.5)
    assert (facts["provisional"], facts["kept"], facts["later_same"]) == (0, 0, None)
    again = agreement([tuning("2 busy", a=entry("rival"), b=entry("library"))], quiet, KNOWN)
    assert again["same"] == 1.0


def test_a_quiet_tuning_is_compared_with_the_others() -> None:
    first, second = tuning(a=entry("rival")), tuning(a=entry("library"))
    assert agreement([first, second], [first, second], KNOWN)["same"] == 0.0
    assert agreement([first], [first], KNOWN)["same"] is None
    assert usual_choices([first, first, second]) == {"a": "rival"}
    assert usual_choices([tuning(a=entry("rival", firm=False))]) == {}


def test_a_provisional_choice_is_kept_if_the_later_process_does_not_measure_it() -> None:
    quiet = [tuning(a=entry("rival"), b=entry("rival"), c=entry("rival"))]
    loose = entry("library", firm=False)
    later = {"a": entry("rival"), "b": entry("library", measured=False)}
    facts = agreement([tuning("2 busy", later, a=loose, b=loose, c=loose)], quiet, KNOWN)
    assert (facts["firm"], facts["same"]) == (0, None)
    assert (facts["provisional"], facts["kept"], facts["later_same"]) == (3, 2, 1.0)


def test_the_claims_name_what_was_measured_and_whether_it_holds() -> None:
    assert [claim["holds"] for claim in claims({})] == [None, None, None, None]
    covered = {"choices": 50, "unknown": 0, "firm": 25, "compared": 25}
    near, agreed = {**covered, "near": 0.98}, {**covered, "agreed": 0.94, "kept": 1}
    figures = {"ours, quiet": near, "ours, 2 busy": agreed}
    assert [claim["holds"] for claim in claims(figures)] == [True, False, False, None]
    tunings = [tuning(a=entry("rival")), tuning("2 busy", a=entry("rival"))]
    measured = summary(tunings, KNOWN)
    assert measured.keys() == {"ours, quiet", "ours, 2 busy"}
    assert [claim["holds"] for claim in claims(measured)] == [True, True, True, None]
    turned = costs([{"a": reference(library=[2.0] * 12, rival=[3.0] * 12)}])
    for warm, holds in ((KNOWN, True), (turned, False)):
        said = claims(summary(tunings, KNOWN, warm))
        assert [claim["holds"] for claim in said] == [True, True, True, holds]


@pytest.mark.parametrize(("unknown", "holds"), [(0, True), (1, True), (2, False)])
def test_choices_of_which_nothing_is_known_are_not_near_in_the_claim(
    unknown: int, holds: bool
) -> None:
    known = {"choices": 50 - unknown, "unknown": unknown, "firm": 50, "near": 1.0}
    claim = claims({"ours, quiet": known})[0]
    assert (claim["value"], claim["holds"]) == (1.0 - unknown / 50, holds)


@pytest.mark.parametrize(
    ("few", "holds"),
    [
        ({"choices": 44, "unknown": 6}, [None, None]),
        ({"firm": 24, "compared": 24}, [None, None]),
        ({"compared": 20}, [False, None]),
    ],
)
def test_claims_about_few_of_the_choices_are_neither_true_nor_false(
    few: dict[str, int], holds: list[bool | None]
) -> None:
    figure = {"choices": 45, "unknown": 5, "firm": 25, "compared": 25, "near": 1.0, "agreed": 1.0}
    said = claims({"ours, quiet": {**figure, **few}, "ours, 2 busy": {**figure, **few, "kept": 0}})
    assert [claim["holds"] for claim in said[:2]] == holds


def test_one_firm_choice_of_fifty_shows_nothing() -> None:
    loose = {f"layer {number}": entry("rival", firm=False) for number in range(49)}
    reference_of = dict.fromkeys((*loose, "a"), KNOWN["a"])
    quiet = Tuning("ours", "quiet", {name: entry("rival") for name in reference_of})
    busy = tuning("2 busy", a=entry("rival"), **loose)
    figures = summary([quiet, quiet, busy], reference_of)
    assert (figures["ours, 2 busy"]["agreed"], figures["ours, 2 busy"]["firm"]) == (1.0, 1)
    assert [claim["holds"] for claim in claims(figures)[:2]] == [True, None]


def test_where_quiet_tunings_differ_a_choice_that_is_near_theirs_agrees() -> None:
    quiet = [tuning(b=entry("library")), tuning(b=entry("rival"))]
    for chosen in ("library", "rival"):
        assert agreement([tuning("2 busy", b=entry(chosen))], quiet, KNOWN)["agreed"] == 1.0
    busy = tuning("2 busy", b=entry("rival"))
    assert agreement([busy], [tuning(b=entry("library"))] * 2, KNOWN)["agreed"] == 0.0
    far = [tuning(a=entry("rival")), tuning(a=entry("rival")), tuning(a=entry("library"))]
    assert agreement([tuning("2 busy", a=entry("library"))], far, KNOWN)["agreed"] == 0.0


def test_the_layers_are_fifty_problems() -> None:
    assert len(set(LAYERS)) == len({(rows, columns, outputs) for rows, columns, outputs in LAYERS})
    assert len(LAYERS) == 50


def test_candidates_of_the_same_name_have_numbers() -> None:
    assert distinct(["mm", "cpp", "cpp", "mm"]) == ["mm", "cpp", "cpp 2", "mm 2"]


class Processes:
    """Has the place of the processes: says what was asked of them.

    Attributes:
        asked: Arm and load of each.
        broken: Arms that do not answer.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.broken: tuple[str, ...] = ()
        self.samples = {"library": [2.0] * 12, "rival": [1.0] * 12}
        self.warm = {"library": [1.0] * 12, "rival": [1.5] * 12}
        self.network = {"library": [1.0] * 12, "rival": [1.25] * 12}

    def run(self, arm: str, load_name: str, folder: Path, turns: int, layers: int) -> Any:
        assert (folder.is_dir(), turns, layers) == (True, 40, 0)
        self.asked.append((arm, load_name))
        if arm in self.broken:
            raise regret_module.ArmError("it ended with 1: TypeError")
        if arm == "network":
            problem = {"samples_ms": self.network, "disturbed": False}
        elif "reference" in arm:
            samples = self.samples if arm == "reference" else self.warm
            problem = {"samples_ms": samples, "disturbed": False, **entry("rival")}
        else:
            firm = load_name == "quiet"
            problem = entry("rival" if firm else "library", firm=firm)
        return {"compile_s": 1.0, "problems": {"a": problem}}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    these = Processes()
    monkeypatch.setattr(regret_module, "run", these.run)
    monkeypatch.setattr(regret_module, "machine", mock.Mock(return_value=dict(FACTS)))
    monkeypatch.setattr(regret_module.time, "sleep", mock.Mock())
    return these


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    out = tmp_path / "regret.json"

    def call(*arguments: str) -> tuple[int, Any]:
        status = regret_module.main(
            ["--rounds", "1", "--loads", "quiet", "2 busy", "--out", str(out), *arguments]
        )
        return status, json.loads(out.read_text()) if out.exists() else None

    return call


def test_a_run_has_the_figures_of_both_arms_and_goes_on_where_it_was(
    processes: Processes, go: Callable[..., tuple[int, Any]]
) -> None:
    status, written = go()
    assert status == 0
    assert processes.asked == [
        *[("reference", "quiet"), ("warm reference", "quiet")] * 2,
        ("network", "quiet"),
        ("ours", "quiet"),
        ("stock", "quiet"),
        ("ours", "2 busy"),
        ("ours", "quiet"),  # the later process with the caches of the busy one
        ("stock", "2 busy"),
    ]
    figures = written["summary"]
    assert figures["ours, quiet"]["near"] == figures["stock, quiet"]["near"] == 1.0
    assert (figures["ours, 2 busy"]["provisional"], figures["ours, 2 busy"]["kept"]) == (1, 0)
    assert figures["ours, quiet"]["warm"]["mean_time"] == 1.5
    assert figures["ours, quiet"]["network"]["mean_time"] == 1.25
    assert [claim["holds"] for claim in written["claims"]] == [True, None, True, False]
    assert go()[0] == 0
    assert len(processes.asked) == 10
    go("--rounds", "2")
    assert len(processes.asked) == 15


def test_without_figures_the_status_is_not_zero(
    processes: Processes, go: Callable[..., tuple[int, Any]]
) -> None:
    processes.samples = {}
    status, written = go()
    assert written["summary"]["ours, quiet"]["choices"] == 0
    assert status == 1


def test_a_process_that_fails_is_named_and_tried_again(
    processes: Processes, go: Callable[..., tuple[int, Any]]
) -> None:
    processes.broken = ("stock",)
    status, written = go()
    assert status == 1
    failed = {row["name"]: row["failed"] for row in written["rows"] if "failed" in row}
    assert failed.keys() == {"stock, quiet, 0", "stock, 2 busy, 0"}
    processes.broken, processes.asked = (), []
    status, written = go()
    assert status == 0
    assert processes.asked == [("stock", "quiet"), ("stock", "2 busy")]


def test_no_process_starts_after_the_minutes(
    processes: Processes, go: Callable[..., tuple[int, Any]]
) -> None:
    status, written = go("--minutes", "0")
    assert (status, written, processes.asked) == (1, None, [])


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("reference", ["arm", "reference"]),
        ("warm reference", ["arm", "reference", "--warm"]),
        ("network", ["network"]),
        ("ours", ["arm", "ours"]),
    ],
)
def test_each_arm_is_a_program_and_a_warm_reference_an_option(
    arm: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = mock.Mock(return_value=mock.Mock(returncode=0, stdout="{}"))
    monkeypatch.setattr(regret_module.subprocess, "run", done)
    assert regret_module.run(arm, "quiet", tmp_path, turns=4) == {}
    (command,) = done.call_args.args
    assert command[2:] == [f"benchmarks.choices.{words[0]}", *words[1:], "--turns", "4"]


@pytest.mark.parametrize("cold", [True, False])
def test_caches_are_evicted_before_samples_where_that_is_asked_for(
    cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROUNDS_PER_LEG", "MAX_LEGS", "leaders", "final_sampling"):
        monkeypatch.setattr(race, name, getattr(race, name))  # which `race_all` replaces
    race_all(4, cold=cold)
    assert race.final_sampling(CPU).cold_cache is cold


@pytest.mark.slow
def test_a_reference_samples_every_candidate_in_turns_and_stock_names_them_alike(
    tmp_path: Path,
) -> None:
    """A race that ends in an error has no samples, and would leave the benchmark without figures."""
    answer = regret_module.run("reference", "quiet", tmp_path, turns=4, layers=1)
    (problem,) = answer["problems"].values()
    samples = problem["samples_ms"]
    assert len(samples) >= 2
    assert problem["choice"] in samples
    (turns,) = {len(each) for each in samples.values()}
    assert 1 <= turns <= 4
    warm = regret_module.run("warm reference", "quiet", tmp_path / "warm", turns=4, layers=1)
    assert all(each["samples_ms"].keys() == samples.keys() for each in warm["problems"].values())
    built = regret_module.run("network", "quiet", tmp_path / "network", turns=2, layers=1)
    (in_networks,) = built["problems"].values()
    assert built["problems"].keys() == answer["problems"].keys()
    assert in_networks["samples_ms"].keys() == samples.keys()
    assert all(0 < min(each) < 10 for each in in_networks["samples_ms"].values())
    stock = regret_module.run("stock", "quiet", tmp_path, turns=0, layers=1)
    assert stock["problems"].keys() == answer["problems"].keys()
    assert all(entry["choice"] in samples for entry in stock["problems"].values())
