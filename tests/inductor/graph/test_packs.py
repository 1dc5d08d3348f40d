"""Kernels of packs stand in where there is no compiler, and for another compiler's."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import KernelEntry, KernelKey, Pack, Store, open_store
from inductor_plugin.cache.transfer import installed
from inductor_plugin.cache.transfer.installed import Installed
from inductor_plugin.config import Config
from inductor_plugin.inductor.candidates import cuda
from inductor_plugin.inductor.candidates.cuda import build_of, cuda_major, machine
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.inductor.graph import packs
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from inductor_plugin.problem.target import target
from inductor_plugin.template import CudaSource, Failed
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.tuning.task import CppBuild
from tests.support import gpu
from tests.support.cache.packs import SIGNER, TRUST, install, pack_file, stale
from tests.support.lowering import Arg, Lab, library_first

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

SOURCE = CudaSource("ns::op.out", "gemm_128", "int f();", "sm_90a", "v1", (1, 2))
NO_TOOLKIT = NoToolkit("no nvcc: looked nowhere", "install it")


def toolkit(version: str) -> Toolkit:
    return Toolkit("/x/nvcc", version, "PATH", (), "/x/libcudart.so", "4.2.0")


@pytest.fixture
def config(cache_dir: Path) -> Config:
    keys = {"trusted_keys": SIGNER.public}
    return Config.load({"cache_dir": str(cache_dir), **keys}, environ={})


@pytest.fixture
def store(config: Config) -> Store:
    return RUNTIME.store(config)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch)


def compiler(monkeypatch: pytest.MonkeyPatch, place: Toolkit | NoToolkit) -> None:
    monkeypatch.setattr(cuda, "find_toolkit", lambda nvcc: place)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def kernel(store: Store, *, text: str = SOURCE.text, major: int = 0, host: str = "") -> KernelEntry:
    key = KernelKey(
        template="cutlass",
        source=hashlib.sha256(text.encode()).hexdigest(),
        config="gemm_128 v1",
        target="sm_90a",
        toolchain=f"nvcc {major or cuda_major()}.0.88; CUTLASS 4.2.0; {host or machine()}",
        flags="-O3",
    )
    return store.put_kernel(key, {"kernel.so": b"library", "source.cu": b"int f();"})


def packed(store: Store, *digests: str) -> None:
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, (), (), digests))


def built(items: tuple[CppBuild, OpKernel] | Failed) -> CppBuild:
    assert not isinstance(items, Failed), items.reason
    build, call = items
    assert call.op == "ns::op.out"
    assert call.args == (f"gemm_128_{build.key.digest[:16]}@{build.key.digest}", 1, 2)
    return build


@pytest.mark.parametrize("text", [SOURCE.text, ""])
def test_without_a_compiler_a_kernel_of_the_cache_will_do(
    store: Store, config: Config, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    compiler(monkeypatch, NO_TOOLKIT)
    source = replace(SOURCE, text=text)
    missing = build_of(source, "cutlass", config)
    assert isinstance(missing, Failed)
    assert "no nvcc" in missing.reason
    assert "no pack has gemm_128" in missing.reason
    entry = kernel(store)
    packed(store, entry.digest)
    assert built(build_of(source, "cutlass", config)).key == entry.key


def test_one_of_another_text_interface_or_cuda_will_not(
    store: Store, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(monkeypatch, NO_TOOLKIT)
    packed(store, kernel(store, text="other").digest, kernel(store, major=11).digest)
    packed(store, kernel(store, host="another").digest)
    for source in (
        SOURCE,
        replace(SOURCE, text="", interface="v2"),
        replace(SOURCE, text="", arch="sm_80"),
    ):
        assert isinstance(build_of(source, "cutlass", config), Failed)
    assert isinstance(build_of(replace(SOURCE, text=""), "another", config), Failed)


def test_a_damaged_one_will_not(
    store: Store, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(monkeypatch, NO_TOOLKIT)
    entry = kernel(store)
    packed(store, entry.digest)
    entry.path("kernel.so").write_bytes(b"broken!")
    RUNTIME.forget()
    assert isinstance(build_of(SOURCE, "cutlass", config), Failed)


def test_the_own_compilers_kernel_comes_first_then_a_packs_then_a_build(
    store: Store, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(monkeypatch, toolkit(f"{cuda_major()}.9.1"))
    own = built(build_of(SOURCE, "cutlass", config))
    assert own.key.toolchain == f"nvcc {cuda_major()}.9.1; CUTLASS 4.2.0; {machine()}"
    assert own.command
    # What an older compiler left is no pack: a new compiler was installed for a reason.
    other = kernel(store)
    assert built(build_of(SOURCE, "cutlass", config)).key == own.key
    packed(store, other.digest)
    assert built(build_of(SOURCE, "cutlass", config)).key == other.key
    store.put_kernel(own.key, {"kernel.so": b"mine"})
    assert built(build_of(SOURCE, "cutlass", config)).key == own.key


def test_packs_for_another_gpu_are_named_once(
    store: Store, config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed(store, kernel(store).digest)
    for _ in range(2):
        packs.make_ready(config, target("A100"))
    assert caplog.text.count("this GPU is sm_80") == 1
    packs.make_ready(config, None)


def test_an_installed_pack_is_ready_before_the_first_call(
    store: Store, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    file = pack_file(tmp_path, "H200", "sm_90a")
    monkeypatch.setattr(installed, "installed_packs", lambda: Installed({"ours": file}))
    packs.make_ready(config, target("H200"))
    (pack,) = store.packs()
    assert store.kernel(pack.kernels[0]) is not None


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def lower(cache_dir: Path, **facts: Any) -> Lab:
    """Lower a product as on a machine with a GPU; return who was asked to measure."""
    with gpu.installed(**facts), Lab(library_first, cache_dir).open() as lab:
        lab.lower(product, Arg((256, 128)), Arg((128, 512)))
    return lab


def test_a_compile_takes_what_is_installed(
    site: Path,
    cache_dir: Path,
    inductor_cache: Path,
) -> None:
    lower(cache_dir)
    store = open_store(cache_dir, trust=TRUST)
    (pack,) = store.packs()
    assert pack.target == "RTX 4090"
    assert store.kernel(pack.kernels[0]) is not None


@pytest.mark.parametrize("package", ["gone_kernels", "gone.kernels"])
def test_a_compile_goes_on_without_a_pack_that_is_gone(
    site: Path,
    cache_dir: Path,
    inductor_cache: Path,
    caplog: pytest.LogCaptureFixture,
    package: str,
) -> None:
    stale(site, package)
    assert lower(cache_dir).screens
    assert caplog.text.count("the installed pack stale cannot be used") == 1
    assert len(open_store(cache_dir).packs()) == 1


def test_what_goes_wrong_with_packs_is_one_warning(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(store: Store) -> list[str]:
        raise ValueError("no such luck\nERROR: \x1b[2J")

    monkeypatch.setattr(installed, "take_installed", fails)
    for _ in range(2):
        packs.make_ready(config, target("H200"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.endswith(
        r"installed packs cannot be used: ValueError: no such luck\nERROR: \x1b[2J"
    )


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_pack_made_with_another_torch_or_triton_is_named(
    store: Store, config: Config, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    software = {"nvcc": f"nvcc {cuda_major()}.0.88", "machine": platform.machine(), name: "1.0"}
    store.put_pack(Pack("H200", "sm_90a", 1.0, software, ("m:f",), (), (kernel(store).digest,)))
    packs.make_ready(config, target("H200"))
    (record,) = caplog.records
    assert "Triton's are compiled anew" in record.message
    assert str(torch.__version__) in record.message


def test_an_unknown_gpu_is_said_once(
    cache_dir: Path, inductor_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("first", "second"):
        lab = lower(cache_dir / folder, name="NVIDIA Tomorrow", major=9, minor=9)
        assert lab.screens
    said = [record for record in caplog.records if "NVIDIA Tomorrow" in record.message]
    assert [line.levelname for line in said] == ["WARNING"]
    assert "compute capability 9.9" in said[0].message
    assert "there are no CUTLASS kernels and no packs" in said[0].message


def test_a_cpu_is_no_unknown_gpu(caplog: pytest.LogCaptureFixture) -> None:
    assert target_of(torch.device("cpu")) is None
    assert caplog.records == []


def test_a_compile_for_a_cpu_does_not_pay_for_packs() -> None:
    code = (
        "import sys, inductor_plugin.inductor.hooks\n"
        "sys.exit(any(name in sys.modules for name in "
        "('inductor_plugin.cache.transfer.archive', 'inductor_plugin.cache.transfer.installed', 'inductor_plugin.cache.transfer.wheel')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
