from __future__ import annotations

import json

import pytest

from inductor_plugin.cache import document


def test_a_document_is_readable_json_and_comes_back():
    fields = {"name": "x", "list": [1.5, 2], "nested": {"a": {"b": [{"c": None}]}}, "text": "ü\n"}
    data = document.dump(fields)
    assert document.load(data) == fields
    shown = json.loads(data)
    assert len(shown.pop("sha256")) == 64
    assert shown == fields
    assert b"[1.5, 2]" in data


def test_every_changed_byte_is_noticed():
    data = document.dump({"name": "value", "number": 12})
    for index in range(len(data)):
        changed = bytes([*data[:index], data[index] ^ 1, *data[index + 1 :]])
        assert document.check(changed) is not None, index


@pytest.mark.parametrize("length", [0, 1, 20, 90, -1])
def test_a_cut_document_is_damaged(length: int):
    with pytest.raises(ValueError, match="checksum"):
        document.load(document.dump({"name": "value"})[:length])


def test_what_json_lacks_becomes_text():
    assert document.plain({"a": float("nan"), 1: (1, 2), "o": complex(1, 0)}) == {
        "a": "nan",
        "1": [1, 2],
        "o": "(1+0j)",
    }
