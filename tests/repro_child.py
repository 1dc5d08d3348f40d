"""Runs reproduction scripts one after the other, as ``python SCRIPT`` would, and reports how each ended.

Started as ``python -m tests.repro_child SCRIPT ...``; prints one JSON line: status and what each printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys

import torch._dynamo


def main() -> None:
    """Run each script."""
    ended: dict[str, tuple[object, str]] = {}
    for path in sys.argv[1:]:
        torch._dynamo.reset()
        said = io.StringIO()
        status: object = None
        with contextlib.redirect_stdout(said):
            try:
                sys.argv = [path]
                runpy.run_path(path, run_name="__main__")
            except SystemExit as end:
                status = end.code
        ended[path] = status, said.getvalue()
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
