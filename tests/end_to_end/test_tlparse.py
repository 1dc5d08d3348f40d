"""What tlparse makes of a compile: a page that links the decisions of each graph."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store

_SCRIPT = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU()).eval()
with torch.no_grad():
    torch.compile(layer, backend="inductor_plugin")(torch.randn(33, 64))
"""


@pytest.mark.slow
def test_the_page_links_the_decisions_of_the_graph(tmp_path: Path) -> None:
    variables = {
        "TORCHINDUCTOR_FREEZING": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "INDUCTOR_PLUGIN_CACHE_DIR": str(tmp_path / "cache"),
        "TORCH_TRACE": str(tmp_path / "trace"),
    }
    subprocess.run([sys.executable, "-c", _SCRIPT], env={**os.environ, **variables}, check=True)
    (log,) = (tmp_path / "trace").iterdir()
    page = tmp_path / "page"
    # Strict: a line that tlparse does not know is an error.
    tlparse = [str(Path(sys.executable).parent / "tlparse"), "--strict", "--no-browser"]
    subprocess.run([*tlparse, "-o", str(page), str(log)], check=True)
    (link,) = set(
        re.findall(
            r'href="([^"]*inductor_plugin_decisions[^"]*)"', (page / "index.html").read_text()
        )
    )
    shown = json.loads((page / link).read_text())
    (record,) = open_store(tmp_path / "cache").iter_records()
    assert record.decision is not None
    (problem,) = shown["problems"]
    assert (problem["op"], problem["winner"]) == (record.op, record.decision.winner)
    assert {row["candidate"] for row in problem["candidates"]} == record.candidates.keys()
