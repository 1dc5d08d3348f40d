from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.kernels.cuobjdump import cuobjdump
from inductor_plugin.kernels.sass import instructions, parse_sass

LISTING = """
Fatbin elf code:
================
arch = sm_90a

	code for sm_90a
		Function : _ZN9unit_one_6kernelE
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0110*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0120*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24, gsb0 ;
		Function : _ZN9unit_two_6kernelE
        /*0110*/                   QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24 ;
		Function : plain
        /*0110*/                   IMAD R24, R1, R2, R3 ;
        /*0120*/                   HMMA.16816.F32.BF16 R24, R1, R2, R3 ;
        /*0130*/                   UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4] ;
"""


def test_each_function_has_its_own_instructions() -> None:
    assert parse_sass(LISTING) == {
        "_ZN9unit_one_6kernelE": {"HGMMA"},
        "_ZN9unit_two_6kernelE": {"QGMMA"},
        "plain": {"HMMA", "UTCHMMA"},
    }


@pytest.mark.skipif(cuobjdump() is None, reason="needs cuobjdump")
def test_what_is_no_library_is_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"nothing")
    result = instructions(path)
    assert isinstance(result, str)
    assert "x.so" in result


def test_a_tool_that_does_not_run_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "cuobjdump"
    monkeypatch.setattr("inductor_plugin.kernels.cuobjdump.cuobjdump", lambda: tool)
    result = instructions(tmp_path / "x.so")
    assert isinstance(result, str)
    assert "did not run" in result
