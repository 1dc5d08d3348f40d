from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.lookup.find import find
from inductor_plugin.errors import CacheError
from tests.support.cache.records import measured, record


def test_a_key_that_is_not_unique_names_operators_whole(cache_dir: Path):
    store = open_store(cache_dir)
    for digest in ("ab" * 32, "ac" * 32):
        store.put_record(record(measured("a"), digest=digest, op="packed_linear_unary"))
    environment = record().environment
    with pytest.raises(CacheError, match=rf"record {environment[:12]}/packed_linear_unary/abab"):
        find(store.layout, "a")
