"""All tests here lower for an H100 that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils import _triton  # pyright: ignore[reportMissingTypeStubs]

from tests.support import gpu


@pytest.fixture(autouse=True)
def device(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gpu.installed():
        # It asks `torch.cuda.is_available`, which is False for a device that is not there.
        monkeypatch.setattr(_triton, "has_triton_tma_device", lambda: True)
        yield
