"""A compile with the plugin, each from the start; what it did and which records it left."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from inductor_plugin.tuning.counters import Stats
from tests.support.candidates import faults


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    """Compile everything anew, and end the workers that share nothing with the next test."""
    torch._dynamo.reset()
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


class Spent:
    """What the plugin did since it was made."""

    def __init__(self) -> None:
        self._before = inductor_plugin.stats()

    @property
    def stats(self) -> Stats:
        return inductor_plugin.stats().since(self._before)


def compiled(function: Callable[..., Any], cache_dir: Path, **options: Any) -> Callable[..., Any]:
    options.setdefault("worker_memory_bytes", faults.MEMORY_BYTES)
    return torch.compile(
        function, backend="inductor_plugin", options={"cache_dir": str(cache_dir), **options}
    )


def records(cache_dir: Path) -> list[dict[str, Any]]:
    paths = sorted(cache_dir.glob("records/*/*/*.json"))
    return [json.loads(path.read_text()) for path in paths]
