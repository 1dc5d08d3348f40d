"""Starts the ranks of `tests.support.processes.ranks`, and hosts their store, as ``torchrun`` does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.support.repository import REPOSITORY

LIMIT_S = 900.0
"""Eight ranks import torch and compile on two busy cores."""


def served() -> Any:
    """Return a store whose server is this process."""
    untyped: Any = dist
    return untyped.TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False
    )


def run_ranks(
    world: int,
    folder: Path,
    *,
    lost: Collection[int] = (),
    continued: Collection[int] = (),
    **order: Any,
) -> dict[int, dict[str, Any]]:
    """Run a job; return what each rank has printed.

    Args:
        world: Number of ranks.
        folder: Where their caches lie.
        lost: Ranks that do not end by themselves: they were killed or stopped.
        continued: Ranks that stop themselves, and go on when all others have ended.
        order: The fields of `tests.support.processes.ranks.Order`.
    """
    store, later = served(), served()
    order["later_port"] = later.port
    children: dict[int, subprocess.Popen[bytes]] = {}
    outputs: dict[int, Path] = {rank: folder / f"rank-{rank}.log" for rank in range(world)}
    try:
        for rank in range(world):
            variables = {
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{rank}"),
                "TORCHINDUCTOR_VEC_ISA_OK": "1",  # the probe takes 5 s and is not what is tested
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-W", "ignore", "-m", "tests.support.processes.ranks"]
            with outputs[rank].open("wb") as log:
                children[rank] = subprocess.Popen(
                    [
                        *command,
                        str(rank),
                        str(world),
                        str(store.port),
                        str(folder),
                        json.dumps(order),
                    ],
                    cwd=REPOSITORY,
                    env=variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        said: dict[int, dict[str, Any]] = {}
        for rank in sorted(children.keys() - set(lost), key=lambda rank: (rank in continued, rank)):
            child = children[rank]
            if rank in continued:
                child.send_signal(signal.SIGCONT)
            code = child.wait(timeout=LIMIT_S)
            text = outputs[rank].read_text(errors="replace")
            assert code == 0, text[-4000:]
            said[rank] = json.loads(text.splitlines()[-1])
        return said
    finally:
        for child in children.values():
            child.send_signal(signal.SIGKILL)
            child.wait()
