"""One tuning in a process with caches of its own: what is chosen for frozen linear layers, or how fast every candidate is.

python -m benchmarks.choices.arm ours|stock|reference --turns 40 [--warm] [--layers 10]
"""

# torch types these partly; what it leaves open says nothing about the results.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import nn
from torch._inductor.select_algorithm import add_feedback_saver

import inductor_plugin
from inductor_plugin.inductor.candidates.offers import is_cpp, unwrapped
from inductor_plugin.tuning import race
from inductor_plugin.worker.devices.cpu import CPU

_SIZES: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (96, 160, (4, 48, 192, 512)),
    (256, 256, (2, 8, 64, 320)),
    (320, 512, (16, 96, 384)),
    (384, 768, (2, 32, 196)),
    (768, 384, (3, 24, 128)),
    (512, 1024, (12, 80, 256)),
    (1024, 512, (4, 40, 160)),
    (512, 512, (2, 20, 200)),
    (768, 768, (8, 64, 256)),
    (256, 1024, (6, 100, 400)),
    (1024, 256, (3, 50, 300)),
    (640, 640, (10, 72, 144)),
    (128, 2048, (5, 60, 240)),
    (2048, 128, (2, 30, 120)),
    (896, 448, (7, 56, 224)),
    (1152, 288, (2, 18, 90)),
)
Layer = tuple[int, int, int]
LAYERS: tuple[Layer, ...] = tuple(
    (rows, columns, outputs) for columns, outputs, many in _SIZES for rows in many
)
"""Rows, columns and outputs of each layer, in float32: 50, so that a share of 98 % allows a choice that is wrong."""
_OPTIONS = {"progress": "off", "table": "off", "verify_graph": "off"}
"""The plugin's: choices are judged alone, whatever a graph gives up of them."""
_DIGITS = 5
_MOST_S = 60.0
"""Longest time of one problem's turns."""


def main() -> int:
    """Print the answer as JSON, in the last line; the status is 1 if a reference has nothing to compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("ours", "stock", "reference"))
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument(
        "--warm", action="store_true", help="the reference leaves operands in the caches"
    )
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="the first so many")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    inductor_config.freezing = True
    layers = LAYERS[: arguments.layers]
    if arguments.what == "stock":
        answer = stock_choices(layers)
    else:
        turns = arguments.turns if arguments.what == "reference" else 0
        answer = choices(turns, layers, cold=not arguments.warm)
    print(json.dumps(answer))
    if arguments.what == "reference" and not any(map(_is_raced, answer["problems"].values())):
        print("no two candidates of a problem were sampled in turns", file=sys.stderr)
        return 1
    return 0


def compiled(layers: Sequence[Layer], **how: Any) -> Callable[[], object]:
    """Compile layers, each with weights and an operand of its own, in one graph; return its call, which was called once."""
    modules = [nn.Linear(columns, outputs).eval() for _, columns, outputs in layers]
    operands = [torch.randn(rows, columns) for rows, columns, _ in layers]
    graph = torch.compile(
        lambda *inputs: [layer(x) for layer, x in zip(modules, inputs, strict=True)], **how
    )

    @torch.no_grad()
    def call() -> object:
        return graph(*operands)

    call()
    return call


def choices(turns: int, layers: Sequence[Layer] = LAYERS, *, cold: bool = True) -> dict[str, Any]:
    """Tune with the plugin; return by problem what was chosen.

    Args:
        turns: Also measure all candidates in so many turns, and return the samples of the calm ones.
        layers: Rows, columns and outputs of each layer.
        cold: Whether operands are in memory, too, in the samples of these turns, as when the plugin tunes.
    """
    problems: dict[str, Any] = {}

    def take(tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            if ticket.verdict is None or ticket.verdict.winner is None:
                continue
            names = offered_names(ticket)
            winner = ticket.verdict.winner
            entry: dict[str, Any] = {
                "choice": names.get(winner, winner),
                "firm": not ticket.verdict.provisional,
                "measured": not ticket.hit,
            }
            if turns:
                entry |= raced(ticket, names)
            problems[problem_name(ticket.problem.inputs[0].size, ticket.problem.output.size)] = (
                entry
            )

    if turns:
        race_all(turns, cold=cold)
    started = time.perf_counter()
    with inductor_plugin.observe(take):
        compiled(layers, backend="inductor_plugin", options=_OPTIONS)
    return {"compile_s": round(time.perf_counter() - started, 2), "problems": problems}


def race_all(turns: int, *, cold: bool) -> None:
    """Let the finals have one leg of so many turns, with every candidate that runs; for the rest of this process."""
    sampling = replace(race.final_sampling(CPU), max_total_s=_MOST_S, cold_cache=cold)
    race.ROUNDS_PER_LEG, race.MAX_LEGS = turns, 1

    def every(screened: Mapping[str, Any], *_: object, **__: object) -> tuple[str, ...]:
        return tuple(screened) if len(screened) > 1 else ()

    def longest(*_: object, **__: object) -> Any:
        return sampling

    race.leaders, race.final_sampling = every, longest


def raced(ticket: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the samples of each candidate that runs, taken in the same turns, and whether too few turns were calm.

    Args:
        ticket: The problem.
        names: Of each candidate, by its identity.
    """
    rows = {
        names[candidate]: row
        for candidate, row in ticket.measured.items()
        if row.status == "ok" and row.provenance.get("race") == "final"
    }
    is_paired = len({len(row.samples_ms) for row in rows.values()}) == 1
    samples = {name: rounded(row.samples_ms) for name, row in rows.items()} if is_paired else {}
    return {"samples_ms": samples, "disturbed": any(row.noisy for row in rows.values())}


def offered_names(ticket: Any) -> dict[str, str]:
    """Return the names of a problem's candidates by their identity, as stock Inductor's are named here, too."""
    names = distinct(offer.name for offer in ticket.offers)
    return {offer.candidate_id: name for offer, name in zip(ticket.offers, names, strict=True)}


def stock_choices(layers: Sequence[Layer] = LAYERS) -> dict[str, Any]:
    """Tune with Inductor's own max-autotune; return by problem what was chosen."""
    problems: dict[str, Any] = {}

    def take(timings: dict[Any, float], _: str, nodes: Any, offered: Any, *__: Any) -> None:
        fastest = min(timings, key=timings.__getitem__)
        names = distinct(choice_name(choice) for choice in offered)
        by_identity = {id(each): name for each, name in zip(offered, names, strict=True)}
        sizes = (
            [int(s) for s in layout] for layout in (nodes[0].get_size(), offered[0].layout.size)
        )
        problems[problem_name(*sizes)] = {
            "choice": by_identity.get(id(fastest), choice_name(fastest)),
            "firm": True,
            "measured": True,
        }

    add_feedback_saver(take)
    started = time.perf_counter()
    compiled(layers, options={"max_autotune": True})
    return {"compile_s": round(time.perf_counter() - started, 2), "problems": problems}


def choice_name(choice: Any) -> str:
    """Return the name of one of Inductor's choices as the plugin has it (`offers.offer_of`)."""
    inner = unwrapped(choice)
    return f"cpp_{inner.category}" if is_cpp(inner) else str(inner.name)


def distinct(names: Iterable[str]) -> list[str]:
    """Return names, with a number behind those that repeat: Inductor offers the same kernels in the same order to both."""
    seen: Counter[str] = Counter()
    result: list[str] = []
    for name in names:
        seen[name] += 1
        result.append(f"{name} {seen[name]}" if seen[name] > 1 else name)
    return result


def problem_name(operand: Sequence[int], output: Sequence[int]) -> str:
    """Return the name of a problem, by the sizes of its operand and its output."""
    return f"{'x'.join(map(str, operand))} -> {output[-1]}"


def rounded(samples_ms: Iterable[float]) -> list[float]:
    """Return samples with as many digits as they are worth."""
    return [float(f"{sample:.{_DIGITS}g}") for sample in samples_ms]


def _is_raced(problem: Mapping[str, Any]) -> bool:
    return len(problem["samples_ms"]) > 1


if __name__ == "__main__":
    raise SystemExit(main())
