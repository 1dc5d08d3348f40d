"""Who is told that CUTLASS kernels are missing, and how often."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.config import Config
from inductor_plugin.inductor.candidates import cuda
from inductor_plugin.inductor.candidates.cuda import warn_without_cutlass, why_not_built
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from tests.support import gpu
from tests.support.lowering import Arg, Lab, library_first

TOOLKIT = Toolkit("/cuda/bin/nvcc", "13.0.88", "PATH", (), "/cuda/lib64/libcudart.so.13", "")
NO_NVCC = NoToolkit("no nvcc: looked at PATH", "pip install nvcc", missing=True)
OLD_NVCC = NoToolkit("nvcc is CUDA 11.8", "pip install nvcc")


def config(gemm_backends: str = "") -> Config:
    return Config.load({"gemm_backends": gemm_backends}, environ={})


@pytest.fixture(name="machine")
def a_machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what says how the machine is."""

    def is_so(
        toolkit: Toolkit | NoToolkit, generator: str | None = None, *, installed: bool = True
    ) -> None:
        def find_toolkit(nvcc: str) -> Toolkit | NoToolkit:
            return toolkit

        def package_folders(name: str) -> tuple[Path, ...]:
            return (Path("/site") / name,) if installed else ()

        monkeypatch.setattr(cuda, "find_toolkit", find_toolkit)
        monkeypatch.setattr(cuda, "why_not_generated", lambda: generator)
        monkeypatch.setattr(cuda, "package_folders", package_folders)

    monkeypatch.setattr(cuda, "_WARNED", set[str]())
    return is_so


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_machine_that_lacks_nothing_is_left_alone(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine(TOOLKIT)
    assert why_not_built("") is None
    warn_without_cutlass(config("CUTLASS"))
    assert warnings(caplog) == []


def test_one_warning_a_reason_says_what_to_install(
    machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine(NO_NVCC)
    for _ in range(3):
        warn_without_cutlass(config("ATEN,CUTLASS"))
    (said,) = warnings(caplog)
    assert "goes on without CUTLASS kernels: no nvcc: looked at PATH; pip install nvcc" in said
    machine(OLD_NVCC)
    for _ in range(3):
        warn_without_cutlass(config("ATEN,CUTLASS"))
    assert len(warnings(caplog)) == 2
    assert "CUDA 11.8; pip install nvcc" in warnings(caplog)[1]


@pytest.mark.parametrize(
    ("backends", "installed", "advised"),
    [("", False, False), ("ATEN,TRITON,CUTLASS", False, True), ("", True, True)],
)
def test_only_who_wants_cutlass_is_told(
    machine: Any,
    caplog: pytest.LogCaptureFixture,
    backends: str,
    *,
    installed: bool,
    advised: bool,
) -> None:
    machine(NO_NVCC, None if installed else "nvidia-cutlass is not installed", installed=installed)
    warn_without_cutlass(config(backends))
    assert bool(warnings(caplog)) is advised


def test_a_generator_that_does_not_work_is_named_before_the_compiler(machine: Any) -> None:
    machine(NO_NVCC, "nvidia-cutlass 3.9 is installed")
    assert why_not_built("") == "nvidia-cutlass 3.9 is installed"


@pytest.mark.compat
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
def test_many_problems_bring_one_warning_and_the_compile_goes_on(
    cache_dir: Path,
    inductor_cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    monkeypatch.setattr(cuda, "_WARNED", set[str]())

    def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.mm(a, b),)

    with gpu.installed(), Lab(library_first, cache_dir).open() as lab:
        for columns in (512, 1024):
            code = lab.lower(
                product,
                Arg((256, 128)),
                Arg((128, columns)),
                gemm_backends="ATEN,TRITON,CUTLASS",
                nvcc="/nowhere/nvcc",
            )
            assert "extern_kernels.mm" in code
    said = [warning for warning in warnings(caplog) if "CUTLASS" in warning]
    assert len(said) == 1
    assert "there is no /nowhere/nvcc" in said[0]


def test_two_compiles_at_once_bring_one_warning(
    machine: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    class Warned(set[str]):
        def __contains__(self, reason: object) -> bool:
            is_there = super().__contains__(reason)
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)  # the other thread has to stay outside
            return is_there

    machine(NO_NVCC)
    monkeypatch.setattr(cuda, "_WARNED", Warned())
    wanted = config("ATEN,CUTLASS")
    threads = [threading.Thread(target=warn_without_cutlass, args=(wanted,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len(warnings(caplog)) == 1
