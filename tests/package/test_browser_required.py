"""A test that lacks a browser is skipped, unless a browser is asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, NOT_FETCHED, REQUIRED, missing
from tests.support.repository import REPOSITORY
from tests.support.tiers import options
from tests.support.tiers.selection import Case

IN_BROWSER = Case("tests/tuning/report/page/browser/test_use.py::test_x", slow=True)
OTHER = Case("tests/tuning/report/page/test_assets.py::test_x", slow=True)


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file of what could not be fetched: not that of the run to which these tests belong."""
    file = tmp_path / "not-fetched"
    monkeypatch.setenv(NOT_FETCHED, str(file))
    return file


def test_without_a_browser_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs Chromium"):
        missing("needs Chromium")


def test_where_a_browser_is_asked_for_a_test_without_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs Chromium"):
        missing("needs Chromium")


def test_where_the_browser_alone_is_asked_for_what_a_network_brings_may_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(REQUIRED, CHROMIUM)
    with pytest.raises(pytest.fail.Exception, match="needs Chromium"):
        missing("needs Chromium")
    with pytest.raises(pytest.skip.Exception, match="needs npm"):
        missing("needs npm", fetched=True)
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs npm"):
        missing("needs npm", fetched=True)


def test_what_could_not_be_fetched_is_noted_where_the_test_is_skipped(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception):
        missing("needs npm", fetched=True)
    monkeypatch.delenv(REQUIRED)
    with pytest.raises(pytest.skip.Exception):
        missing("needs Chromium")
    assert not noted.exists()
    with pytest.raises(pytest.skip.Exception):
        missing("needs npm", fetched=True)
    assert noted.read_text(encoding="utf-8") == "needs npm\n"
    monkeypatch.delenv(NOT_FETCHED)  # by hand, without `.ci/run`
    with pytest.raises(pytest.skip.Exception):
        missing("needs npm", fetched=True)


@pytest.mark.parametrize(
    ("path", "required", "drawn"),
    [
        (None, "", [OTHER]),
        ("/usr/bin/chromium", "", [IN_BROWSER, OTHER]),
        (None, "1", [IN_BROWSER, OTHER]),
    ],
    ids=["none", "there", "required"],
)
def test_a_part_has_no_tests_that_would_be_skipped_for_want_of_a_browser(
    path: str | None, required: str, drawn: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (REPOSITORY / IN_BROWSER.file).is_file()
    monkeypatch.setattr(options, "browser_path", lambda: path)
    monkeypatch.setenv(REQUIRED, required)
    assert options.runnable([IN_BROWSER, OTHER]) == drawn


@pytest.mark.parametrize(("required", "collected"), [("", False), ("1", True)])
def test_no_such_test_is_drawn(required: str, collected: bool, tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "git").symlink_to(git)  # all that is on the path: no browser
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--tier", "rest", "--part-s", "10000", IN_BROWSER.file],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": str(tmp_path), REQUIRED: required},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (f"{IN_BROWSER.file}::" in done.stdout) == collected, done.stdout + done.stderr
