"""A benchmark request is read in a worker without the files that choose kernels."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import torch._inductor.autotune_process
before = set(sys.modules)
import inductor_plugin.inductor.candidates.request
print(*sorted(name for name in set(sys.modules) - before if name.startswith("torch.")))
"""


def test_reading_a_request_imports_nothing_of_torch_that_a_worker_has_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []
