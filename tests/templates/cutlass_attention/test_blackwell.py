"""The attention example for Blackwell compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.kernels import nvcc, sass
from inductor_plugin.kernels.nvcc import Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.templates.cutlass_attention import source as attention_source
from inductor_plugin.templates.cutlass_attention.patch import example_folder
from inductor_plugin.worker.child import compile as child_compile
from inductor_plugin.worker.jobs import CppCompileJob, Event

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

pytestmark = pytest.mark.slow


def test_the_example_of_blackwell_compiles(toolkit: Toolkit, tmp_path: Path) -> None:
    """Example 77, whose kernels no template offers yet, compiles as it is for sm_100a."""
    if toolkit.release < (12, 8):
        pytest.skip(f"sm_100a needs CUDA 12.8, this is {toolkit.version}")
    include = attention_source.include_folder()
    assert include is not None
    text = (Path(__file__).parent / "blackwell_fmha.cu").read_text(encoding="utf-8")
    command = nvcc.command(
        replace(
            toolkit,
            include_dirs=(
                *toolkit.include_dirs,
                str(example_folder(include).parent / "77_blackwell_fmha"),
            ),
        ),
        "sm_100a",
    )

    def ignore(event: Event) -> None:
        del event

    source = CppSource("77", text, "blackwell_fmha")
    (done,) = child_compile.run(CppCompileJob((source,), command, str(tmp_path), 1200), ignore)
    assert (done.status, done.reason) == ("ok", "")
    instructions = sass.instructions(Path(str(done.library)))
    assert not isinstance(instructions, str), instructions
    assert any(name.startswith("UTC") for names in instructions.values() for name in names)
