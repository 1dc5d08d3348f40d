"""What choices cost, how often those made beside other work are those of a quiet machine, and how sure that is. Pure."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from inductor_plugin.tuning.report.regret import NEAR, share
from inductor_plugin.tuning.report.regret import regret as regret_of

_LEAST_TURNS = 12
"""Fewest turns of a reference: every second finds the fastest, the others say by how much, for which six are the fewest with an interval."""
_DRAWS = 1000
NEAR_TARGET, SAME_TARGET = 0.98, 0.95
"""Share of choices near the fastest on a quiet machine; share of firm choices beside other work that are those of a quiet one."""
KNOWN_LEAST, FIRM_LEAST = 0.9, 0.5
"""Share of choices of which something has to be known, and of those that have to be firm: claims about fewer are neither true nor
false."""

Costs = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By problem and candidate: its time over that of the fastest (``ratio``), the interval of that, and its milliseconds."""


@dataclass(frozen=True)
class Tuning:
    """What was chosen in one process with empty caches.

    Attributes:
        arm: ``ours`` or ``stock``.
        load: The load beside which it was tuned.
        problems: Of each problem its ``choice``, whether that is ``firm``, and whether it was ``measured``.
        later: The same of a later process with the same caches, on the quiet machine; empty where there was none.
    """

    arm: str
    load: str
    problems: Mapping[str, Mapping[str, Any]]
    later: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def costs(references: Sequence[Mapping[str, Any]]) -> Costs:
    """Return what each candidate costs.

    Problems without a rival, or with too few calm turns, are left out: there is nothing to choose, or nothing is known.

    Args:
        references: What the reference processes say of each problem; turns of several processes count alike.
    """
    names = dict.fromkeys(name for problems in references for name in problems)
    by_problem: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        samples = _pooled([problems[name] for problems in references if name in problems])
        if len(samples) < 2 or len(next(iter(samples.values()))) < _LEAST_TURNS:
            continue
        by_problem[name] = {}
        for candidate, samples_ms in samples.items():
            result = regret_of(candidate, samples)
            by_problem[name][candidate] = {
                "ratio": round(result.ratio, 4),
                "low": round(result.low, 4),
                "high": round(result.high, 4),
                "ms": round(median(samples_ms), 5),
            }
    return by_problem


def _pooled(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the samples of the candidates that all undisturbed processes have sampled, in their turns."""
    calm = [each["samples_ms"] for each in facts if each["samples_ms"] and not each["disturbed"]]
    shared = [name for name in calm[0] if all(name in each for each in calm)] if calm else []
    return {name: [sample for each in calm for sample in each[name]] for name in shared}


def regret(tunings: Sequence[Tuning], reference: Costs) -> dict[str, Any]:
    """Return what choices cost: the share within 2 % of the fastest, and the time lost on average, at most and of a model.

    Args:
        tunings: Tunings under the same conditions.
        reference: What each candidate costs.
    """
    chosen = [
        (name, reference[name][entry["choice"]])
        for tuning in tunings
        for name, entry in tuning.problems.items()
        if name in reference and entry["choice"] in reference[name]
    ]
    if not chosen:
        return {"choices": 0}
    ratios = [cost["ratio"] for _, cost in chosen]
    near = [(name, cost["ratio"] <= NEAR) for name, cost in chosen]
    total_ms = sum(cost["ms"] for _, cost in chosen)
    least_ms = sum(cost["ms"] / cost["ratio"] for _, cost in chosen)
    low, high = _mean_interval([(name, cost["ratio"]) for name, cost in chosen])
    return {
        "choices": len(chosen),
        "unknown": sum(len(tuning.problems) for tuning in tunings) - len(chosen),
        **_named("near", share(near)),
        "mean_time": _mean(ratios),
        "mean_time_low": low,
        "mean_time_high": high,
        "most_time": round(max(ratios), 4),
        "model_time": round(total_ms / least_ms, 4),
    }


def agreement(
    tunings: Sequence[Tuning], quiet: Sequence[Tuning], reference: Costs
) -> dict[str, Any]:
    """Return how many firm choices are those of the quiet machine, and what became of the others.

    Args:
        tunings: Tunings of one arm beside one load.
        quiet: Its tunings on the quiet machine; one of them is compared with the others.
        reference: What each candidate costs.

    Returns:
        ``same``: share of firm choices that are the quiet ones; ``same_or_near``: or take at most 2 % longer than those;
        ``agreed``: the same ones where the quiet tunings agree, and the same or near ones where they differ, since kernels
        that are equally fast are chosen by chance; ``compared``: of how many choices these are shares; ``provisional``: the other choices; ``kept``: those of them that a later process has not measured again;
        ``later_same``: share of the quiet ones among those that it has.
    """
    same: list[tuple[str, bool]] = []
    alike: list[tuple[str, bool]] = []
    agreed: list[tuple[str, bool]] = []
    later: list[tuple[str, bool]] = []
    provisional = kept = 0
    for tuning in tunings:
        counts = _firm_choices([each for each in quiet if each is not tuning])
        usual = {name: _most_often(of) for name, of in counts.items()}
        for name, entry in tuning.problems.items():
            if entry["firm"] and name in usual:
                is_same = entry["choice"] == usual[name]
                known = reference.get(name, {})
                same.append((name, is_same))
                is_alike = is_same or _is_near(known, entry["choice"], usual[name])
                alike.append((name, is_alike))
                agreed.append((name, is_same if len(counts[name]) == 1 else is_alike))
            if not entry["firm"]:
                provisional += 1
                after = tuning.later.get(name)
                if after is None or not after["measured"]:
                    kept += 1
                elif name in usual:
                    later.append((name, after["choice"] == usual[name]))
    return {
        "firm": sum(e["firm"] for tuning in tunings for e in tuning.problems.values()),
        **_named("same", share(same)),
        **_named("same_or_near", share(alike)),
        **_named("agreed", share(agreed)),
        "compared": len(same),
        "provisional": provisional,
        "kept": kept,
        **_named("later_same", share(later)),
    }


def usual_choices(quiet: Sequence[Tuning]) -> dict[str, str]:
    """Return by problem what was chosen most often, of choices that are firm."""
    return {name: _most_often(of) for name, of in _firm_choices(quiet).items()}


def _most_often(choices: Counter[str]) -> str:
    return choices.most_common(1)[0][0]


def _firm_choices(quiet: Sequence[Tuning]) -> dict[str, Counter[str]]:
    """Return by problem how often each candidate was chosen, of choices that are firm."""
    counts: dict[str, Counter[str]] = {}
    for tuning in quiet:
        for name, entry in tuning.problems.items():
            if entry["firm"]:
                counts.setdefault(name, Counter())[entry["choice"]] += 1
    return counts


def summary(
    tunings: Sequence[Tuning],
    reference: Costs,
    warm: Costs | None = None,
    network: Costs | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the figures of each arm beside each load.

    Args:
        tunings: All tunings.
        reference: What each candidate costs.
        warm: The same with operands in the caches; what choices cost by it is ``warm``.
        network: The same in a network of equal layers; what choices cost by it is ``network``.
    """
    result: dict[str, dict[str, Any]] = {}
    for arm, name in dict.fromkeys((tuning.arm, tuning.load) for tuning in tunings):
        these = [t for t in tunings if (t.arm, t.load) == (arm, name)]
        quiet = [t for t in tunings if (t.arm, t.load) == (arm, "quiet")]
        result[f"{arm}, {name}"] = {
            "tunings": len(these),
            **regret(these, reference),
            **agreement(these, quiet, reference),
            "warm": regret(these, warm or {}),
            "network": regret(these, network or {}),
        }
    return result


def claims(figures: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the claims about the plugin's choices: what was measured, the target, and whether it holds.

    That is None where it is unknown: where too little was compared, too. Of the first claim, choices of which nothing is known
    are not near: they may be what goes wrong. Where the quiet tunings differ, a firm choice that is
    near theirs counts as the same (``agreed`` of `agreement`).
    """
    quiet, busy = figures.get("ours, quiet", {}), figures.get("ours, 2 busy", {})
    agreed, kept = busy.get("agreed"), busy.get("kept")
    busy_tells = _is_covered(busy) and busy["compared"] >= KNOWN_LEAST * busy["firm"]
    return [
        _near_claim("quiet: share of choices known to be within 2 % of the fastest", quiet, quiet),
        {
            "name": "2 busy: share of firm choices that are those of the quiet machine, or near them where its tunings differ",
            "value": agreed,
            "target": SAME_TARGET,
            "holds": agreed >= SAME_TARGET if agreed is not None and busy_tells else None,
        },
        {
            "name": "2 busy: other choices that a later process keeps",
            "value": kept,
            "target": 0,
            "holds": None if kept is None else kept == 0,
        },
        _near_claim(
            "quiet, operands in the caches: share of choices known to be within 2 % of the fastest",
            quiet.get("warm", {}),
            quiet,
        ),
    ]


def _near_claim(name: str, figure: Mapping[str, Any], quiet: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim that choices are near the fastest, by what they cost and how many are firm."""
    near = _near_of_all(figure)
    tells = _is_covered({**figure, "firm": quiet.get("firm", 0)})
    return {
        "name": name,
        "value": near,
        "target": NEAR_TARGET,
        "holds": near >= NEAR_TARGET if near is not None and tells else None,
    }


def _near_of_all(figure: Mapping[str, Any]) -> float | None:
    """Return the share of all choices that are near the fastest, those without a reference among them as far ones."""
    known, near = figure.get("choices", 0), figure.get("near")
    return None if near is None else round(near * known / (known + figure.get("unknown", 0)), 4)


def _is_covered(figure: Mapping[str, Any]) -> bool:
    """Return True if enough is known of an arm's choices beside a load, and enough of them are firm."""
    known, firm = figure.get("choices", 0), figure.get("firm", 0)
    choices = known + figure.get("unknown", 0)
    return choices > 0 and known >= KNOWN_LEAST * choices and firm >= FIRM_LEAST * choices


def _is_near(known: Mapping[str, Mapping[str, float]], choice: str, usual: str) -> bool:
    """Return True if a choice takes at most 2 % longer than another, as far as is known."""
    if choice not in known or usual not in known:
        return False
    return known[choice]["ratio"] <= NEAR * known[usual]["ratio"]


def _named(name: str, values: tuple[float, float, float] | None) -> dict[str, float | None]:
    middle, low, high = values or (None, None, None)
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 4)


def _mean_interval(chosen: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """Return the 95 % interval of the geometric mean, by drawing problems (bootstrap)."""
    by_problem: dict[str, list[float]] = {}
    for name, ratio in chosen:
        by_problem.setdefault(name, []).append(ratio)
    problems, chance = list(by_problem.values()), random.Random(0)
    means = sorted(
        _mean([ratio for ratios in chance.choices(problems, k=len(problems)) for ratio in ratios])
        for _ in range(_DRAWS)
    )
    return means[int(0.025 * _DRAWS)], means[int(0.975 * _DRAWS)]
