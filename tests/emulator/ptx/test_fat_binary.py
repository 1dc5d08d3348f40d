from __future__ import annotations

import ctypes

import pytest

from tests.emulator.ptx.fat_binary import FatBinaryError, image_at, texts
from tests.support.emulator.fat_binary import entry, image


def test_ptx_is_found_beside_machine_code() -> None:
    created = image(
        entry(2, b"\x7fELF"), entry(1, b".version 8.7\n\0\0\0"), entry(1, b".version 9.0")
    )
    assert texts(created) == [".version 8.7\n", ".version 9.0"]
    buffer = ctypes.create_string_buffer(created + b"behind it")
    assert image_at(ctypes.addressof(buffer)) == created


def test_what_cannot_be_read_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(FatBinaryError, match="-compress=false"):
        texts(image(entry(1, b"....", flags=0x8000)))
    with pytest.raises(FatBinaryError, match="begins with 0xba55ed50"):
        texts(b"\x7fELF".ljust(32, b"\0"))
