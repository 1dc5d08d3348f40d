"""What was written before the modules were moved is used, but for kernels of templates whose text is another one since.

`tests/fixtures/old_cache` is of commit 53e12c1: records, a quarantine entry, a pin file, two packs.

Graphs are compiled by Inductor as far as the decisions, and the cache is read as in any process. Replaced are, because
the machine that wrote the fixture cannot be had:

- the environment (`make.fixed`): its digest holds that machine's processor, threads, torch and compilers, and records of
  another environment are not looked up. That an environment has the key that it had is tested in tests/tuning/test_environment.py,
  that a problem and an epilogue have it in tests/problem/test_definition.py and tests/problem/test_epilogue.py;
- the sizes of the processor's caches and its vector instructions: Inductor chooses its C++ blocks by them, and candidates
  are named by their blocks. The instruction set is not probed either: six small libraries, 9 s;
- the workers (`Lab`): what is measured where something is missing does not matter.

The packs need none of this: their kernels' keys name the GPU and the compilers they are for. The cache has no kernels.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import cpu_vec_isa
from torch._inductor.graph import GraphLowering

import inductor_plugin
from inductor_plugin.aot.precompile import PackReport, Request, check, precompile
from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.wheel import read_pack
from inductor_plugin.config import Config
from inductor_plugin.errors import PackError
from inductor_plugin.inductor.graph.session import OBSERVERS
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.tuning.ticket import TuningTicket
from tests.fixtures.old_cache import make
from tests.support.lowering import Lab, library_first
from tests.support.repository import REPOSITORY

OLD = REPOSITORY / "tests/fixtures/old_cache"
TORCH = "2.14.1"

pytestmark = [
    pytest.mark.skipif(
        torch.__version__.partition("+")[0] != TORCH,
        reason=f"torch's choices and kernel keys are those of {TORCH}",
    ),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the fixture is of x86_64"),
]


class _DecidedError(Exception):
    """All is decided; what follows is Inductor's own code."""


class _Avx2(cpu_vec_isa.VecAVX2):
    """The fixture's vector instructions, which nothing has to be compiled for."""

    __hash__ = cpu_vec_isa.VecISA.__hash__

    def __bool__(self) -> bool:
        return True


@pytest.fixture
def old_cache(
    cache_dir: Path, inductor_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Return a copy of the old cache directory."""
    inductor_plugin.disable()  # an enabled one has its own list of instruction sets
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [_Avx2()])
    # What ATen uses of the fixture's processor; candidates are named by it, too.
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    inductor_cache.mkdir(exist_ok=True)
    (inductor_cache / "used").touch()  # in an empty one the C++ header is compiled beforehand
    shutil.copytree(OLD / "cache", cache_dir)
    for folder in (cache_dir, *cache_dir.iterdir()):
        folder.chmod(0o700)
    yield cache_dir
    inductor_plugin.disable()
    torch._dynamo.reset()


def decided(model: tuple[nn.Module, Tensor], lab: Lab, **options: Any) -> list[TuningTicket]:
    """Return what is decided when a model is compiled as far as that."""
    tickets: list[TuningTicket] = []
    observe = tickets.extend
    OBSERVERS.append(observe)
    stop = mock.patch.object(GraphLowering, "save_output_code", side_effect=_DecidedError)
    here = make.fixed("inductor_plugin.tuning.runtime", "inductor_plugin.inductor.graph.session")
    try:
        with stop, here, pytest.raises(BackendCompilerFailed, match="_DecidedError"):
            make.run(model, lab.cache_dir, **options)
    finally:
        OBSERVERS.remove(observe)
    return tickets


def winners(tickets: list[TuningTicket]) -> dict[str, str | None]:
    return {row.digest: row.verdict.winner for row in tickets if row.verdict is not None}


def assert_no_work(lab: Lab, before: inductor_plugin.Stats) -> None:
    done = inductor_plugin.stats().since(before)
    assert (lab.tasks, lab.screens, lab.builds, lab.units) == ([], [], [], [])
    assert (done.benchmarked, done.compiled) == (0, 0)


@pytest.mark.usefixtures("inductor_cache")
def test_old_records_decide_and_nothing_is_measured(old_cache: Path) -> None:
    recorded = {row.digest: row.decision for row in open_store(old_cache).iter_records()}
    before = inductor_plugin.stats()
    with Lab(library_first, old_cache).open() as lab:
        tickets = decided(make.model(), lab)
    assert len(recorded) == 2
    assert winners(tickets) == {digest: row.winner for digest, row in recorded.items() if row}
    assert_no_work(lab, before)


@pytest.mark.usefixtures("inductor_cache")
def test_old_pins_decide_and_nothing_is_measured(old_cache: Path) -> None:
    recorded = {row.digest: row.decision for row in open_store(old_cache).iter_records()}
    before = inductor_plugin.stats()
    with Lab(library_first, old_cache).open() as lab:
        pinned = decided(make.model(), lab, policy="pinned", pin_file=str(OLD / "pins.json"))
    pins = json.loads((OLD / "pins.json").read_text(encoding="utf-8"))["pins"]
    assert winners(pinned) == {row["digest"]: row["winner"] for row in pins}
    assert all(row.winner != winners(pinned)[digest] for digest, row in recorded.items() if row)
    assert_no_work(lab, before)


@pytest.mark.usefixtures("inductor_cache")
def test_what_was_in_quarantine_for_a_mishap_is_tried_once_more(old_cache: Path) -> None:
    (bad,) = open_store(old_cache).iter_quarantine()
    assert (bad.status, bad.count) == ("crashed", 1)
    with Lab(library_first, old_cache).open() as lab:
        decided(make.unknown(), lab)
    who = str(bad.fields["candidate"])
    assert who in [entry.candidate_id for task in lab.tasks for entry in task.entries]


@pytest.mark.usefixtures("inductor_cache")
def test_what_was_in_quarantine_twice_stays_there(old_cache: Path) -> None:
    (bad,) = open_store(old_cache).iter_quarantine()
    open_store(old_cache).quarantine(bad.environment, bad.candidate, bad.fields)
    with Lab(library_first, old_cache).open() as lab:
        (ticket,) = decided(make.unknown(), lab)
    assert bad.candidate.endswith(f"-{ticket.digest[:12]}")
    who = str(bad.fields["candidate"])
    assert who in [offer.candidate_id for offer in ticket.offers]
    assert (ticket.measured[who].status, ticket.measured[who].reason) == ("crashed", bad.reason)
    assert ticket.verdict is not None
    assert ticket.verdict.winner != who
    assert who not in [entry.candidate_id for task in lab.tasks for entry in task.entries]


@pytest.mark.parametrize("name", ["triton", "cutlass"])
def test_old_packs_are_imported_whole(name: str, cache_dir: Path) -> None:
    pack, store = read_pack(OLD / f"{name}.pack"), open_store(cache_dir)
    assert pack.kernels
    assert import_archive(store, OLD / f"{name}.pack", trusted=True).kernels == len(pack.kernels)
    assert all(store.kernel(digest) for digest in pack.kernels)
    assert [taken.kernels for taken in store.packs()] == [pack.kernels]


def packed_again(name: str, most: int, cache_dir: Path, out: Path) -> PackReport:
    """Import an old pack and write it again, without a compiler of CUDA."""
    file = OLD / f"{name}.pack"
    pack = read_pack(file)
    for package in ("triton", "nvidia-cutlass"):
        installed = ""
        with suppress(importlib.metadata.PackageNotFoundError):
            installed = importlib.metadata.version(package)
        if installed != pack.software.get(package):
            pytest.skip(f"the pack is of {package} {pack.software.get(package)}, not {installed}")
    RUNTIME.forget()
    options = make.pack_options(name, most, cache_dir) | {"nvcc": "/nowhere"}
    config = Config.load(options, environ={})
    assert import_archive(open_store(cache_dir), file, trusted=True).kernels == len(pack.kernels)
    request = Request("H200", ("tests.support.graphs.models:half",), out, config)
    try:
        return precompile(request, lambda text: None)
    finally:
        RUNTIME.forget()


@pytest.mark.claim
@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_an_old_pack_is_all_that_a_model_needs(tmp_path: Path, cache_dir: Path) -> None:
    """But for the kernels of a template whose text has changed: they are compiled again."""
    file = OLD / "triton.pack"
    pack = read_pack(file)
    again = packed_again("triton", 2, cache_dir, tmp_path / "again.pack")
    changed = [kernel.name for kernel in again.kernels if kernel.digest not in pack.kernels]
    assert changed == ["triton_persistent_tma"] * 2  # 32-bit coordinates where sizes have 64
    assert again.stats.compiled == len(changed)
    assert again.stats.candidates == 12  # as when the pack was made
    assert again.pack.problems == pack.problems
    old = sorted(kernel.name for kernel in check(file))
    assert sorted(kernel.name for kernel in again.kernels) == old


@pytest.mark.usefixtures("inductor_cache")
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_old_kernels_of_another_interface_are_not_called(tmp_path: Path, cache_dir: Path) -> None:
    """A call of today is larger than those that the kernels of the pack read: they keep nothing for the next call."""
    with pytest.raises(PackError, match="nothing was compiled: "):
        packed_again("cutlass", 1, cache_dir, tmp_path / "again.pack")
