"""What is recorded on a busy machine: two processes compute on two cores, and the compile runs at a lower priority."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_plugin.cache import Record, open_store
from inductor_plugin.cli import main
from tests.support.cli.committed import hold
from tests.support.repository import REPOSITORY

COMPILE = """
import os, subprocess, sys, torch
from pathlib import Path

def compile(cache_dir):
    torch.manual_seed(0)
    sizes = [(4, 32, 10), (128, 128, 512), (128, 128, 128), (256, 704, 256), (64, 256, 64)]
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
"""
HIGHEST_GAIN = 20.0
"""The layer of 4 rows is 5 to 6.4 times as fast as the library's, the others up to 2.3; what was recorded once said 2,070."""


@pytest.fixture
def records(inductor_cache: Path, tmp_path: Path, cache_dir: Path) -> list[Record]:
    environment = os.environ | {"TORCHINDUCTOR_FREEZING": "1"}
    command = [sys.executable, "-c", COMPILE, str(tmp_path / "quiet"), str(cache_dir)]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    return list(open_store(cache_dir).iter_records())


@pytest.mark.slow
def test_noise_is_no_speedup(
    records: list[Record], cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(records) == 5
    assert main(["ls", "--cache-dir", str(cache_dir), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    hold("ls", listed)
    rows = {row["key"]: row for row in listed}
    for record in records:
        decision, row = record.decision, rows[record.digest]
        assert decision is not None
        if decision.winner == decision.library:
            assert row["speedup"] == 1.0
        else:
            assert row["speedup"] == decision.speedup
            assert decision.speedup is not None
            assert 1.0 < decision.speedup < HIGHEST_GAIN
