"""C++ candidates begin with the header that Inductor has precompiled."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import subprocess
from pathlib import Path
from unittest import mock

import pytest
from torch._inductor import codecache
from torch._inductor import config as inductor_config

from inductor_plugin.inductor.facts.toolchain import (
    _precompiled,
    cpp_toolchain,
    precompiled,
    with_header,
)
from inductor_plugin.worker.farm.parcel import arrived, parcel_of, why_not_compiled
from inductor_plugin.worker.jobs import CppCompileJob

pytestmark = pytest.mark.compat

SOURCE = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out) { at::vec::Vectorized<float>(3).store(out); }
"""


def test_the_compiler_takes_the_precompiled_header(tmp_path: Path) -> None:
    toolchain = cpp_toolchain()
    command = with_header(toolchain.command)
    header = Path(command[command.index("-include") + 1])
    assert Path(f"{header}.gch").stat().st_size > 1 << 20
    (tmp_path / "k.cpp").write_text(SOURCE)
    words = {"{source}": str(tmp_path / "k.cpp"), "{output}": str(tmp_path / "k.so")}
    filled = [words.get(word, word) for word in command]
    # -H names each header that is read, a precompiled one with an exclamation mark.
    done = subprocess.run(
        [filled[0], "-H", "-Winvalid-pch", *filled[1:]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"! {header}.gch" in done.stderr
    assert (tmp_path / "k.so").exists()


def test_the_header_is_no_part_of_what_a_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cpp_toolchain()
    precompiled()
    assert cpp_toolchain().digest == before.digest


def test_a_node_of_a_farm_that_lacks_the_header_makes_the_call_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = cpp_toolchain().command
    sent = with_header(command)
    parcel = parcel_of(CppCompileJob((), sent, str(tmp_path), 1.0))
    header = sent[sent.index("-include") + 1]
    assert parcel.headers == (header,)
    assert header not in parcel.paths
    assert arrived(parcel).job == parcel.job
    monkeypatch.setattr("inductor_plugin.worker.farm.parcel.is_own", mock.Mock(return_value=False))
    there = arrived(parcel)
    assert isinstance(there.job, CppCompileJob)
    assert there.job.command == command
    assert why_not_compiled(there) is None


def test_without_it_the_call_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    command = cpp_toolchain().command
    with inductor_config.patch(cpp_cache_precompile_headers=False):
        assert with_header(command) == command
    monkeypatch.delattr(codecache, "_precompile_header")
    _precompiled.cache_clear()
    assert with_header(command) == command
    _precompiled.cache_clear()
