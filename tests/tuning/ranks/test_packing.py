"""Values in a store."""

from __future__ import annotations

import base64
import zlib

import pytest

from inductor_plugin.tuning.ranks.packing import packed, unpacked


def test_a_value_is_read_as_it_was_written() -> None:
    value = {"a": [1, 2.5, None, "ü"], "b": {}}
    assert packed(value).isascii()
    assert unpacked(packed(value)) == value
    assert len(packed(["x" * 10_000])) < 200


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_damaged_is_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpacked(base64.b85encode(zlib.compress(content)).decode())
    with pytest.raises(ValueError, match=r".+"):
        unpacked("not compressed")
