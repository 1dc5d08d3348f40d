"""A session of steps that pass, fail, hang, die and run out of the budget, without a GPU: what it has to do with them.

Needs nothing but Python's own modules, so that a bare checkout can be tried.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.resume import Budget, Rows
from tests.gpu.session.run import END_S, FILE, Session, environment, opened, run
from tests.gpu.session.step import Step

FACTS = {"gpu": "simulated", "driver": "1", "torch": "2", "triton": "3", "dry": True, "sources": ""}
BUDGET_S = 1000.0
REST_S = 1.0
"""Seconds that are left of the budget when the step ``is cut`` begins."""
LONG_S = 60
_SNIPPETS = {
    "passes": "print('summary: 3 passed')",
    "imports this checkout": (
        "import inductor_plugin, pathlib; here = pathlib.Path(inductor_plugin.__file__).resolve();"
        "assert here.is_relative_to(pathlib.Path.cwd()), here; print('summary:', here.parents[1].name)"
    ),
    "fails": "print('it is wrong'); sys.exit(0 if mended else 1)",
    "hangs": (
        "import signal, subprocess, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True); mark('grandchild', child.pid); time.sleep(0 if mended else 60)"
    ),
    "dies": "import os; mended or os.kill(os.getpid(), 11)",
    "goes on": "print('' if mended else '5 rows are left (x is next); run it again to go on.')",
    "is cut": f"import time; time.sleep(0 if mended else {LONG_S})",
    "is not begun": "pass",
}
_HEAD = (
    "import pathlib, sys; name, folder = sys.argv[1], pathlib.Path(sys.argv[2]);"
    "mark = lambda what, text: (folder / what).write_text(str(text));"
    "mended = (folder / 'mended').exists();"
    "runs = folder / (name + '.runs'); runs.write_text((runs.read_text() if runs.exists() else '') + 'x');"
)


def plan(folder: Path, hang_s: float) -> list[Step]:
    """Return the steps; they leave traces in ``folder``, and one hangs for ``hang_s`` seconds."""
    limits = {"hangs": hang_s}
    least = {"is not begun": 20.0}
    return [
        Step(
            name,
            "simulated",
            ("-S", "-c", _HEAD + code, name, str(folder)),
            limits.get(name, 25.0),
            resume=("--resume",),
            least_s=least.get(name, 0.1),
        )
        for name, code in _SNIPPETS.items()
    ]


class Clock:
    """Seconds; the budget is over but for `REST_S` once the step before ``is cut`` has run."""

    def __init__(self, folder: Path) -> None:
        """Look for that step's trace in ``folder``."""
        self._trace = folder / "goes on.runs"
        self._spent_s = 0.0
        self._jumped = False

    def __call__(self) -> float:
        """Return the seconds."""
        if not self._jumped and self._trace.exists():
            self._jumped = True
            self._spent_s = BUDGET_S - END_S - REST_S - (time.monotonic() - self._began)
        return time.monotonic() + self._spent_s

    def start(self) -> Budget:
        """Begin the budget."""
        self._began = time.monotonic()
        return Budget(BUDGET_S, self)


def simulate(folder: Path, say: Callable[[str], object] = print) -> list[str]:
    """Run a session, resume it, and run it again; return what it did not do as it has to."""
    wrong: list[str] = []

    def check(what: str, result: Any, expected: Any) -> None:
        if result != expected:
            wrong.append(f"{what}: {result!r}, not {expected!r}")

    variables = environment(folder / "kernels")
    session = Session(plan(folder, 0.8), folder, variables, "sources", grace_s=0.2)
    say("-- a first session, whose budget ends in a step")
    began = time.monotonic()
    code = run(session, opened(folder, FACTS), Clock(folder).start(), say=say)
    check("first exit status", code, 1)
    check("first states", states(folder), FIRST_STATES)
    check("a hanging step took too long", time.monotonic() - began < LONG_S / 2, True)
    check("what a hanging step started still runs", running(folder / "grandchild"), False)
    check("the log", "=== passes: " in (folder / "session.log").read_text(), True)

    say("-- resumed, with what failed mended")
    (folder / "mended").touch()
    session = Session(plan(folder, 25.0), folder, variables, "sources")
    before = len(counted(folder, "passes"))
    code = run(session, opened(folder, FACTS), Budget(BUDGET_S), say=say)
    check("resumed exit status", code, 0)
    check("resumed states", set(states(folder).values()), {"passed"})
    check("what had passed ran again", len(counted(folder, "passes")), before)
    check("order", order(folder), RESUMED_ORDER)

    say("-- with nothing left, then with one step asked for again")
    check("no step ran", run(session, opened(folder, FACTS), Budget(BUDGET_S), say=say), 0)
    run(session, opened(folder, FACTS), Budget(BUDGET_S), again=("passes",), say=say)
    check("asked for again", len(counted(folder, "passes")), before + 1)
    other: Rows = opened(folder, FACTS | {"gpu": "another"})
    check("rows of another machine", other.rows, [])
    return wrong


FIRST_STATES = {
    "passes": "passed",
    "imports this checkout": "passed",
    "fails": "failed",
    "hangs": "hung",
    "dies": "died",
    "goes on": "passed",
    "is cut": "cut",
}
RESUMED_ORDER = ["is cut", "is not begun", "goes on", "fails", "hangs", "dies"]


def states(folder: Path) -> dict[str, str]:
    """Return how each step went, as the file says."""
    rows = json.loads((folder / FILE).read_text(encoding="utf-8"))["steps"]
    return {row["step"]: row["status"] for row in rows}


def order(folder: Path) -> list[str]:
    """Return the steps of the second session, in the order of the log."""
    log = (folder / "session.log").read_text(encoding="utf-8")
    names = [line.split(":")[0].removeprefix("=== ") for line in log.splitlines() if "=== " in line]
    return names[len(FIRST_STATES) :][: len(RESUMED_ORDER)]


def counted(folder: Path, name: str) -> str:
    """Return one letter for each run of a step."""
    return (folder / f"{name}.runs").read_text(encoding="utf-8")


def running(trace: Path) -> bool:
    """Return whether the process runs whose number a step has written; a zombie does not."""
    try:
        stat = Path(f"/proc/{trace.read_text(encoding='utf-8')}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def main(folder: Path) -> int:
    """Simulate in a folder; print what went wrong, and return 1 if anything did."""
    wrong = simulate(folder)
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"simulated in {REPOSITORY}, {sys.executable}: {len(wrong)} wrong")
    return 1 if wrong else 0
