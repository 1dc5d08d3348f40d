"""`fmha` in torch.export and AOTInductor: dynamic batch and length, loaded by another process."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _inductor

from inductor_plugin import fmha
from tests.support.attention.calls import cumulated

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # torch 2.11, of itself
]

inductor: Any = _inductor

LOAD = """
import sys
import torch
{register}
package, operands, results = sys.argv[1:]
model = torch._inductor.aoti_load_package(package)
torch.save([model(*inputs) for inputs in torch.load(operands)], results)
"""
REGISTER = "from inductor_plugin import fmha"


class Dense(torch.nn.Module):
    """Both products around it are Inductor's."""

    def __init__(self, *, lse: bool) -> None:
        super().__init__()
        self.lse = lse

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        """Return out + 1, and lse if asked for."""
        if self.lse:
            out, lse = fmha(q * 2, k, v, window=(5, 0), softcap=3.0, return_lse=True)
            return out + 1, lse
        return fmha(q * 2, k, v, causal=True) + 1


class Varlen(torch.nn.Module):
    """Sequences behind one another; lse is used and not returned."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        """Return out, scaled by lse."""
        out, lse = fmha(q, k, k, cu_seqlens_q=cu, cu_seqlens_k=cu, window=(4, 1), return_lse=True)
        return out * lse.t()[..., None]


def dense_operands(batch: int, sq: int, sk: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(batch, h, s, 8) for h, s in ((4, sq), (2, sk), (2, sk)))


def varlen_operands(*lengths: int) -> tuple[torch.Tensor, ...]:
    return (*(torch.randn(sum(lengths), h, 8) for h in (4, 2)), cumulated(*lengths))


def dense_program(*, lse: bool) -> torch.export.ExportedProgram:
    batch, sq, sk = (
        torch.export.Dim(name, min=2, max=4096) for name in ("batch", "queries", "keys")
    )
    shapes = ({0: batch, 2: sq}, {0: batch, 2: sk}, {0: batch, 2: sk})
    return torch.export.export(Dense(lse=lse), dense_operands(6, 33, 40), dynamic_shapes=shapes)


def varlen_program() -> torch.export.ExportedProgram:
    tokens, sequences = (torch.export.Dim(name, min=2, max=4096) for name in ("tokens", "ends"))
    shapes = ({0: tokens}, {0: tokens}, {0: sequences})
    return torch.export.export(Varlen(), varlen_operands(9, 13, 11), dynamic_shapes=shapes)


def calls(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if "fmha" in str(node.target)]


@pytest.mark.parametrize("lse", [False, True], ids=["out", "out and lse"])
def test_an_exported_program_takes_other_sizes(lse: bool):
    program = dense_program(lse=lse)
    assert calls(program) == ["inductor_plugin.fmha.default"]
    assert calls(program.run_decompositions()) == ["inductor_plugin.fmha.default"]
    for sizes in ((2, 7, 90), (9, 64, 5)):
        operands = dense_operands(*sizes)
        torch.testing.assert_close(program.module()(*operands), Dense(lse=lse)(*operands))


def test_an_exported_varlen_program_takes_other_sequences(tmp_path: Path):
    torch.export.save(varlen_program(), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    for lengths in ((3, 4), (20, 1, 7, 30)):
        operands = varlen_operands(*lengths)
        torch.testing.assert_close(program.module()(*operands), Varlen()(*operands))


def run(package: Path, values: list[Any], folder: Path, register: str) -> Any:
    torch.save(values, folder / "given.pt")
    code = LOAD.format(register=register)
    paths = [str(package), str(folder / "given.pt"), str(folder / "results.pt")]
    return subprocess.run(
        [sys.executable, "-c", code, *paths], timeout=200, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["out and lse", "varlen"])
def test_a_package_is_built_and_loaded_by_a_new_process(
    kind: str, inductor_cache: Path, tmp_path: Path
):
    lse = kind == "out and lse"
    if kind == "varlen":
        program, model = varlen_program(), Varlen()
        operands: list[Any] = [varlen_operands(*lengths) for lengths in ((3, 4), (20, 1, 7, 30))]
    else:
        program, model = dense_program(lse=lse), Dense(lse=lse)
        operands = [dense_operands(*size) for size in ((2, 7, 90), (9, 64, 5))]
    package = Path(inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "m.pt2")))
    done = run(package, operands, tmp_path, REGISTER)
    assert done.returncode == 0, done.stderr
    for result, operand in zip(torch.load(tmp_path / "results.pt"), operands, strict=True):
        expected = model(*operand)
        torch.testing.assert_close(result, list(expected) if lse else expected)
    if lse:
        done = run(package, operands, tmp_path, "")
        assert done.returncode != 0
        assert "inductor_plugin::fmha" in done.stderr
