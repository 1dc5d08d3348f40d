"""The table of findings before the first run on a GPU names files and tests that exist."""

from __future__ import annotations

import re

from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "tests/gpu/FINDINGS.md"
FILE = re.compile(r"(?<![\w/])((?:inductor_plugin|tests|benchmarks)/[\w./]*\w)(?:::(test_\w+))?")


def rows() -> list[list[str]]:
    """Return the cells of each row of the table."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_finding_has_a_mend_and_says_how_its_test_was_seen_to_fail() -> None:
    table = rows()
    numbers = {int(match[1]) for row in table if (match := re.match(r"(\d+) ", row[0]))}
    assert numbers == set(range(1, 23))
    assert all(len(row) == 4 and all(row) for row in table)
    for finding, _, test, _ in table:
        assert "test_" in test or "GPU" in test, finding


def test_all_files_and_tests_of_the_table_exist() -> None:
    named = {match for row in rows() for cell in row for match in FILE.findall(cell)}
    assert len(named) > 100
    texts: dict[str, str] = {}
    for file, test in sorted(named):
        path = REPOSITORY / file
        assert path.exists(), f"{file} is gone: name its successor in {TABLE.name}"
        if test:
            text = texts.setdefault(file, path.read_text())
            assert f"def {test}(" in text, f"{file} has no {test}"
