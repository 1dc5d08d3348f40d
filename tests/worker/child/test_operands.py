"""Operands from files: what is no such file is refused at once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child import operands
from inductor_plugin.worker.child.operands import build, checksum
from tests.support.fakes.devices import described


def spec(path: Path) -> TensorSpec:
    return TensorSpec((2, 3), (3, 1), "float32", "cpu", file=str(path))


def test_a_file_is_the_operand(tmp_path: Path) -> None:
    path = tmp_path / "0.bin"
    path.write_bytes(torch.arange(6.0).numpy().tobytes())
    assert torch.equal(build(spec(path)), torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("odd", ["pipe", "folder", "cut"])
def test_what_is_no_whole_file_is_refused(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "0.bin"
    if odd == "pipe":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(23))
    with pytest.raises(ValueError, match="is not a file of 24 bytes"):
        build(spec(path))


def test_numbers_are_drawn_on_the_cpu_for_a_device_that_draws_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device of another package need not have a generator; its operands are those of the CPU."""
    random = TensorSpec((4, 8), (8, 1), "bfloat16", "cpu", seed=7)
    asked: list[str] = []

    def generator(device: str) -> torch.Generator:
        asked.append(device)
        return stock("cpu")

    stock = torch.Generator
    monkeypatch.setattr(operands.torch, "Generator", generator)
    own = build(random)
    with described(name="meta"):
        assert build(replace(random, device="meta")).device.type == "meta"
    with described(name="meta", draws=True):
        build(replace(random, device="meta"))
    assert asked == ["cpu", "cpu", "meta"]
    assert torch.equal(own, build(random))


@pytest.mark.parametrize(
    ("first", "second"), [(0, 2), (0, 4096), (2, 3), (8190, 8192), (8192, 8193)]
)
def test_numbers_that_change_places_are_a_change(first: int, second: int) -> None:
    """In a row of the sum, in a column, in a word, and behind the last whole row."""
    values = torch.arange(8194, dtype=torch.float32)
    before = checksum(values)
    values[[first, second]] = values[[second, first]]
    assert checksum(values) != before
    values[[first, second]] = values[[second, first]]
    assert checksum(values) == before


def test_what_lies_between_the_rows_of_an_operand_is_part_of_its_sum() -> None:
    whole = torch.zeros(4, 8)
    view, before = whole[:, :6], checksum(whole)
    whole[2, 7] = 1.0
    assert checksum(view) != before
    assert checksum(torch.ones(4, 4).to_mkldnn()) == 0
