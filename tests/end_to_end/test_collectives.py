"""Collectives keep their place among the products: two processes on a CPU, against eager and stock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.config import process_environment

pytestmark = [pytest.mark.compat, pytest.mark.slow]
# Right with torch 2.11.0, 2.14.1 and 2.15.0 alike. `make test-compat` leaves slow tests out: 2 minutes
# for each torch.

LIMIT_S = 300.0
"""Both ranks import torch and compile twenty-four small graphs on two busy cores."""


def test_collectives_and_products_stand_in_stocks_order_and_are_right(
    tmp_path: Path, repository: Path
) -> None:
    command = (sys.executable, "-W", "ignore", "-m", "tests.support.processes.collective")
    store = str(tmp_path / "store")
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(2):
            environment = {
                **process_environment(),
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"inductor-{rank}"),
            }
            ranks.append(
                subprocess.Popen(
                    [*command, str(rank), store, str(tmp_path / f"cache-{rank}")],
                    cwd=repository,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        answers = [process.communicate(timeout=LIMIT_S) for process in ranks]
    finally:
        for started in ranks:
            started.kill()
            started.wait()
    for started, (_, errors) in zip(ranks, answers, strict=True):
        assert started.returncode == 0, errors.decode()[-4000:]
    lines: list[list[dict[str, Any]]] = [json.loads(out.splitlines()[-1]) for out, _ in answers]
    assert [len(line) for line in lines] == [16, 16]
    for case in [*lines[0], *lines[1]]:
        assert case["close"], case
        assert case["ours"] == case["stock"], case
        collectives = [step for step in case["ours"] if step not in ("product", "cpp_fused")]
        assert "wait_tensor" in collectives
        assert case["operators"] + case["library"] == case["ours"].count("product") >= 2
        assert (case["operators"] > 0) == ("library" not in case["what"]), case
    # Ranks that call collectives in another order would wait for each other forever.
    assert [line["ours"] for line in lines[0]] == [line["ours"] for line in lines[1]]
