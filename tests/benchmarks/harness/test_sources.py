"""What makes figures stale: any source, or its code alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.sources import code_digest, sources_digest

CODE = '''"""What it is for."""

LIMIT = 3
"""What it limits."""


def twice(number: int) -> str:
    """Return it."""
    # Since it is so.
    if number:
        return f"{2 * number} a  b"
    return "none"
'''
AS_BEFORE = {
    "comment": (" so.", " otherwise."),
    "docstring": ("Return it.", "Return it, and more.\n\n    Lines of it.\n    "),
    "of a constant": ('"""What it limits."""\n', ""),
    "line break": ("(number: int)", "(\n    number: int\n)"),
}
OTHERWISE = {
    "constant": ("= 3", "= 4"),
    "name": ("twice", "double"),
    "string": ('"none"', '"nothing"'),
    "f-string": (" a  b", " a  c"),
    "block": ('    return "none"', '        return "none"'),
    "statement": ('    return "none"\n', ""),
}


def digests(folder: Path, change: tuple[str, str]) -> tuple[str, str]:
    text = CODE.replace(*change)
    assert change == ("", "") or text != CODE
    (folder / "part").mkdir(exist_ok=True)
    (folder / "part" / "source.py").write_text(text)
    return sources_digest(["part"], folder), code_digest(["part"], folder)


@pytest.mark.parametrize("change", [*AS_BEFORE, *OTHERWISE])
def test_code_is_other_code_and_sources_are_any_text(tmp_path: Path, change: str) -> None:
    before = digests(tmp_path, ("", ""))
    after = digests(tmp_path, {**AS_BEFORE, **OTHERWISE}[change])
    assert [old == new for old, new in zip(before, after, strict=True)] == [
        False,
        change in AS_BEFORE,
    ]


def test_code_has_the_digest_that_other_versions_of_python_give_it(tmp_path: Path) -> None:
    assert digests(tmp_path, ("", ""))[1] == "960fee42b826b469"


def test_a_file_of_another_place_or_another_language_is_no_code(tmp_path: Path) -> None:
    before = digests(tmp_path, ("", ""))[1]
    (tmp_path / "part" / "kernel.h").write_text("int x;")
    (tmp_path / "other.py").write_text("x = 1\n")
    assert code_digest(["part"], tmp_path) == before != code_digest(["part", "other.py"], tmp_path)
