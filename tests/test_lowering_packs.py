"""Kernels of packs stand in where there is no compiler, and for another compiler's."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin import lowering_cuda, lowering_packs
from inductor_plugin.cache import KernelEntry, KernelKey, Pack, Store
from inductor_plugin.config import Config
from inductor_plugin.cuda_toolkit import NoToolkit, Toolkit
from inductor_plugin.jobs import OpKernel
from inductor_plugin.lowering_cuda import build_of, cuda_major
from inductor_plugin.runtime import RUNTIME
from inductor_plugin.target import target
from inductor_plugin.task import CppBuild
from inductor_plugin.template import CudaSource, Failed
from tests.test_wheel import pack_file

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

SOURCE = CudaSource("ns::op.out", "gemm_128", "int f();", "sm_90a", "v1", (1, 2))
NO_TOOLKIT = NoToolkit("no nvcc: looked nowhere", "install it")


def toolkit(version: str) -> Toolkit:
    return Toolkit("/x/nvcc", version, "PATH", (), (), "/x/libcudart.so", "4.2.0")


@pytest.fixture
def config(cache_dir: Path) -> Config:
    return Config.load({"cache_dir": str(cache_dir)}, environ={})


@pytest.fixture
def store(config: Config) -> Store:
    return RUNTIME.store(config)


def compiler(monkeypatch: pytest.MonkeyPatch, found: Toolkit | NoToolkit) -> None:
    monkeypatch.setattr(lowering_cuda, "find_toolkit", lambda nvcc: found)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def kernel(store: Store, *, text: str = SOURCE.text, major: int = 0) -> KernelEntry:
    key = KernelKey(
        template="cutlass",
        source=hashlib.sha256(text.encode()).hexdigest(),
        config="gemm_128 v1",
        target="sm_90a",
        toolchain=f"nvcc {major or cuda_major()}.0.88; CUTLASS 4.2.0",
        flags="-O3",
    )
    return store.put_kernel(key, {"kernel.so": b"library", "source.cu": b"int f();"})


def packed(store: Store, *digests: str) -> None:
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, (), (), digests))


def built(found: tuple[CppBuild, OpKernel] | Failed) -> CppBuild:
    assert not isinstance(found, Failed), found.reason
    build, call = found
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
    assert own.key.toolchain == f"nvcc {cuda_major()}.9.1; CUTLASS 4.2.0"
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
        lowering_packs.make_ready(config, target("A100"))
    assert caplog.text.count("this GPU is sm_80") == 1
    lowering_packs.make_ready(config, None)


def test_an_installed_pack_is_ready_before_the_first_call(
    store: Store, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inductor_plugin import installed

    file = pack_file(tmp_path, "H200", "sm_90a")
    monkeypatch.setattr(installed, "installed_packs", lambda: {"ours": file})
    lowering_packs.make_ready(config, target("H200"))
    (pack,) = store.packs()
    assert store.kernel(pack.kernels[0]) is not None
