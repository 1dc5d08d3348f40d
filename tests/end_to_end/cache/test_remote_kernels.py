"""Winners' kernels, signed, on their way through an S3 server to a machine that compiles none."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

from inductor_plugin.cache import KernelEntry, open_store
from inductor_plugin.cache.remote.files import open_files
from inductor_plugin.cache.trust.keys import new_key
from tests.support.compile import fresh
from tests.support.lowering import Lab, library_last
from tests.support.remote.machines import machine, patient, running, server, url
from tests.support.remote.s3_server import S3Server
from tests.support.trust.payload import STRANGER

__all__ = ["fresh", "patient", "running", "server", "url"]  # fixtures


def kernels(folder: Path, **trust: Any) -> list[KernelEntry]:
    return list(open_store(folder, **trust).iter_kernels())


DAMAGE: dict[str, dict[str, Any]] = {
    "cut off": {"cut": True},
    "cut short": {"cut": "whole"},
    "corrupted": {"flip": True},
    "refused": {"status": 500},
}


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_second_machine_takes_the_winners_kernel_that_a_trusted_key_has_signed(
    server: S3Server, url: str, tmp_path: Path
) -> None:
    signer = new_key(tmp_path / "key")
    sends = {"remote_kernels": True, "signing_key": str(tmp_path / "key")}
    takes = {"remote_kernels": True, "trusted_keys": signer.public}
    model = torch.nn.Linear(96, 128).eval()
    x = torch.randn(16, 96)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        with Lab(library_last, tmp_path).open():
            expected, cold, _ = machine(tmp_path, "first", url, model, x, **sends)
        (built,) = kernels(tmp_path / "first")
        answer, warm, counters = machine(tmp_path, "second", url, model, x, **takes)
        others = {
            name: machine(tmp_path, name, url, model, x, **{**takes, **odd})
            for name, odd in {
                "a stranger's": {"trusted_keys": STRANGER.public},
                "without kernels": {"remote_kernels": False},
            }.items()
        }
        for name, fault in DAMAGE.items():
            server.fault(methods=["GET"], names="/files/", **fault)
            others[name] = machine(tmp_path, name, url, model, x, **takes)
            server.fault()
    assert cold.compiled == 1
    assert (warm.record_hits, warm.compiled, warm.benchmarked) == (1, 0, 0)
    assert counters["remote_kernels"] == 1
    assert torch.equal(answer, expected)
    (taken,) = kernels(tmp_path / "second")
    assert taken.files == built.files
    assert taken.taken is not None
    assert (taken.taken.by, set(taken.signatures)) == ("signature", {signer.public})
    for name, (answer, spent, counted) in others.items():
        assert torch.allclose(answer, expected, atol=1e-5), name
        assert (spent.record_hits, spent.benchmarked) == (1, 0), name
        assert "remote_kernels" not in counted, name
        assert all(each.taken is None for each in kernels(tmp_path / name)), name
        assert open_store(tmp_path / name).verify() == [], name


def test_of_writers_that_meet_at_a_name_the_first_is_kept(server: S3Server, url: str) -> None:
    """The server compares: no writer looks whether a name is free."""
    writers = 8
    start, kept = threading.Barrier(writers), list[int]()

    def write(number: int) -> None:
        files = open_files(url)
        start.wait()
        try:
            files.create("v1/name", bytes([number]), 30.0)
        except FileExistsError:
            return
        kept.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = kept
    assert open_files(url).read(["v1/name"], [10], 30.0) == [bytes([first])]
    with pytest.raises(FileExistsError):
        open_files(url).create("v1/name", b"later", 30.0)
