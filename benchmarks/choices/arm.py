"""One tuning in a process with empty caches: what is chosen for frozen linear layers, or how fast every candidate is.

python -m benchmarks.choices.arm ours|stock|reference --turns 60
"""

# torch types these partly; what it leaves open says nothing about the results.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import inductor_plugin
from inductor_plugin.tuning import race
from inductor_plugin.worker.devices.cpu import CPU

LAYERS: tuple[tuple[int, int, int], ...] = (
    *((rows, 96, 160) for rows in (4, 48, 192)),
    *((rows, 256, 256) for rows in (8, 64, 320)),
    *((rows, 320, 512) for rows in (16, 96)),
    *((rows, 384, 768) for rows in (2, 32, 196)),
    *((rows, 768, 384) for rows in (24, 128)),
    *((rows, 512, 1024) for rows in (12, 80, 256)),
)
"""Rows, columns and outputs of each layer, in float32."""


def main() -> int:
    """Print the answer as JSON, in the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("ours", "stock", "reference"))
    parser.add_argument("--turns", type=int, default=60)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.what == "stock":
        print(json.dumps(stock_choices()))
        return 0
    print(json.dumps(choices(arguments.turns if arguments.what == "reference" else 0)))
    return 0


def compile_layers(**how: Any) -> None:
    """Compile all layers in one graph, and call it."""
    layers = [nn.Linear(columns, outputs).eval() for _, columns, outputs in LAYERS]
    operands = [torch.randn(rows, columns) for rows, columns, _ in LAYERS]
    compiled = torch.compile(
        lambda *inputs: [layer(x) for layer, x in zip(layers, inputs, strict=True)], **how
    )
    with torch.no_grad():
        compiled(*operands)


def choices(turns: int) -> dict[str, Any]:
    """Tune with the plugin; return by problem what was chosen.

    Args:
        turns: Also measure all candidates in so many turns, and return the samples of the calm ones.
    """
    problems: dict[str, Any] = {}

    def take(tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            library = ticket.verdict.library
            entry: dict[str, Any] = {
                "choice": "library" if ticket.verdict.winner == library else "rival",
                "firm": not ticket.verdict.provisional,
            }
            if turns:
                entry["samples_ms"] = raced(ticket)
            problems[_name(ticket.problem.inputs[0].size, ticket.problem.output.size)] = entry

    if turns:
        race_all(turns)
    started = time.perf_counter()
    with inductor_plugin.observe(take):
        compile_layers(backend="inductor_plugin", options={"progress": "off", "table": "off"})
    return {"compile_s": round(time.perf_counter() - started, 2), "problems": problems}


def race_all(turns: int) -> None:
    """Let the finals have one leg of so many turns, with every candidate that runs."""
    sampling = replace(race.final_sampling(CPU), max_total_s=60.0)
    race.ROUNDS_PER_LEG, race.MAX_LEGS = turns, 1
    race.leaders = lambda screened, _: tuple(screened)
    race.final_sampling = lambda _: sampling


def raced(ticket: Any) -> dict[str, list[float]]:
    """Return milliseconds of the library kernel and its fastest rival, sampled in turns; nothing if one was disturbed."""
    rows = [row for row in ticket.measured.values() if row.status == "ok" and not row.noisy]
    libraries = {offer.candidate_id for offer in ticket.offers if offer.library}
    library = next((row for row in rows if row.candidate in libraries), None)
    rivals = sorted((r for r in rows if r.candidate not in libraries), key=lambda r: r.median_ms)
    if library is None or not rivals:
        return {}
    return {"library": list(library.samples_ms), "rival": list(rivals[0].samples_ms)}


def stock_choices() -> dict[str, Any]:
    """Tune with Inductor's own max-autotune; return by problem what was chosen."""
    from torch._inductor.select_algorithm import ExternKernelCaller, add_feedback_saver

    problems: dict[str, Any] = {}

    def take(timings: dict[Any, float], _name_of: str, nodes: Any, offered: Any, *_: Any) -> None:
        fastest = min(timings, key=timings.__getitem__)
        choice = "library" if isinstance(fastest, ExternKernelCaller) else "rival"
        sizes = (
            [int(s) for s in layout] for layout in (nodes[0].get_size(), offered[0].layout.size)
        )
        problems[_name(*sizes)] = {"choice": choice, "firm": True}

    add_feedback_saver(take)
    started = time.perf_counter()
    compile_layers(options={"max_autotune": True})
    return {"compile_s": round(time.perf_counter() - started, 2), "problems": problems}


def _name(operand: Sequence[int], output: Sequence[int]) -> str:
    return f"{'x'.join(map(str, operand))} -> {output[-1]}"


if __name__ == "__main__":
    raise SystemExit(main())
