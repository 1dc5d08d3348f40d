"""A model compiled for a GPU that is not there, and taken over by a process without a compiler."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot import precompile
from inductor_plugin.aot.lower import Lowered
from inductor_plugin.aot.precompile import Request, check
from inductor_plugin.aot.precompile import precompile as run
from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.transfer.archive import export_archive, import_archive
from inductor_plugin.config import Config, process_environment
from inductor_plugin.errors import (
    ArchiveError,
    CacheError,
    OptionError,
    PackError,
    TargetError,
)
from inductor_plugin.inductor import native
from inductor_plugin.kernels.nvcc import NoToolkit, find
from inductor_plugin.ops.native import source
from inductor_plugin.problem.target import Target, target
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.cache.records import kernel_key
from tests.support.cli.schemas import follow
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
NVCC = not isinstance(find("", process_environment()), NoToolkit)


HALF = "tests.support.graphs.models:half"


@pytest.fixture
def request_(
    tmp_path: Path, cache_dir: Path, inductor_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Request]:
    monkeypatch.setenv("INDUCTOR_PLUGIN_ATTENTION_BACKENDS", "EFFICIENT,TRITON")  # other processes
    options = {
        "cache_dir": str(cache_dir),
        "gemm_backends": "ATEN,TRITON",
        "attention_backends": "EFFICIENT,TRITON",
        "max_candidates": 2,
        "table": "off",
        "progress": "off",
    }
    RUNTIME.forget()
    yield Request(
        target="H200",
        models=(HALF,),
        out=tmp_path / "half.pack",
        config=Config.load(options, environ={}),
    )
    RUNTIME.forget()


def quiet(text: str) -> None:
    del text


def broken() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    raise ZeroDivisionError("first line\nsecond line")


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if bool(x.sum() > 0) else -x


def branching() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Branching(), (torch.ones(2),)


@pytest.mark.parametrize(("name", "said"), [("broken", "first line; call it"), ("branching", "")])
def test_a_model_that_raises_is_one_line(request_: Request, name: str, said: str) -> None:
    spec = f"tests.aot.test_precompile:{name}"
    with pytest.raises(
        PackError, match=rf"model '{spec}' cannot be compiled: \w+: .*{said}"
    ) as raised:
        run(replace(request_, models=(spec,)), quiet)
    assert "\n" not in str(raised.value)
    assert not request_.out.exists()


def command(*arguments: str) -> dict[str, Any]:
    """Run the command line in a process of its own, and return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "inductor_plugin.cli", *arguments, "--json"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        timeout=1500,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_another_process_takes_the_pack_and_compiles_nothing(
    request_: Request, tmp_path: Path
) -> None:
    finished = run(request_, quiet)
    assert finished.stats.compiled == 6
    assert finished.count("triton") == len(finished.pack.kernels) == 6
    assert (finished.pack.target, finished.pack.arch, finished.pack.models) == (
        "H200",
        "sm_90a",
        (HALF,),
    )
    assert finished.pack.problems == (
        "attention(1x4x128x64, 1x4x128x64, 1x4x128x64)",
        "attention(1x4x64x64, 1x4x64x64, 1x4x64x64)",
        "mm(128x256, 256x512)",
        "mm(64x256, 256x512)",
    )
    assert finished.pack.software["torch"] == torch.__version__
    assert finished.bytes == request_.out.stat().st_size > 10_000
    other = str(tmp_path / "other")
    taken = command("import", str(request_.out), "--trust", "--cache-dir", other)
    assert taken["kernels"] == 6
    again = command(
        *("precompile", "--target", "H200", "--model", HALF, "--cache-dir", other),
        *("--backends", "ATEN,TRITON", "--max-candidates", "2", "--nvcc", "/nowhere"),
        *("--out", str(tmp_path / "again.pack")),
    )
    follow("precompile", again)
    assert again["stats"]["compiled"] == 0
    assert again["stats"]["candidates"] == finished.stats.candidates
    assert again["pack"]["kernels"] == list(finished.pack.kernels)


@pytest.mark.slow
def test_a_farm_makes_the_same_kernels(
    request_: Request, tmp_path: Path, ray_on_this_machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    def files(config: Config) -> dict[str, dict[str, str]]:
        return {
            entry.digest: dict(entry.files) for entry in open_store(config.cache_dir).iter_kernels()
        }

    here = run(request_, quiet)
    config = replace(request_.config, cache_dir=tmp_path / "farm", compile_farm=ray_on_this_machine)
    on_farm = replace(request_, config=config)
    there = run(on_farm, quiet)
    assert there.pack.kernels == here.pack.kernels
    assert there.stats.compiled == here.stats.compiled == 6
    assert files(on_farm.config) == files(request_.config)  # digests of each file's bytes
    assert "compiled here" not in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(not NVCC, reason="needs nvcc and nvidia-cutlass")
def test_cutlass_kernels_of_a_farm_come_with_it_and_need_no_compiler_here(
    request_: Request, tmp_path: Path, ray_on_this_machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The local pool has no compiler and lacks none of these kernels: it names the same ones."""
    config = replace(request_.config, gemm_backends="ATEN,CUTLASS", max_candidates=1)
    config = replace(config, compile_farm=ray_on_this_machine)
    finished = run(replace(request_, config=config), quiet)
    assert "compiled here" not in caplog.text
    assert finished.count("cutlass") == 2  # one for each product
    assert finished.count("sites") == 1  # what launches them, for a machine without a compiler
    for kernel in finished.kernels:
        if kernel.kind == "sites":
            continue
        assert kernel.spills == 0
        assert kernel.registers is not None
        if kernel.kind == "cutlass":  # the attention's are Triton's
            assert kernel.instructions == ("HGMMA",)
            assert kernel.registers <= 168
    assert finished.bytes < 200_000 * finished.count("cutlass")
    other = str(tmp_path / "other")
    command("import", str(request_.out), "--trust", "--cache-dir", other)
    arguments = ("precompile", "--target", "H200", "--model", HALF, "--backends", "ATEN,CUTLASS")
    again = command(
        *(*arguments, "--max-candidates", "1", "--nvcc", "/nowhere", "--cache-dir", other),
        *("--out", str(tmp_path / "again.pack")),
    )
    assert again["stats"]["compiled"] == 0
    assert again["pack"]["kernels"] == list(finished.pack.kernels)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"target": "H300"}, TargetError, "did you mean"),
        ({"models": ()}, OptionError, "name a model"),
        ({"models": ("tests.support.graphs.models:nothing",)}, OptionError, "has no 'nothing'"),
        (
            {"models": ("tests.support.graphs.models:sequence",)},
            PackError,
            "no product that is tuned",
        ),
        ({"out": Path("/nowhere/x.pack")}, OptionError, "there is no folder"),
        ({"standard": "nonsense"}, TargetError, "unknown architecture"),
        ({"standard": "sm_80"}, OptionError, "H200, which is sm_90a"),
        ({"target": "here"}, TargetError, "there is no GPU"),
    ],
)
def test_what_cannot_be_compiled_is_said(
    request_: Request, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(replace(request_, **change), quiet)


def test_a_pack_that_does_not_load_leaves_the_old_file(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_.out.write_bytes(b"the old one")

    def broken(file: Path) -> None:
        assert file.is_file()
        raise PackError("a kernel of the pack cannot be loaded")

    monkeypatch.setattr(precompile, "check", broken)
    with pytest.raises(PackError, match="cannot be loaded"):
        run(request_, quiet)
    assert request_.out.read_bytes() == b"the old one"
    assert [path.name for path in request_.out.parent.glob("*.unchecked")] == []


@pytest.mark.parametrize("compiler", [True, False])
def test_the_library_of_call_sites_comes_with_cutlass_kernels(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compiler: bool
) -> None:
    """A stub of a kernel: what launches it is in the pack, which another machine imports."""
    store = RUNTIME.store(request_.config)
    kernel = store.put_kernel(kernel_key(), {"kernel.so": b"", "source.cu": b"int f();"})
    lowered = Lowered("mm(8x8, 8x8)", (), kernels=(kernel.digest,), failed=(), rejected={})
    monkeypatch.setattr(precompile, "_lower", lambda *_: [lowered])
    monkeypatch.setattr(precompile, "load", lambda *_: None)
    monkeypatch.setattr(precompile, "instructions", lambda _: {})
    if compiler:
        monkeypatch.setattr(
            native, "_build", lambda store, _: store.put_kernel(source.key(), {"kernel.so": b"so"})
        )
    monkeypatch.setattr(
        native, "why_not_compiled", lambda: None if compiler else "there is no compiler"
    )
    finished = run(request_, quiet)
    assert (source.key().digest in finished.pack.kernels) is compiler
    assert finished.count("sites") == compiler
    assert any("there is no compiler" in warning for warning in finished.warnings) is not compiler
    other = open_store(tmp_path / "other")
    import_archive(other, request_.out, trusted=True)
    assert (other.kernel(source.key().digest) is not None) is compiler


def test_nothing_is_compiled_into_a_cache_that_cannot_keep_it(
    request_: Request, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompile, "_lower", lambda *_: pytest.fail("it is lowered"))
    off = replace(request_, config=replace(request_.config, cache="off"))
    with pytest.raises(CacheError, match="cache=off keeps nothing"):
        run(off, quiet)
    cache_dir.write_text("a file in its place")
    with pytest.raises(CacheError, match="cannot be written to"):
        run(request_, quiet)


def test_a_library_that_is_none_is_found_when_the_pack_is_read_back_and_replaces_no_file(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "cache")
    files: dict[str, Path | bytes] = {"kernel.so": b"no library", "source.cu": b"int f();"}
    kernel = store.put_kernel(kernel_key(), files)
    pack = Pack("H200", "sm_90a", 1.0, {}, (), (), (kernel.digest,))
    export_archive(store, tmp_path / "x", pack=pack)
    with pytest.raises(PackError, match="cannot be loaded"):
        check(tmp_path / "x")
    old = tmp_path / "old.pack"
    old.write_bytes(b"the old one")
    with pytest.raises(PackError, match="cannot be loaded"):
        precompile._write_pack(store, pack, old, None)  # pyright: ignore[reportPrivateUsage]
    assert old.read_bytes() == b"the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "x", "old.pack"}


def test_this_machines_gpu_is_a_target(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(precompile, "target_of", lambda device: target("A100"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    lowered: list[Any] = []

    def lower(request: Request, gpu: Target, config: Config, say: Any) -> Any:
        lowered.append(gpu.name)
        return []

    monkeypatch.setattr(precompile, "_lower", lower)
    with pytest.raises(PackError, match="no product"):
        run(replace(request_, target="here"), quiet)
    assert lowered == ["A100"]


def test_a_backend_without_a_library_kernel_is_compiled_too(request_: Request) -> None:
    config = replace(request_.config, gemm_backends="TRITON", max_candidates=1)
    assert run(replace(request_, config=config), quiet).count("triton") == 2


def test_odd_sizes_are_compiled_and_refusals_are_remembered(request_: Request) -> None:
    finished = run(replace(request_, models=("tests.support.graphs.models:odd",)), quiet)
    assert finished.pack.problems == ("mm(33x4001, 4001x97)",)
    assert "triton_persistent_tma" in finished.problems[0].rejected
    (record,) = RUNTIME.store(request_.config).iter_records()
    assert record.decision is None
    assert record.rejected == finished.problems[0].rejected


def test_the_general_set_is_compiled(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    from inductor_plugin.aot import lower as lower_module
    from inductor_plugin.aot import standard

    seen: list[tuple[Any, Config]] = []

    def lower(make: Any, config: Config, **options: Any) -> list[Any]:
        seen.append((make, config))
        return []

    monkeypatch.setattr(precompile, "lower_model", lower)
    assert lower_module.lower_model is not lower
    with pytest.raises(PackError):
        run(replace(request_, models=(), standard="sm_90a"), quiet)
    ((make, config),) = seen
    model, _ = make()
    assert isinstance(model, standard.Products)
    assert model.eight_bit
    assert config.gemm_backends == "ATEN,CUTLASS"


def test_without_a_compiler_the_rest_is_compiled_and_the_lack_is_said(request_: Request) -> None:
    config = replace(
        request_.config, gemm_backends="ATEN,TRITON,CUTLASS", nvcc="/nowhere", max_candidates=1
    )
    finished = run(replace(request_, config=config), quiet)
    assert finished.count("triton") == 2
    (warning,) = finished.warnings
    assert "no CUTLASS kernels" in warning
    assert "/nowhere" in warning


def test_a_kernel_that_is_not_compiled_is_said(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inductor_plugin.worker.jobs import Compiled, CompileJob

    class Broken:
        workers = 1

        def submit(
            self, job: CompileJob, done: Any, memory_bytes: int | None = None, *_order: Any
        ) -> None:
            done([Compiled(job.key, "compile_failed", "error: no such thing")])  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]

    monkeypatch.setattr(RUNTIME, "compile_pool", lambda config, device: Broken())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(PackError, match="nothing was compiled: error: no such thing"):
        run(request_, quiet)
    assert not request_.out.exists()


def test_an_archive_without_a_pack_is_none(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    export_archive(store, tmp_path / "x")
    with pytest.raises(PackError, match="holds no pack"):
        check(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"no archive")
    with pytest.raises(ArchiveError, match="damaged"):
        check(tmp_path / "x")
