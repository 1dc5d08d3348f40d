"""What is recorded on a busy machine, and by a later compile: two processes compute on two cores, and the first compile runs at a lower priority."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from inductor_plugin.cache import Measured, Record, open_store
from inductor_plugin.cli import main
from inductor_plugin.tuning.validity import attempts
from tests.support.cache import records
from tests.support.cli.committed import hold
from tests.support.repository import REPOSITORY

COMPILE = """
import os, shutil, subprocess, sys, torch
from pathlib import Path
from inductor_plugin.tuning import validity

def compile(cache_dir):
    torch.manual_seed(0)
    sizes = [(4, 32, 10), (128, 128, 512), (256, 704, 256)]
    layers = [torch.nn.Linear(columns, outputs).eval() for _, columns, outputs in sizes]
    operands = [torch.randn(rows, columns) for rows, columns, _ in sizes]
    call = torch.compile(
        lambda *inputs: [layer(x) for layer, x in zip(layers, inputs)],
        backend="inductor_plugin",
        options={"cache_dir": cache_dir, "progress": "off", "table": "off"},
    )
    with torch.no_grad():
        call(*operands)

torch._inductor.config.fx_graph_cache = False
compile(sys.argv[1])  # on a quiet machine: kernels are built, and the worker runs
torch.compiler.reset()
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
try:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for pid in (os.getpid(), *(int(pid) for pid in children if int(pid) not in {p.pid for p in busy})):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), 10)
    compile(sys.argv[2])
finally:
    for process in busy:
        process.kill()
        process.wait()
shutil.copytree(sys.argv[2], sys.argv[3])
validity.AGAIN_S = -1.0  # what is provisional is measured again at once
torch.compiler.reset()
compile(sys.argv[3])
"""
SMALLEST, GAIN_OF_SMALLEST, GAIN_OF_OTHERS = "4x32", 10.0, 4.0
"""The layer of 4 rows is 5 to 6.4 times as fast as the library's, the others up to 2.3; what was recorded once said 2,070."""
LIKE_QUIET = 1.05
"""What a firm decision runs takes at most this multiple of what the quiet machine decides for, both as the quiet machine has measured
them. A layer whose library kernel is the fastest was recorded as 2.2 times as fast beside two busy processes."""
PROVISIONAL = "provisional, other work"


@dataclass(frozen=True)
class Caches:
    """The records of a compile beside other work, and those of a compile before and of one after it without, by digest.

    Attributes:
        folder: The cache of the compile beside other work.
        quiet: The records of the compile before.
        busy: Those beside other work.
        later: Those of the compile after.
    """

    folder: Path
    quiet: dict[str, Record]
    busy: dict[str, Record]
    later: dict[str, Record]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Caches:
    folder = tmp_path_factory.mktemp("busy")
    environment = os.environ | {
        "TORCHINDUCTOR_FREEZING": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    names = ("quiet", "busy", "later")
    command = [sys.executable, "-c", COMPILE, *(str(folder / name) for name in names)]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    quiet, busy, later = (
        {record.digest: record for record in open_store(folder / name).iter_records()}
        for name in names
    )
    return Caches(folder / "busy", quiet, busy, later)


def compared(record: Record) -> list[Measured]:
    """Return the measurements that a decision compared."""
    assert record.decision is not None
    names = {record.decision.winner, record.decision.library}
    return [row for name, row in record.candidates.items() if name in names]


@pytest.mark.alone
@pytest.mark.slow
def test_a_firm_decision_rests_on_calm_turns_and_a_provisional_one_says_so(caches: Caches) -> None:
    for record in (*caches.busy.values(), *caches.later.values()):
        assert record.decision is not None
        late = [row for row in record.candidates.values() if row.status == "ok" and row.disturbed]
        assert (PROVISIONAL in record.decision.reason) is bool(late)
        finalists = [row for row in compared(record) if row.provenance["race"] == "final"]
        assert late or all(len(row.samples_ms) > 1 for row in finalists)


@pytest.mark.alone
@pytest.mark.slow
def test_what_was_provisional_is_measured_again_by_a_later_compile(caches: Caches) -> None:
    assert caches.later.keys() == caches.busy.keys()
    for digest, record in caches.busy.items():
        for name, row in record.candidates.items():
            again = caches.later[digest].candidates[name]
            if row.status == "ok" and row.disturbed:
                assert not again.disturbed or attempts(again) == attempts(row) + 1


@pytest.mark.alone
@pytest.mark.slow
def test_noise_is_no_speedup(caches: Caches, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(caches.busy) == 3
    assert main(["ls", "--cache-dir", str(caches.folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    hold("ls", listed)
    rows = {row["key"]: row for row in listed}
    for record in caches.busy.values():
        decision, row = record.decision, rows[record.digest]
        assert decision is not None
        highest = GAIN_OF_SMALLEST if SMALLEST in record.describe else GAIN_OF_OTHERS
        if decision.winner == decision.library:
            assert row["speedup"] == 1.0
            assert decision.rejected_speedup is None or 0.0 < decision.rejected_speedup < highest
        else:
            assert row["speedup"] == decision.speedup
            assert decision.speedup is not None
            assert 1.0 < decision.speedup < highest


def cost_in(quiet: Record, record: Record) -> float:
    """Return the time of what a record runs over that of what the quiet one does, both by the samples of the quiet one."""
    assert quiet.decision is not None
    assert record.decision is not None
    usual, chosen = (
        quiet.candidates[each.winner].median_ms for each in (quiet.decision, record.decision)
    )
    return chosen / usual if chosen and usual else math.inf


def is_firm(record: Record) -> bool:
    """Return whether a record's decision rests on samples that no other work has disturbed."""
    return record.decision is not None and PROVISIONAL not in record.decision.reason


@pytest.mark.alone
@pytest.mark.slow
def test_what_is_firm_is_what_a_quiet_machine_decides(caches: Caches) -> None:
    """What other processes of the machine have disturbed in the first compile is no measure of a choice."""
    assert caches.quiet.keys() == caches.busy.keys()
    quiet = {digest: record for digest, record in caches.quiet.items() if is_firm(record)}
    firm = [r for r in (*caches.busy.values(), *caches.later.values()) if is_firm(r)]
    assert firm
    judged = [(quiet[record.digest], record) for record in firm if record.digest in quiet]
    if not judged:
        pytest.skip("other work disturbed what was to be measured without it")
    for usual, record in judged:
        assert cost_in(usual, record) <= LIKE_QUIET, record.describe


def test_a_wrong_decision_costs_what_the_quiet_machine_says() -> None:
    """The faster a busy machine says that a wrong choice is, the less a bound of its own speedup tells."""
    rows = (
        records.measured("library", 1.0),
        records.measured("close", 1.04),
        records.measured("slow", 2.2),
        records.measured("gone", None),
    )
    quiet = records.record(*rows, decision=records.decision("library"))
    cost = {
        row.candidate: cost_in(quiet, records.record(decision=records.decision(row.candidate)))
        for row in rows
    }
    assert cost == {"library": 1.0, "close": 1.04, "slow": 2.2, "gone": math.inf}
