"""A kernel of a stranger in a cache of this process, where generated code would load it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.ops import launch
from tests.support.native import host_kernels
from tests.support.native.filling import ZEROS, run
from tests.support.trust.payload import FRIEND, STRANGER, Kernel


def test_generated_code_loads_no_kernel_of_a_stranger(
    kernel: Kernel,
    mark: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It came by a signature whose key does not count here; the library kernel runs. Once it counts, the kernel is loaded."""
    host_kernels.install(monkeypatch, tmp_path / "none")
    kernel.signed(STRANGER).fields["taken"] = {"by": "signature", "source": "x.pack"}
    kernel.place(open_store(tmp_path / "cache"))
    digest = kernel.entry.digest
    launch.add_kernel_folder(tmp_path / "cache", trusted_keys=FRIEND.public)
    with pytest.warns(RuntimeWarning, match="not in the cache"):
        assert torch.equal(run(f"kernel@{digest}"), ZEROS)
    assert launch.library_path(digest) is None
    assert "not by a key in trusted_keys" in caplog.text
    assert not mark.exists()

    launch.add_kernel_folder(tmp_path / "cache", trusted_keys=STRANGER.public)
    run(f"kernel@{digest}")
    assert launch.library_path(digest) is not None
    assert mark.exists()
    mark.unlink()
