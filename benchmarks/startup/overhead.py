"""The cost of the plugin when all records exist: 200 matrix products, compared with stock max-autotune.

Both read their timings, and Inductor's compiled code, from disk. Each figure comes from a separate
process; the order alternates between rounds.

    lower  The model is frozen, so each product is a choice. Inductor's FX-graph cache skips such
           graphs: the graph is lowered again, and each product is looked up again, in the plugin's
           records or in Inductor's timing cache.
    hit    The model is not frozen and Inductor's FX-graph cache has it: the plugin only adds
           its import and its options.

In ``lower`` both are forced to choose the library kernel everywhere: a C++ template that wins costs
50 ms of code generation, and the winner may differ by noise.

    python -m benchmarks.startup.overhead --rounds 5 --out benchmarks/results/overhead_cpu.json
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.child import child_environment
from benchmarks.harness.repository import REPOSITORY
from benchmarks.startup.cold_warm import machine

PRODUCTS = 200
ROWS = 256
WIDTHS = (256, 320, 384, 448)
LIMIT = 1.03
STATES = ("lower", "hit")
VARIANTS = ("stock", "plugin")
TIMEOUT_S = 1800


def main() -> int:
    """Run the rounds, print a verdict, and write the figures to ``--out``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--products", type=int, default=PRODUCTS)
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--out", type=Path, help="file for the JSON")
    parser.add_argument("--profile", action="store_true", help="print where the plugin's time goes")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child, arguments.products, profiled=arguments.profile)))
        return 0
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        for state in arguments.states:  # fills the caches
            for variant in VARIANTS:
                run(variant, state, arguments.products, folder)
        if "lower" in arguments.states:
            make_library_win(Path(folder))
        if arguments.profile:
            for state in arguments.states:
                report = run("plugin", state, arguments.products, folder, "--profile")
                print(f"{state}:\n{report['profile']}")
            return 0
        runs = measured(arguments.rounds, arguments.states, arguments.products, folder)
    figures = summary(runs, arguments.states)
    print(json.dumps(figures, indent=2))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine(), "summary": figures, "runs": runs}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    worst = max(figures[f"{state}_ratio"] for state in arguments.states)
    passed = worst <= LIMIT
    print(f"{'PASS' if passed else 'FAIL'}: {worst:.3f}x stock's warm compile, limit {LIMIT}")
    return 0 if passed else 1


def measured(
    rounds: int, states: tuple[str, ...], products: int, folder: str
) -> dict[str, list[dict[str, Any]]]:
    """Return what the processes of all rounds report, by ``variant state``."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for state in states:
            for variant in VARIANTS[:: 1 if number % 2 == 0 else -1]:
                report = run(variant, state, products, folder)
                runs.setdefault(f"{variant} {state}", []).append(report)
                print(f"{number} {variant:6s} {state:5s}: {json.dumps(report)}", flush=True)
    return runs


def run(variant: str, state: str, products: int, folder: str, *more: str) -> dict[str, Any]:
    """Return what one process reports."""
    environment = child_environment(
        TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor-{variant}",
        TORCHINDUCTOR_FREEZING=str(int(state == "lower")),
        INDUCTOR_PLUGIN_CACHE_DIR=f"{folder}/plugin",
    )
    command = [
        sys.executable,
        "-m",
        "benchmarks.startup.overhead",
        "--child",
        variant,
        "--products",
        str(products),
        *more,
    ]
    done = subprocess.run(
        command,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{variant} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def make_library_win(folder: Path) -> None:
    """Make every C++ template slow in Inductor's timing cache."""
    for path in (folder / "inductor-stock" / "cache").iterdir():
        content = json.loads(path.read_text(encoding="utf-8"))
        for by_inputs in content["cache"].values():
            for by_precision in by_inputs.values():
                for timings in by_precision.values():
                    timings.update({name: 1e6 for name in timings if name.startswith("Cpp")})
        path.write_text(json.dumps(content), encoding="utf-8")


def child(variant: str, products: int, *, profiled: bool) -> dict[str, Any]:
    """Compile the model and return the seconds until its first answer."""
    import torch

    model, x = stack(torch, products)
    profile = cProfile.Profile()
    with torch.no_grad():
        # Stock imports Inductor (2 s) in `torch.compile`, a named backend in the first call.
        started, cpu = time.perf_counter(), time.process_time()
        if variant == "plugin":
            options: dict[str, Any] = {"never_slower_margin": 1e6}
            compiled = torch.compile(model, backend="inductor_plugin", options=options)
        else:
            compiled = torch.compile(model, options={"max_autotune": True})
        if profiled:
            profile.enable()
        compiled(x)
        profile.disable()
        report: dict[str, Any] = {
            "compile_s": round(time.perf_counter() - started, 3),
            "cpu_s": round(time.process_time() - cpu, 3),
        }
    if variant == "plugin":
        import inductor_plugin

        spent = inductor_plugin.stats()
        report |= {
            name: getattr(spent, name) for name in ("problems", "record_hits", "benchmarked")
        }
    if profiled:
        report["profile"] = own_part(profile)
    return report


def stack(torch: Any, products: int) -> tuple[Any, Any]:
    """Return a chain of linear layers with as many products, and its input."""
    torch.manual_seed(0)
    widths = [WIDTHS[i % len(WIDTHS)] for i in range(products + 1)]
    layers: list[Any] = []
    for left, right in itertools.pairwise(widths):
        layers += [torch.nn.Linear(left, right), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).eval(), torch.randn(ROWS, widths[0])


def own_part(profile: cProfile.Profile) -> str:
    """Return the plugin's functions by the seconds spent in and below them."""
    stats: Any = pstats.Stats(profile)
    rows: list[tuple[float, float, int, str]] = [
        (cumulative, own, calls, f"{Path(file).name}:{line} {name}")
        for (file, line, name), (_, calls, own, cumulative, _) in stats.stats.items()
        if "inductor_plugin" in file or "/cache/" in file
    ]
    lines = [f"{c:8.3f} s below, {o:7.3f} s own, {n:7d} calls  {w}" for c, o, n, w in sorted(rows)]
    return "\n".join(lines[::-1][:50])


def summary(runs: dict[str, list[dict[str, Any]]], states: tuple[str, ...]) -> dict[str, float]:
    """Return medians over the rounds and the ratios of them.

    The ratio is the median over rounds, since both processes of a round run under the same conditions.
    """
    figures: dict[str, float] = {}
    for state in states:
        stock, plugin = runs[f"stock {state}"], runs[f"plugin {state}"]
        for field, name in (("compile_s", "ratio"), ("cpu_s", "cpu_ratio")):
            figures[f"{state}_stock_{field}"] = statistics.median(r[field] for r in stock)
            figures[f"{state}_plugin_{field}"] = statistics.median(r[field] for r in plugin)
            figures[f"{state}_{name}"] = statistics.median(
                p[field] / s[field] for s, p in zip(stock, plugin, strict=True)
            )
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
