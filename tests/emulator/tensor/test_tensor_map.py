"""Tensor maps as the driver encodes them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import FaultError
from tests.emulator.tensor import tensor_map
from tests.emulator.tensor.tensor_map import TensorMap


def test_an_encoded_map_is_read_back_and_no_part_of_it() -> None:
    tensor = TensorMap(0x7000, (33, 5, 2), (2, 80, 400), (32, 4, 1), "bfloat16", 2, True)
    room = np.zeros(192, np.uint8)
    begin = -room.ctypes.data % 64
    room[begin : begin + 128] = np.frombuffer(tensor_map.encoded(tensor), np.uint8)
    assert tensor_map.at(room.ctypes.data + begin) == tensor
    for part in range(0, 128, 16):
        raw = bytearray(tensor_map.encoded(tensor))
        raw[part : part + 16] = b"\xff" * 16  # as memory is before it is written
        room[begin : begin + 128] = np.frombuffer(raw, np.uint8)
        with pytest.raises(FaultError, match="no tensor map at"):
            tensor_map.at(room.ctypes.data + begin)
