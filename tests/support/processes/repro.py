"""Runs reproduction scripts one after the other, as ``python SCRIPT`` would, and reports how each ended.

Started as ``python -m tests.support.processes.repro SCRIPT ... OPTION ...``, with options for the first script; prints
one JSON line: status and output of each.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch._dynamo

from inductor_plugin.config import process_environment


def ran(
    scripts: Sequence[str], repository: Path, inductor_cache: Path, *options: str
) -> dict[str, tuple[int, str]]:
    """Run scripts in a separate process, the first with ``options``; return status and output of each."""
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, *scripts, *options],
        cwd=repository,
        env={**process_environment(), "TORCHINDUCTOR_CACHE_DIR": str(inductor_cache)},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr.decode()[-4000:]
    return json.loads(completed.stdout.splitlines()[-1])


def main() -> None:
    """Run each script."""
    ended: dict[str, tuple[object, str]] = {}
    first = next((at for at, word in enumerate(sys.argv) if word.startswith("--")), len(sys.argv))
    scripts, options = sys.argv[1:first], sys.argv[first:]
    for path in scripts:
        torch._dynamo.reset()
        output = io.StringIO()
        status: object = None
        with contextlib.redirect_stdout(output):
            try:
                sys.argv = [path, *(options if path == scripts[0] else [])]
                runpy.run_path(path, run_name="__main__")
            except SystemExit as end:
                status = end.code
        ended[path] = status, output.getvalue()
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
