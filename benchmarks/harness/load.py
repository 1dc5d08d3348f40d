"""Other work on the machine: processes that compute, or that copy memory, while something is tuned."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

_WHILE_ITS_PARENT_LIVES = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    "
_COMPUTE = f"{_WHILE_ITS_PARENT_LIVES}for _ in range(1 << 20): pass"
_COPY = f"a, b = bytearray(1 << 28), bytearray(1 << 28)\n{_WHILE_ITS_PARENT_LIVES}b[:] = a"
LOADS: dict[str, tuple[str, ...]] = {
    "quiet": (),
    "1 busy": (_COMPUTE,),
    "2 busy": (_COMPUTE,) * 2,
    "4 busy": (_COMPUTE,) * 4,
    "2 copying": (_COPY,) * 2,
}
"""Python programs that run at the same time, by the name of the load; those that copy take memory bandwidth, 256 MB at a time. They end
when the process that has started them is killed: else they would be beside whatever is measured later."""


@contextmanager
def load(name: str) -> Generator[None]:
    """Run a load's programs during the block."""
    mine = str(os.getpid())
    busy = [subprocess.Popen([sys.executable, "-c", each, mine]) for each in LOADS[name]]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
