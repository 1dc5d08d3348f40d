# pyright: reportUnknownMemberType=false

from __future__ import annotations

import torch

from tests.emulator.kernels.operand import allowed, device_tensor, workspace


def test_bytes_between_and_around_rows_are_watched() -> None:
    values = torch.arange(12).reshape(3, 4)
    operand = device_tensor((3, 4), torch.float16, (6, 1), values)
    assert operand.view.stride == (6, 1)
    assert operand.view.pointer % 128 == 0
    assert torch.equal(operand.numbers(), values.double())
    assert operand.changed(output=True) == operand.changed(output=False) == 0
    operand.tensor[1, 2] = 77
    assert (operand.changed(output=True), operand.changed(output=False)) == (0, 2)
    operand.memory[operand.begin + 9] = 1  # between the first row and the second
    operand.memory[operand.begin - 1] = 1
    assert operand.changed(output=True) == 2


def test_a_stride_of_0_gives_all_the_first() -> None:
    values = torch.arange(6).reshape(2, 3)
    operand = device_tensor((2, 3), torch.float32, (0, 1), values)
    assert operand.numbers().tolist() == [[0, 1, 2]] * 2
    assert operand.span == 12
    assert operand.changed(output=True) == 0


def test_only_operands_are_allowed() -> None:
    operand, empty = device_tensor((2, 3), torch.float32), workspace(0)
    memory = allowed([operand, empty])
    begin, end = operand.range
    assert end - begin == 24
    assert memory.wrong([begin - 1, begin, end - 4, end], 4).tolist() == [True, False, False, True]
