"""Other work on the machine: processes that compute, or that copy memory, while something is tuned."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

_COMPUTE = "while True: pass"
_COPY = "a, b = bytearray(1 << 28), bytearray(1 << 28)\nwhile True: b[:] = a"
LOADS: dict[str, tuple[str, ...]] = {
    "quiet": (),
    "1 busy": (_COMPUTE,),
    "2 busy": (_COMPUTE,) * 2,
    "4 busy": (_COMPUTE,) * 4,
    "2 copying": (_COPY,) * 2,
}
"""Python programs that run at the same time, by the name of the load; those that copy take memory bandwidth, 256 MB at a time."""


@contextmanager
def load(name: str) -> Generator[None]:
    """Run a load's programs during the block."""
    busy = [subprocess.Popen([sys.executable, "-c", program]) for program in LOADS[name]]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
