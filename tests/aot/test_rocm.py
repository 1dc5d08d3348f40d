"""How far a product gets for an AMD GPU that is not here: to code objects of gfx942, which nobody has run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

_MACHINE_AMDGPU, _GFX942 = 0xE0, 0x4C
"""``e_machine`` of an ELF file, and ``EF_AMDGPU_MACH`` in its flags (llvm/BinaryFormat/ELF.h)."""


@pytest.mark.slow
@pytest.mark.compat
def test_products_are_lowered_and_compiled_for_gfx942(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.rocm", str(tmp_path / "cache")],
        cwd=REPOSITORY,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    problems = json.loads(done.stdout.splitlines()[-1])
    assert [each["problem"] for each in problems] == [
        "mm(16x2048, 2048x4096)",
        "addmm(16x1024, 16x4096, 4096x1024)",
    ]
    for each in problems:
        assert each["failed"] == []
        assert each["offered"]["triton_mm"] > 1  # Inductor's own
        assert each["offered"]["triton_decode"] >= 1  # ours
        triton = (n for name, n in each["offered"].items() if name.startswith("triton_"))
        assert each["kernels"] == sum(triton)  # all but the library kernels
        assert each["rejected"]["cutlass"] == "nvcc compiles it, which is not for hip"
    objects = list((tmp_path / "cache" / "kernels").rglob("*.hsaco"))
    assert len(objects) == sum(each["kernels"] for each in problems)
    for file in objects:
        header = file.read_bytes()[:52]
        assert header[:4] == b"\x7fELF"
        assert int.from_bytes(header[18:20], "little") == _MACHINE_AMDGPU
        assert header[48] == _GFX942
