"""A library that says when it is loaded, and a kernel with it: no test of this folder may load it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trust.payload import LIBRARY, Kernel, marking_library


@pytest.fixture(scope="package")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that the library creates when it is loaded."""
    return tmp_path_factory.mktemp("mark") / "code-ran"


@pytest.fixture(scope="package")
def payload(tmp_path_factory: pytest.TempPathFactory, mark: Path) -> bytes:
    """Return the library."""
    return marking_library(tmp_path_factory.mktemp("payload"), mark)


@pytest.fixture
def kernel(tmp_path: Path, payload: bytes, mark: Path) -> Iterator[Kernel]:
    """Return a kernel with the library; fail if it has been loaded."""
    yield Kernel(tmp_path / "files", {LIBRARY: payload})
    assert not mark.exists(), "code of the attacker ran"
