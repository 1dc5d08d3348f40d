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
    told = json.loads(numerics.OUT.read_text())
    for part, places in numerics.SOURCES.items():
        assert told["sources"][part] == sources_digest(places), part
    wanted = Counter(one.group for one in trials())
    found: Counter[str] = Counter()
    for row in told["rows"]:
        if row["part"] == "forward":
            found[row["group"]] += row["cases"]
    assert found == wanted
    assert sum(row["cases"] for row in told["rows"]) >= 600
