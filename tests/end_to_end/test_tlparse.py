"""What tlparse makes of a compile: a page that links the decisions of each graph."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from tests.support.pages import environment

_SCRIPT = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU()).eval()
with torch.no_grad():
    torch.compile(layer, backend="inductor_plugin")(torch.randn(33, 64))
"""


_ATTENTION = """
import torch
q = torch.randn(1, 2, 64, 32)
with torch.no_grad():
    torch.compile(torch.nn.functional.scaled_dot_product_attention, backend="inductor_plugin")(q, q, q)
"""


def decisions_of(script: str, folder: Path, trace: str, **variables: str) -> dict[str, Any]:
    """Run a script; return the decisions that the page of tlparse links.

    Args:
        script: In Python; it compiles one graph.
        folder: Has the caches.
        trace: Name of the folder of its trace.
        variables: Of its environment.
    """
    variables |= {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "INDUCTOR_PLUGIN_CACHE_DIR": str(folder / "cache"),
        "TORCH_TRACE": str(folder / trace),
    }
    subprocess.run([sys.executable, "-c", script], env=environment() | variables, check=True)
    (log,) = (folder / trace).iterdir()
    page = folder / f"{trace}-page"
    # Strict: a line that tlparse does not know is an error.
    tlparse = [str(Path(sys.executable).parent / "tlparse"), "--strict", "--no-browser"]
    subprocess.run([*tlparse, "-o", str(page), str(log)], check=True)
    index = (page / "index.html").read_text()
    (link,) = set(re.findall(r'href="([^"]*inductor_plugin_decisions[^"]*)"', index))
    return json.loads((page / link).read_text())


@pytest.mark.slow
def test_the_page_links_the_decisions_of_the_graph(tmp_path: Path) -> None:
    shown = decisions_of(_SCRIPT, tmp_path, "trace", TORCHINDUCTOR_FREEZING="1")
    (record,) = open_store(tmp_path / "cache").iter_records()
    assert record.decision is not None
    (problem,) = shown["problems"]
    assert (problem["op"], problem["winner"]) == (record.op, record.decision.winner)
    assert {row["candidate"] for row in problem["candidates"]} == record.candidates.keys()


@pytest.mark.slow
def test_the_page_of_a_warm_process_links_the_decisions_out_of_inductors_cache(
    tmp_path: Path,
) -> None:
    cold = decisions_of(_ATTENTION, tmp_path, "cold", INDUCTOR_PLUGIN_VERIFY_GRAPH="off")
    warm = decisions_of(_ATTENTION, tmp_path, "warm", INDUCTOR_PLUGIN_VERIFY_GRAPH="off")
    assert [each["from_inductor_cache"] for each in (cold, warm)] == [False, True]
    decided = [[(p["op"], p["key"], p["winner"]) for p in each["problems"]] for each in (cold, warm)]  # fmt: skip
    assert decided[0] == decided[1] != []
