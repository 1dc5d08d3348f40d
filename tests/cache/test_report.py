from __future__ import annotations

from typing import Any

from inductor_plugin.cache.report import kernels_text

ROW: dict[str, Any] = {
    "key": "0" * 64,
    "created": 0.0,
    "bytes": 1,
    "registers": 168,
    "spills": 0,
    "shared_bytes": 228_100,
    "target": "sm_90a",
    "template": "triton_mm",
    "config": "triton_mm 64x64",
}


def test_whole_numbers_are_shown_whole_and_a_templates_name_once():
    line = kernels_text([ROW]).splitlines()[1]
    assert "228100" in line
    assert line.count("triton_mm") == 1
    assert "cutlass 64x64" in kernels_text([{**ROW, "template": "cutlass", "config": "64x64"}])
