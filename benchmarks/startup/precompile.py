"""A pack for a GPU that this machine lacks, imported by a process without a compiler.

python -m benchmarks.startup.precompile [--target GPU] [--model MODULE:FUNCTION] [--out FILE]

Two processes, each with a separate empty cache: the first compiles, the second imports the pack of the
first and runs the same compile with nvcc hidden.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.repository import RESULTS

LLAMA = "inductor_plugin.aot.decoder:llama3_8b"
OUT = RESULTS
NOWHERE = "/nowhere"
"""The folder in which the second process looks for nvcc."""


def main() -> int:
    """Run both processes, and write their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="H200")
    parser.add_argument("--model", default=LLAMA)
    parser.add_argument("--max-candidates", default="0")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or OUT / f"precompile_{arguments.target.lower()}.json"
    with tempfile.TemporaryDirectory(prefix="precompile-") as folder:
        report = measured(arguments, Path(folder))
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["summary"], indent=1))
    print(f"Written to {out}.")
    return 0 if report["summary"]["second_compiled"] == 0 else 1


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of both processes."""
    pack = folder / "first.pack"
    common = ("--target", arguments.target, "--model", arguments.model)
    common = (*common, "--max-candidates", arguments.max_candidates)
    first, first_s = _run("precompile", *common, "--out", str(pack), cache=folder / "first")
    imported, _ = _run("import", str(pack), "--trust", cache=folder / "second")
    again = ("--nvcc", NOWHERE, "--out", str(folder / "second.pack"))
    second, second_s = _run("precompile", *common, *again, cache=folder / "second")
    cutlass = [kernel for kernel in first["kernels"] if kernel["kind"] == "cutlass"]
    registers = [kernel["registers"] for kernel in cutlass if kernel["registers"] is not None]
    return {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "software": first["pack"]["software"],
        "target": arguments.target,
        "model": arguments.model,
        "summary": {
            "problems": len(first["problems"]),
            "candidates": first["stats"]["candidates"],
            "cutlass_kernels": len(cutlass),
            "cutlass_instructions": first["counts"]["instructions"],
            "cutlass_spilling": sum(kernel["spills"] != 0 for kernel in cutlass),
            "cutlass_registers_max": max(registers, default=None),
            "triton_kernels": first["counts"]["triton"],
            "pack_bytes": first["bytes"],
            "cutlass_mb_per_kernel": round(
                _library_bytes(folder / "second") / 1e6 / len(cutlass), 3
            )
            if cutlass
            else None,
            "imported_kernels": imported["kernels"],
            "first_s": round(first_s, 1),
            "first_compile_s": round(first["stats"]["compile_s"], 1),
            "first_compiled": first["stats"]["compiled"],
            "second_s": round(second_s, 1),
            "second_compiled": second["stats"]["compiled"],
            "second_candidates": second["stats"]["candidates"],
            "same_kernels": second["pack"]["kernels"] == first["pack"]["kernels"],
        },
        "problems": [
            {
                "problem": entry["problem"],
                "kernels": len(entry["kernels"]),
                "rejected": entry["rejected"],
            }
            for entry in first["problems"]
        ],
    }


def _library_bytes(cache: Path) -> float:
    """Return the size of the libraries in a cache; a library of several kernels has several links."""
    statuses = [path.stat() for path in cache.glob("kernels/*/*/kernel.so")]
    return sum(status.st_size / status.st_nlink for status in statuses)


def _run(*arguments: str, cache: Path) -> tuple[dict[str, Any], float]:
    started = time.perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "inductor_plugin.cli",
            *arguments,
            "--cache-dir",
            str(cache),
            "--json",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=7200,
    )
    return json.loads(done.stdout), time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
