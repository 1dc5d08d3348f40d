"""What was found in the CUDA path, before the first runs on a GPU and in them, names files and tests that exist."""

from __future__ import annotations

import re

from tests.support.repository import REPOSITORY

FINDINGS = REPOSITORY / "tests/gpu/FINDINGS.md"
FILE = re.compile(r"(?<![\w./])((?:[a-z]\w*/)+[\w.]*\w)(?:::(test_\w+))?")
FOLDERS = ("inductor_plugin", "templates", "cache", "tests", "benchmarks")
DEFINED = re.compile(r"(?<![\w./])((?:[a-z]\w*/)+\w+\.py) ((?:`\w+`(?:, )?)+)")
QUOTED = re.compile(r'(ARCHITECTURE|docs/decisions)(?:\.md)? "([^"]+)"')


def rows() -> list[list[str]]:
    """Return the cells of each row of the table."""
    lines = [line for line in FINDINGS.read_text().splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def complaints(text: str) -> list[str]:
    """Return what a text names that does not exist: files, tests, and what a file neither defines nor calls as a method, nor has as a key.

    Files of the package may be named without `inductor_plugin`.
    """
    wrong: list[str] = []
    for file, test in sorted(set(FILE.findall(text))):
        first, _, rest = file.partition("/")
        inside = REPOSITORY / "inductor_plugin"
        if first not in FOLDERS and not (rest and (inside / first).is_dir()):
            continue
        path = REPOSITORY / file if first in FOLDERS else inside / file
        if not path.exists():
            wrong.append(f"{file} is gone: name its successor in {FINDINGS.name}")
        elif test and f"def {test}(" not in path.read_text():
            wrong.append(f"{file} has no {test}")
    for file, names in DEFINED.findall(text):
        path = REPOSITORY / file
        source = path.read_text() if path.exists() else ""
        wrong += [
            f"{file} has no {name} of its own"
            for name in re.findall(r"\w+", names)
            if not re.search(rf'(?:def |class ){name}\b|\b{name} ?[:=]|\.{name}\(|"{name}"', source)
        ]
    return wrong


def test_each_finding_has_a_mend_and_says_how_its_test_was_seen_to_fail() -> None:
    table = rows()
    numbers = {int(match[1]) for row in table if (match := re.match(r"(\d+) ", row[0]))}
    assert numbers == set(range(1, 23))
    assert all(len(row) == 4 and all(row) for row in table)
    for finding, _, test, _ in table:
        assert "test_" in test or "GPU" in test, finding


def test_all_that_is_named_exists() -> None:
    text = FINDINGS.read_text()
    assert len(set(FILE.findall(text))) > 110
    assert complaints(text) == []


def test_what_is_quoted_of_the_architecture_is_there() -> None:
    quoted = set(QUOTED.findall(FINDINGS.read_text()))
    texts = {page: (REPOSITORY / f"{page}.md").read_text() for page, _ in quoted}
    assert len(quoted) > 1
    assert [text for page, text in sorted(quoted) if text not in texts[page]] == []


def test_what_is_gone_is_named() -> None:
    text = (
        "tests/gone.py, `worker/child/gone.py`, templates/gone.py, tests/package/test_findings.py::test_gone, "
        "inductor_plugin/tuning/runtime.py `worker_settings`, and/or"
    )
    assert [line.partition(" ")[0] for line in complaints(text)] == [
        "templates/gone.py",
        "tests/gone.py",
        "tests/package/test_findings.py",
        "worker/child/gone.py",
        "inductor_plugin/tuning/runtime.py",
    ]
