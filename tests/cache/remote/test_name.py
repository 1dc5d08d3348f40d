"""Names of objects, and which names are read."""

from __future__ import annotations

import pytest

from inductor_plugin.cache.remote.name import (
    Place,
    edition_name,
    environment_name,
    file_name,
    is_part,
    place_of,
    prefix,
    records_prefix,
)


def test_all_of_one_format_and_environment_begins_alike_so_that_a_bucket_can_expire_it() -> None:
    place = Place("e" * 64, "mm", "d" * 64)
    names = [environment_name("e" * 64), edition_name(place, 3), file_name("e" * 64, "0" * 64)]
    assert all(name.startswith(f"v1/{'e' * 64}/") for name in names)
    assert prefix("e" * 64) == f"v1/{'e' * 64}/"
    assert place_of(names[1]) == place
    assert names[1].startswith(records_prefix("e" * 64, "mm"))
    assert records_prefix("e" * 64, "mm") == f"{records_prefix('e' * 64)}mm/"


@pytest.mark.parametrize(
    "name",
    [
        "v1/../records/mm/d/0000.json",
        "v1/e/records/mm/../0000.json",
        "v1/e/records/mm/d/0.json",
        "v2/e/records/mm/d/0000.json",
        "v1/e/records/mm/d/0000.json/x",
        "v1//records/mm/d/0000.json",
        "/v1/e/records/mm/d/0000.json",
    ],
)
def test_other_names_in_a_bucket_are_no_records(name: str) -> None:
    assert place_of(name) is None


def test_of_folders_in_a_bucket_only_safe_names_are_parts() -> None:
    folders = ["e" * 64, "mm", "_0", "..", ".", "", "a/b", "a\n", " "]
    assert [*filter(is_part, folders)] == ["e" * 64, "mm", "_0"]


@pytest.mark.parametrize("sha256", ["", "../../x", "A" * 64, "0" * 63])
def test_what_is_no_checksum_becomes_no_name(sha256: str) -> None:
    with pytest.raises(ValueError, match="no SHA-256"):
        file_name("e", sha256)
