"""What `verify` names that no checksum shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from inductor_plugin.cache import Store, document, open_store, verify
from inductor_plugin.cache.verify import Damage
from inductor_plugin.errors import CacheError
from tests.support.cache.locks import wait_for_none
from tests.support.cache.records import ENVIRONMENT, kernel_key, measured, put_library, record


@pytest.fixture
def store(cache_dir: Path) -> Store:
    store = open_store(cache_dir)
    store.put_environment(ENVIRONMENT)
    kernel = put_library(store)
    store.put_record(record(measured("a", kernel=kernel.digest)))
    store.put_record(record(measured("a"), problem=2))
    store.quarantine(record().environment, "c", {"status": "hung"})
    assert store.verify() == []
    return store


def findings(store: Store) -> list[tuple[str, str, str]]:
    """Return kind, place and reason of everything a fresh look finds."""
    root = store.root
    return [
        (finding.kind, str(finding.path.relative_to(root)), finding.reason)
        for finding in open_store(root, create=False).verify()
    ]


def test_records_whose_environment_is_gone_cannot_be_explained(store: Store):
    path = store.layout.environment(record().environment)
    path.unlink()
    (finding,) = findings(store)
    assert finding[:2] == ("environment", str(path.relative_to(store.root)))
    assert "missing" in finding[2]


def test_an_environment_without_records_may_be_gone(store: Store):
    environment = store.layout.environment(record().environment)
    for path in environment.parent.glob("*/*.json"):
        path.unlink()
    environment.unlink()
    assert findings(store) == []


@pytest.mark.parametrize("kept", ["records", "kernels", "quarantine"])
def test_a_cache_with_content_has_a_schema(store: Store, kept: str):
    for name in {"records", "kernels", "quarantine"} - {kept}:
        shutil.rmtree(store.root / name)
    store.layout.schema.unlink()
    (finding,) = findings(store)
    assert finding[:2] == ("schema", "schema.json")
    assert "missing" in finding[2]
    assert not store.layout.schema.exists()  # looking mends nothing


def test_an_empty_cache_may_be_without_a_schema(store: Store):
    for name in ("records", "kernels", "quarantine"):
        shutil.rmtree(store.root / name)
    store.layout.schema.unlink()
    assert findings(store) == []


def test_a_damaged_schema_is_named_and_not_mended_by_looking(store: Store):
    store.layout.schema.write_bytes(b"{}")
    assert [finding[0] for finding in findings(store)] == ["schema"]
    assert store.layout.schema.read_bytes() == b"{}"
    open_store(store.root)
    assert document.load(store.layout.schema.read_bytes())["format"] == 1
    assert findings(store) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling link"])
def test_what_a_kernels_entry_does_not_list_is_named(store: Store, kind: str):
    folder = store.layout.kernel(kernel_key().digest)
    extra = folder / "more.so"
    if kind == "file":
        extra.write_bytes(b"code")
    elif kind == "folder":
        extra.mkdir()
    else:
        extra.symlink_to(folder / "kernel.so" if kind == "link" else "/nowhere")
    assert findings(store) == [
        ("kernel", str(folder.relative_to(store.root)), "its entry does not list more.so")
    ]


@pytest.mark.parametrize("name", ["kernel.so", "entry.json", "."])
def test_a_link_in_the_place_of_a_kernels_file_is_named(store: Store, name: str, tmp_path: Path):
    folder = store.layout.kernel(kernel_key().digest)
    path = folder if name == "." else folder / name
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    ((kind, place, reason),) = findings(store)
    assert (kind, place) == ("kernel", str(folder.relative_to(store.root)))
    assert (name if name != "." else "link") in reason


def test_a_kernel_that_was_evicted_is_no_damage_to_the_record_that_names_it(store: Store):
    shutil.rmtree(store.layout.kernel(kernel_key().digest))
    assert findings(store) == []
    store.prune(max_bytes=0)
    assert findings(store) == []


def test_a_kernel_that_is_built_again_during_the_look_is_sound(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    looks = Mock(side_effect=["kernel.so is missing", None])
    monkeypatch.setattr(verify, "content_damage", looks)
    assert findings(store) == []
    assert looks.call_count == 2


@pytest.mark.parametrize("kind", ["record", "kernel", "quarantine"])
def test_what_a_process_works_on_is_not_set_aside(
    store: Store, kind: str, monkeypatch: pytest.MonkeyPatch
):
    kept, layout = record(), store.layout
    path, lock = {
        "record": (
            layout.record(kept.environment, kept.op, kept.digest),
            f"records-{kept.digest[:2]}",
        ),
        "kernel": (layout.kernel(kernel_key().digest), kernel_key().digest),
        "quarantine": (
            layout.quarantine(kept.environment, "c"),
            f"quarantine-{kept.environment[:8]}",
        ),
    }[kind]
    (path / "kernel.so" if kind == "kernel" else path).write_bytes(b"damaged")
    wait_for_none(monkeypatch)
    (damage,) = store.verify()
    with open_store(store.root).lock_kernel(lock, 0), pytest.raises(CacheError, match=lock):
        store.repair(damage)
    assert path.exists()
    assert "moved to" in store.repair(damage)
    assert not path.exists()


def test_what_is_gone_or_written_again_meanwhile_needs_no_repair(store: Store):
    environment = store.layout.environment(record().environment)
    assert store.repair(Damage("environment", environment, "damaged")) == ""
    assert environment.exists()
    gone = store.layout.record(record().environment, "mm", "0" * 64)
    assert store.repair(Damage("record", gone, "damaged")) == ""
