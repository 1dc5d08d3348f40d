# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inductor_plugin.templates.cutlass.config import GemmConfig
from tests.emulator.kernels import gemm
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


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
    ids=str,
)
def test_what_is_not_written_is_no_number(dtype: torch.dtype) -> None:
    output, room = device_tensor((3, 5), dtype, (8, 1)), workspace(64)
    assert output.numbers().isnan().all()
    assert room.tensor.view(dtype).double().isnan().all()
    operand = device_tensor((3, 5), dtype, (8, 1), torch.ones(3, 5))
    padding = operand.memory[operand.begin :].view(dtype)[5:8]
    assert padding.double().isnan().all()


def test_c_is_no_number_where_beta_is_0() -> None:
    config = GemmConfig(
        "sm_90a",
        (128, 128, 64),
        (1, 1, 1),
        "pingpong",
        "bf16",
        "bf16",
        "bf16",
        "bf16",
        "f32",
        bias="full",
    )
    case = gemm.Case(config, 3, 8, 16, beta=0.0)
    tensors = gemm.operands(case)
    assert tensors.c is not None
    assert tensors.c.numbers().isnan().all()
    assert gemm.expected(case, tensors).isfinite().all()
    other = gemm.operands(replace(case, beta=2.0))
    assert other.c is not None
    assert other.c.numbers().isfinite().all()
