"""Pipelines on fakes, closed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fakes.pipeline import Rig, Rigs


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    opened = Rigs()
    yield opened
    for pipeline in opened.pipelines:
        pipeline.close()


@pytest.fixture
def rig(rigs: Rigs) -> Rig:
    return rigs()
