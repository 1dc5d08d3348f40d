from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import Store
from tests.support.cli.command import filled


@pytest.fixture
def store(cache_dir: Path) -> Store:
    return filled(cache_dir)
