"""Packs of one small kernel, as files and as installed wheels."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.transfer.archive import export_archive
from inductor_plugin.cache.transfer.wheel import ENTRY_POINTS, write_wheel
from inductor_plugin.cache.trust.keys import signer_of
from inductor_plugin.cache.trust.policy import Trust
from tests.support.cache.records import kernel_key

SIGNER = signer_of(Ed25519PrivateKey.from_private_bytes(bytes(32)))
"""Signs the packs of the tests."""
TRUST = Trust({SIGNER.public: "tests"})


def pack_file(
    folder: Path, target: str = "RTX 4090", arch: str = "sm_89", source: str = "", **software: str
) -> Path:
    """Return the file of a pack with one kernel; ``software`` is added to its build versions."""
    file = folder / f"{arch}{source}.pack"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_content(target, arch, source, tuple(sorted(software.items()))))
    return file


@functools.cache
def _content(target: str, arch: str, source: str, software: tuple[tuple[str, str], ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "cache")
        kernel = store.put_kernel(kernel_key(f"{arch}{source}"), {"kernel.so": b"library"})
        built_by = {"nvcc": "nvcc 13.0.88", "machine": platform.machine(), **dict(software)}
        pack = Pack(target, arch, 1000.0, built_by, ("m:f",), ("mm(1x2, 2x3)",), (kernel.digest,))
        file = Path(folder) / "x.pack"
        export_archive(store, file, pack=pack, signer=SIGNER)
        return file.read_bytes()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a pack as pip does, and return the folder, which is on the module search path; its signer is trusted."""
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", f"{SIGNER.public} tests")
    site = folder / "site"
    with zipfile.ZipFile(write_wheel(pack_file(folder), folder).file) as wheel:
        wheel.extractall(site)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site


def stale(site: Path, package: str) -> None:
    """Leave an entry point whose package is gone."""
    folder = site / "stale-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stale\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nstale = {package}\n")
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    assert "stale" in {point.name for point in points}
