"""Only the vector instruction set that is used is probed."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa

from inductor_plugin.inductor import vector
from inductor_plugin.inductor.facts import toolchain
from inductor_plugin.inductor.vector import LazyIsas

pytestmark = pytest.mark.compat


class Isa:
    """Stands for an instruction set, and counts how often it was probed."""

    def __init__(self, name: str, bits: int, *, works: bool = True) -> None:
        self.name, self.bits, self.works = name, bits, works
        self.probes = 0

    def __bool__(self) -> bool:
        self.probes += 1
        return self.works

    def __str__(self) -> str:
        return self.name

    def bit_width(self) -> int:
        return self.bits


@pytest.fixture
def isas() -> list[Isa]:
    return [Isa("amx", 512, works=False), Isa("avx512", 512), Isa("avx2", 256)]


@pytest.fixture
def placed(isas: list[Isa], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Inductor choose among made-up instruction sets."""
    stock = cpu_vec_isa.valid_vec_isa_list
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", isas)
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["amx", "avx512", "avx2"])
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    vector.uninstall()
    vector.install()
    yield
    vector.uninstall()
    assert cpu_vec_isa.valid_vec_isa_list is stock or not vector.installed()


on_x86 = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="x86 Linux only"
)


def probes(isas: list[Isa]) -> list[bool]:
    return [isa.probes > 0 for isa in isas]


@on_x86
@pytest.mark.usefixtures("placed")
def test_what_comes_behind_the_one_that_is_used_is_not_probed(isas: list[Isa]) -> None:
    assert cpu_vec_isa.pick_vec_isa() is isas[1]
    assert probes(isas) == [True, True, False]


@on_x86
@pytest.mark.usefixtures("placed")
def test_a_width_that_is_asked_for_is_found_as_by_stock(isas: list[Isa]) -> None:
    with inductor_config.patch({"cpp.simdlen": 256}):
        assert cpu_vec_isa.pick_vec_isa() is isas[2]
    with inductor_config.patch({"cpp.simdlen": 128}):
        assert not cpu_vec_isa.pick_vec_isa()


@on_x86
@pytest.mark.usefixtures("placed")
def test_the_environment_chooses_as_by_stock(
    isas: list[Isa], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert cpu_vec_isa.pick_vec_isa() is isas[2]


@on_x86
@pytest.mark.usefixtures("placed")
def test_without_a_working_one_there_is_none(isas: list[Isa]) -> None:
    for isa in isas:
        isa.works = False
    assert not cpu_vec_isa.pick_vec_isa()


@on_x86
def test_the_answer_is_stocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    vector.uninstall()
    stock = cpu_vec_isa.pick_vec_isa()
    vector.install()
    assert cpu_vec_isa.pick_vec_isa() == stock
    vector.uninstall()
    assert cpu_vec_isa.pick_vec_isa() is stock


def test_a_list_like_any_other(isas: list[Isa]) -> None:
    lazy = LazyIsas(isas)
    assert [*lazy] == lazy[0:2] == isas[1:]
    assert (len(lazy), lazy[0], lazy[-1]) == (2, isas[1], isas[2])
    assert not LazyIsas([])
    with pytest.raises(IndexError, match="number 2"):
        _ = lazy[2]


def test_two_threads_do_not_probe_at_once(isas: list[Isa]) -> None:
    inside: list[int] = []

    class Slow(Isa):
        def __bool__(self) -> bool:
            inside.append(1)
            time.sleep(0.05)
            assert len(inside) == 1
            inside.pop()
            return True

    lazy = LazyIsas([Slow("slow", 512)])
    result: list[object] = []
    threads = [threading.Thread(target=lambda: result.append(lazy[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 4


@pytest.mark.parametrize(
    ("devices", "filled", "started"),
    [(["cpu"], False, True), (["cpu"], True, False), (["cpu", "meta"], False, False)],
)
def test_the_probe_starts_early_where_it_is_needed(
    devices: list[str],
    filled: bool,
    started: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()
    monkeypatch.setattr(vector, "precompiled", asked.set)
    monkeypatch.setattr(vector, "cache_dir", lambda: str(tmp_path / "inductor"))
    if filled:
        (tmp_path / "inductor" / "ab").mkdir(parents=True)
    vector.start_probe([3, *(torch.empty(1, device=device) for device in devices)])
    assert asked.wait(2 if started else 0.1) is started


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_child_does_not_wait_for_a_thread_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that probes, and holds both locks, is not in a process that is forked meanwhile."""
    probing, forked = threading.Event(), threading.Event()

    class Held(Isa):
        def __bool__(self) -> bool:
            probing.set()
            forked.wait(10)
            return True

    def header(isa: str) -> str:
        return f"{isa}.h"

    lazy = LazyIsas([Held("held", 512)])
    monkeypatch.setattr(toolchain, "_precompiled", header)
    monkeypatch.setattr(cpu_vec_isa, "pick_vec_isa", lambda: lazy[0])
    with inductor_config.patch(cpp_cache_precompile_headers=True):
        thread = threading.Thread(target=toolchain.precompiled)
        thread.start()
        assert probing.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(5)
            monkeypatch.setattr(
                cpu_vec_isa, "pick_vec_isa", lambda: LazyIsas([Isa("free", 256)])[0]
            )
            os._exit(0 if toolchain.precompiled() == "free.h" else 1)
        try:
            assert os.waitpid(child, 0)[1] == 0
        finally:
            forked.set()
            thread.join(10)


def test_a_probe_that_fails_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, inductor_cache: Path
) -> None:
    probed = threading.Event()

    def fail() -> str:
        probed.set()
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(vector, "precompiled", fail)
    vector.start_probe([torch.ones(1)])  # the exception of a thread fails a test
    assert probed.wait(10)
    for thread in threading.enumerate():
        if thread.name == "inductor-plugin-vector":
            thread.join(10)
