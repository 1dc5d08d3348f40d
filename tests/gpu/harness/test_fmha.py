"""Builds of the attention kernels, with an nvcc that only notes what it is given: no GPU, no CUDA."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.archive import import_archive
from tests.gpu.cases import builds, fmha
from tests.gpu.cases.builds import Place
from tests.gpu.session import pack
from tests.support.cutlass.toolkit import toolkit_at

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

FORWARD, BACKWARD = list(fmha.FORWARD), list(fmha.BACKWARD)
NVCC = """#!/bin/sh
case "$*" in *--version*) echo "release 13.0, V13.0.88"; exit 0;; esac
for each in "$@"; do
  case "$last" in -o) output=$each;; cu) source=$each;; esac
  last=$each
done
found=$(grep -oE 'cutlass_fmha_(backward_)?sm90_[0-9x]+[a-z0-9_]*_(f16|bf16|e4m3)(_stages5)?' "$source" | sort -u)
echo $found >> LOG
case "$found" in *BAD*) exit 1;; esac
exec c++ -shared -o "$output" -x c++ /dev/null
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an nvcc on the path that notes the kernels it compiles, a unit in a line; return its notes."""
    nvcc, path = toolkit_at(tmp_path / "cuda"), tmp_path / "log.txt"
    text = NVCC.replace("LOG", str(path)).replace("BAD", FORWARD[1])
    nvcc.write_text(text)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    fmha_toolkit_cache()
    path.touch()
    return path


def fmha_toolkit_cache() -> None:
    from inductor_plugin.inductor.candidates.cuda import find_toolkit

    find_toolkit.cache_clear()


def test_a_kernel_that_does_not_build_costs_itself_and_the_next_run_builds_nothing(
    log: Path, tmp_path: Path
) -> None:
    names = [*FORWARD[:3], BACKWARD[0]]
    result = fmha.built(names, tmp_path / "kernels", 2)
    units = [line.split() for line in log.read_text().splitlines()]
    assert {name for unit in units for name in unit} == set(names)
    assert isinstance(result[FORWARD[1]], str)
    others = [name for name in names if name != FORWARD[1]]
    for name in others:
        place = result[name]
        assert isinstance(place, Place)
        assert place.symbol.startswith(name)
        assert Path(place.library).is_file()
    log.write_text("")
    again = fmha.built(others, tmp_path / "kernels", 2)
    assert again == {name: result[name] for name in others}
    assert log.read_text() == ""


def test_a_compiler_that_hangs_costs_its_own_kernel(log: Path, tmp_path: Path) -> None:
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    slow = f'case "$found" in *{FORWARD[2]}*) exec sleep 60;; esac\nexec c++'
    nvcc.write_text(nvcc.read_text().replace("exec c++", slow))
    names = [FORWARD[0], FORWARD[2], BACKWARD[0]]
    known = [fmha.build(name, tmp_path / "kernels") for name in names]
    operands = [each for each in known if not isinstance(each, str)]
    began = time.monotonic()
    placed = builds.placed(operands, tmp_path / "kernels", 2, 120.0, compile_s=4.0)
    assert time.monotonic() - began < 60
    assert [isinstance(each, Place) for each in placed] == [True, False, True]


def test_a_pack_of_another_patch_level_of_nvcc_serves(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = tmp_path / "kernels", FORWARD[0]
    build = fmha.built([name], folder, 1)[name]
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.write_text(nvcc.read_text().replace("13.0.88", "13.1.7"))
    fmha_toolkit_cache()
    log.write_text("")
    assert fmha.built([name], folder, 1)[name] == build
    assert log.read_text() == ""


def test_a_kernel_of_another_major_version_does_not_serve(tmp_path: Path) -> None:
    build = fmha.build(FORWARD[0], tmp_path)
    if isinstance(build, str):
        pytest.skip(build)
    key = build.key
    assert builds.serves(key, key)
    other = type(key)(**{**key.fields(), "toolchain": key.toolchain.replace("nvcc ", "nvcc 1")})
    assert not builds.serves(other, key)


def test_what_a_pack_holds_does_not_depend_on_the_python_that_built_it(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, out = FORWARD[0], tmp_path / "kernels.pack"
    assert pack.main(["--out", str(out), "--match", name]) == 0
    assert log.read_text().split() == [name]
    monkeypatch.setattr(sys, "version_info", (3, 12, 3, "final", 0))
    monkeypatch.setattr(sys, "version", "3.12.3 (main)")
    monkeypatch.setattr(sys, "hexversion", 0x030C03F0)
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.3")
    monkeypatch.setattr(platform, "python_implementation", lambda: "another")
    fmha_toolkit_cache()
    log.write_text("")
    import_archive(open_store(tmp_path / "elsewhere"), out, trusted=True)
    place = fmha.built([name], tmp_path / "elsewhere", 1)[name]
    assert isinstance(place, Place)
    assert log.read_text() == ""
    build = fmha.build(name, tmp_path / "elsewhere")
    assert not isinstance(build, str)
    assert "python" not in " ".join(str(text) for text in build.key.fields().values()).lower()
    assert "Python.h" not in build.source.source
    assert not any("python" in part.lower() for part in build.command if part.startswith("-l"))


def test_a_pack_says_what_could_not_be_built(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernels.pack"
    assert pack.main(["--out", str(out), "--match", FORWARD[1]]) == 1
    shown = capsys.readouterr().out
    assert f"\n{FORWARD[1]}: " in f"\n{shown}"
    assert "summary: 0 kernels, 1 failed" in shown


def test_only_what_the_selected_tests_need_is_built(
    log: Path, tmp_path: Path, repository: Path
) -> None:
    name = FORWARD[4]
    command = [sys.executable, "-m", "pytest", "tests/gpu/test_cutlass_fmha.py", "-q"]
    command += ["-p", "tests.gpu.harness.pretend", "-p", "no:cacheprovider", "--fresh", "-k"]
    command += [f"{name}-1-65-4", "--gpu-results", str(tmp_path / "tests.json")]
    environment = os.environ | {"INDUCTOR_PLUGIN_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, timeout=200
    )
    assert log.read_text().split() == [name], done.stdout[-3000:]
    assert "1 failed, " in done.stdout  # nothing runs it here
