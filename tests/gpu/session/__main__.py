"""Runs on a GPU what the GPU tests and benchmarks have to say, the most telling first, within a budget.

    python -m tests.gpu.session [--budget-s 540] [--results DIR] [--part tests|speed|all|cpu] [--again [STEP ...]]

Works from a bare checkout: nothing of it has to be installed, and no network is used. Each step is a process with a
limit of its own; it is killed there with all that it started, and the next one begins. A step that has passed in DIR
is not run again on the same machine unless --again names it, so that a session that was ended goes on. DIR receives
session.json (how each step went), session.log (what they printed), and tests.json, probe.json, gemm.json,
attention.json and fused.json, written as they go.

--part cpu needs no GPU: it shows that a machine has all that a session needs but for that.

Kernels are built into --kernels, in parallel, and found there by the next session. --pack takes over a file of kernels
built beforehand on a machine without a GPU (`python -m tests.gpu.session.pack`). CUTLASS kernels of such a file serve
any Python and any nvcc of the same major version; Triton's do not: Triton names a cubin after a digest of its own
libtriton.so, which differs from one version of Python to the next.

Exits with 0 if all steps have passed, 1 if one failed, 2 if the machine lacks something, 3 if the budget ended first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.repository import RESULTS
from benchmarks.harness.resume import Budget
from benchmarks.harness.sources import PLUGIN, sources_digest
from tests.gpu.session import plan, requirements, simulation, table
from tests.gpu.session.process import ended_by_signals
from tests.gpu.session.run import Session, environment, opened, run
from tests.gpu.session.step import ALL, Step

SOURCES = (*PLUGIN, "benchmarks", "tests/gpu")
DEFAULT = RESULTS / "gpu"


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; see the docstring of this file."""
    chosen = parser().parse_args(arguments)
    if chosen.simulate:
        with tempfile.TemporaryDirectory() as folder:
            return simulation.main(Path(folder))
    results: Path = chosen.results.resolve()
    kernels: Path = (chosen.kernels or results / "kernels").resolve()
    pack = chosen.pack and chosen.pack.resolve()
    try:
        on_cpu = chosen.part == plan.CPU
        every = plan.cpu(results, kernels) if on_cpu else plan.plan(results, kernels, pack)
        steps = plan.chosen(every, chosen.part, chosen.only, chosen.again or ())
    except LookupError as error:
        print(error)
        return 2
    if chosen.list:
        print("\n".join(table.plan_lines(steps)))
        return 0
    if not ready(steps):
        return 2
    again = (ALL,) if chosen.again == [] else tuple(chosen.again or ())
    session = Session(steps, results, environment(kernels), sources_digest(SOURCES))
    rows = opened(results, requirements.machine())
    if rows.rejection:
        print(rows.rejection)
    with ended_by_signals():
        return run(session, rows, Budget(chosen.budget_s), again)


def ready(steps: list[Step]) -> bool:
    """Print what the machine lacks; return whether the steps can run."""
    fatal, noted = requirements.missing(steps)
    for line in noted:
        print(f"note: {line}")
    for line in fatal:
        print(line)
    if fatal:
        print("Nothing was run. Bring the packages as wheels, and put them on PYTHONPATH.")
    return not fatal


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    needed = f"packages that the machine has to have, or that are brought as wheels:\n{requirements.described()}"
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.session",
        description=__doc__,
        epilog=needed,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kept = os.environ.get("INDUCTOR_PLUGIN_CACHE_DIR", "")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=float("inf"),
        help="seconds of this run; by default only each step's own limit counts",
    )
    parser.add_argument(
        "--results", type=Path, default=DEFAULT, help="folder of the results; %(default)s"
    )
    parser.add_argument(
        "--kernels",
        type=Path,
        default=Path(kept) if kept else None,
        help="cache directory of what is built; $INDUCTOR_PLUGIN_CACHE_DIR, else RESULTS/kernels",
    )
    parser.add_argument("--pack", type=Path, help="file of kernels that were built beforehand")
    parser.add_argument("--part", choices=("all", *plan.PARTS[1:], plan.CPU), default="all")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="STEP", help="these, and the first"
    )
    parser.add_argument(
        "--again",
        nargs="*",
        metavar="STEP",
        help="run these although they have passed; all of them if none is named",
    )
    parser.add_argument("--list", action="store_true", help="show the steps and their limits")
    parser.add_argument(
        "--simulate", action="store_true", help="check the session itself, without a GPU"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
