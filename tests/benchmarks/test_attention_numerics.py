"""The committed errors of the Triton attention kernels."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from benchmarks.attention import numerics
from benchmarks.harness.sources import sources_digest
from tests.support.attention.forward_cases import trials

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


def test_the_table_of_errors_is_of_these_kernels_and_cases() -> None:
    """What is committed, by python -m benchmarks.attention.numerics."""
    parsed = json.loads(numerics.OUT.read_text())
    for part, places in numerics.SOURCES.items():
        assert parsed["sources"][part] == sources_digest(places), part
    wanted = Counter(trial.group for trial in trials())
    counts: Counter[str] = Counter()
    for row in parsed["rows"]:
        if row["part"] == "forward":
            counts[row["group"]] += row["cases"]
    assert counts == wanted
    assert sum(row["cases"] for row in parsed["rows"]) >= 600
