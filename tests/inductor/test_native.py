"""The library of call sites is compiled once a machine; generated code has the call sites at its head."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.config import Config
from inductor_plugin.inductor import native
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.native import library, source
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.native import host_kernels


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    host_kernels.install(monkeypatch, tmp_path / "none")
    monkeypatch.setattr(library, "_STATE", library._State())
    monkeypatch.setattr(library, "_WAIT_S", 300.0)  # a busy machine has taken a minute
    monkeypatch.setattr(native, "_PREPARED", set[Path]())
    RUNTIME.forget()
    yield
    RUNTIME.forget()


def config(folder: Path, **options: Any) -> Config:
    return Config.load({"cache_dir": str(folder), "compile_workers": 1, **options})


def test_it_is_compiled_into_the_cache_once(cache_dir: Path) -> None:
    native.prepare(config(cache_dir))
    sites = library.sites()  # waits for it
    assert sites is not None
    kept = open_store(cache_dir).kernel(source.key().digest)
    assert kept is not None
    assert {"kernel.so", "source.cpp"} <= set(kept.files)
    native._PREPARED.clear()
    with mock.patch.object(native, "_provide") as provide:
        native.prepare(config(cache_dir))
    provide.assert_not_called()


@pytest.mark.parametrize("what", ["compiler", "header"])
def test_without_a_compiler_python_launches_and_the_reason_is_kept(
    cache_dir: Path, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if what == "compiler":
        missing = mock.Mock(side_effect=RuntimeError("No working C++ compiler found"))
        monkeypatch.setattr(native, "get_cpp_compiler", missing)
    else:
        monkeypatch.setattr(native.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    native.prepare(config(cache_dir))
    assert library.sites() is None
    assert ("compiler" if what == "compiler" else "Python.h") in library.reason()


def test_a_compiler_that_fails_is_no_error_of_the_compile(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "get_cpp_compiler", lambda: "false")
    native.prepare(config(cache_dir))
    assert library.sites() is None
    assert "was not compiled" in library.reason()


def test_it_is_compiled_by_the_workers_of_the_kernels_it_launches(cache_dir: Path) -> None:
    workers = RUNTIME.compile_pool(config(cache_dir), "cuda:0")
    with mock.patch.object(workers, "submit", side_effect=workers.submit) as submit:
        native.prepare(config(cache_dir))
        assert library.sites() is not None
    submit.assert_called_once()


def test_a_call_site_is_one_line_at_the_head() -> None:
    lines: list[str] = []
    wrapper = mock.Mock(add_import_once=lines.append)
    kernel = OpKernel("inductor_plugin::cutlass_mm_epilogue.out", ("k@0", "tt", 1, 0, 1, "text"))
    assert native.declare_site(wrapper, "buf3", kernel, reads=2, aux=1) == "launch_buf3"
    assert lines == [
        "import inductor_plugin.ops.sites",
        "launch_buf3 = inductor_plugin.ops.sites.site('inductor_plugin::cutlass_mm_epilogue.out', "
        "('k@0', 'tt', 1, 0, 1, 'text'), reads=2, aux=1)",
    ]
