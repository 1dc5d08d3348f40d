"""Kill processes while they tune on one cache directory, and see whether anything breaks.

In each round some processes compile the same small models at once, on one cache; each is killed
with SIGKILL, its process group with it, at a random moment. After each kill every file of the cache
is checked, and no child of the killed process may remain. A last process then finishes the work;
folders of the killed processes in memory (``/dev/shm``) must be gone after that.

    python -m benchmarks.startup.kill_nine --kills 50 --out benchmarks/results/kill_nine_cpu.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.startup.cold_warm import machine
from inductor_plugin.cache import open_store
from tests.support.processes.killed import kill_many

LARGEST_ERROR = 1e-5


def main() -> int:
    """Kill, print a verdict, and write the figures to ``--out``; return 1 if anything broke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--together", type=int, default=3, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the JSON")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cache_dir = Path(folder) / "cache"
        toll = kill_many(
            cache_dir,
            Path(folder) / "children",
            arguments.kills,
            arguments.seed,
            arguments.together,
            lambda line: print(line, flush=True),
        )
        store = open_store(cache_dir)
        usage = store.usage()
    stats = toll.final["stats"]
    broken = {
        "damaged": toll.damaged,
        "left_behind": toll.left_behind,
        "folders_left": toll.folders_left,
        "quarantined": toll.quarantined,
        "wrong": [f"error {toll.final['error']:.1e}"][: toll.final["error"] > LARGEST_ERROR],
        "failed": [f"{stats['failed']} candidates"][: stats["failed"] > 0],
    }
    result: dict[str, Any] = {
        "machine": machine(),
        "ok": not any(broken.values()),
        "records": usage.records,
        "kernels": usage.kernels,
        "elapsed_s": round(time.monotonic() - started, 1),
        "seed": arguments.seed,
        "broken": broken,
        **asdict(toll),
    }
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(
        f"{'PASS' if result['ok'] else 'FAIL'}: {len(toll.kills)} killed in {result['elapsed_s']} s, "
        f"{len(toll.damaged)} damaged, {len(toll.left_behind)} processes left, "
        f"{len(toll.folders_left)} of {len(toll.orphans)} folders left in memory, "
        f"{len(toll.quarantined)} wrongly in quarantine; {usage.records} records and "
        f"{usage.kernels} kernels are sound"
    )
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
