"""Numbers read out of libraries that nobody loads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from inductor_plugin.kernels.elf import exported

SOURCE = """
#include <cstdint>
#define SHOWN extern "C" __attribute__((visibility("default"), used))
namespace unit_a { constexpr int32_t kShared = 3 << 16; SHOWN int32_t const a_block[2] = {kShared, 384}; }
SHOWN int32_t b_block[2] = {-1, 2};
SHOWN int32_t zeros[2] = {};
SHOWN int32_t function() { return 7; }
extern "C" __attribute__((visibility("hidden"), used)) int32_t const hidden = 1;
"""


@pytest.fixture(name="library")
def a_library(tmp_path: Path) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    source, library = tmp_path / "x.cpp", tmp_path / "x.so"
    source.write_text(SOURCE)
    flags = ("-shared", "-fPIC", "-fvisibility=hidden")
    subprocess.run([compiler, *flags, source, "-o", library], check=True)
    return library


def test_what_a_library_exports_is_read(library: Path) -> None:
    names = exported(library, ["a_block", "b_block", "hidden", "nothing"])
    assert names == {"a_block": (3 << 16, 384), "b_block": (-1, 2)}


def test_what_takes_no_place_in_the_file_is_left_out(library: Path) -> None:
    assert exported(library, ["zeros"]) == {}


def test_other_files_are_said_to_be_no_libraries(library: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no library")
    with pytest.raises(ValueError, match="no 64-bit ELF"):
        exported(text, ["a_block"])
    whole = library.read_bytes()
    for length in (6, 64, len(whole) // 2, len(whole) - 1):
        text.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="cut off"):
            exported(text, ["a_block"])
