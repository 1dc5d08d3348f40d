"""Static proofs of the synchronisation of Blackwell kernels by sentryward, beside their runs here.

    python -m tests.emulator.suite.proofs [--limit-s 600]        needs `pip install sentryward` (0.1.1)

sentryward proves that barriers and accesses of a kernel for sm_100 have an order in all schedules, of the launch that the suite makes.
What it cannot decide it calls ``unsupported``, and that is what the table says, then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.emulator.fault import FaultError
from tests.emulator.kernels import build
from tests.emulator.machine.schedule import EAGER
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.entry import Entry, entries
from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "benchmarks" / "results" / "emulator_proofs.json"
_SCHEMA = "spverify.kernel-input/v1"
_LIMIT_S, _MEMORY_MIB = 60, 3000


@dataclass(frozen=True)
class Proof:
    """What sentryward says of a kernel.

    Attributes:
        case: The case of the suite whose launch it is.
        kernel: Name of the kernel.
        result: ``race_free``, ``unsupported`` ...
        reasons: Codes of its diagnostics, each once.
    """

    case: str
    kernel: str
    result: str
    reasons: tuple[str, ...]


def read(path: Path = TABLE) -> dict[str, Proof]:
    """Return the proofs of a table by case; none if there is no table."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {
        row["case"]: Proof(row["case"], row["kernel"], row["result"], tuple(row["reasons"]))
        for row in data["rows"]
    }


def write(proofs: dict[str, Proof], path: Path = TABLE) -> None:
    """Write a table with the number of each result first."""
    counts = dict(sorted(Counter(proof.result for proof in proofs.values()).items()))
    lines = ",\n".join(f"  {json.dumps(asdict(proofs[case]))}" for case in sorted(proofs))
    text = f'{{\n "results": {json.dumps(counts)},\n "rows": [\n{lines}\n ]\n}}\n'
    path.write_text(text, encoding="utf-8")


def proof(entry: Entry, launch: Launch, folder: Path) -> Proof:
    """Ask sentryward about a launch."""
    ptx, facts = folder / "kernel.ptx", folder / "input.json"
    ptx.write_text(launch.text, encoding="utf-8")
    operands = {
        "schema": _SCHEMA,
        "entry": launch.name,
        "launch": {
            "grid_dim": list(launch.shape.grid),
            "block_dim": list(launch.shape.block),
            "cluster_dim": list(launch.shape.cluster),
            "dynamic_shared_bytes": launch.shared_bytes,
        },
    }
    facts.write_text(json.dumps(operands), encoding="utf-8")
    command = [sys.executable, "-m", "sentryward", str(ptx), "--input", str(facts)]
    command += ["--timeout", str(_LIMIT_S), "--memory-limit-mib", str(_MEMORY_MIB)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"sentryward says nothing: {done.stderr.strip()[-500:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    reasons = dict.fromkeys(str(each.get("code", "")) for each in report.get("diagnostics", []))
    return Proof(entry.name, entry.kernel, str(report.get("result", "")), tuple(sorted(reasons)))


def main() -> None:
    """Prove what is missing in the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.suite.proofs")
    parser.add_argument("--limit-s", type=float, default=1200.0, help="begin no proof after it")
    ends = time.monotonic() + parser.parse_args().limit_s
    runtime, proofs = Runtime(build.CACHE), read()
    for entry in entries().values():
        if entry.gpu != "B200" or entry.name in proofs or time.monotonic() > ends:
            continue
        if entry.config is not None and not build.is_built(entry.config):
            continue
        try:
            launches = entry.run(runtime, EAGER).launches
        except FaultError as fault:
            print(f"{entry.name}: {fault}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            proofs[entry.name] = proof(entry, launches[0], Path(folder))
        print(f"{entry.name}: {proofs[entry.name].result}", flush=True)
        write(proofs)


if __name__ == "__main__":
    main()
