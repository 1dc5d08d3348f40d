"""What `.ci/run` says when a step fails or takes too long."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.browser import CHROMIUM, NOT_FETCHED, REQUIRED


def _run(
    tmp_path: Path,
    repository: Path,
    make: str,
    total_s: int = 1000,
    docs_s: int = 1000,
    part_s: int = 1000,
    goal_s: int = 1200,
    browser: str = "chromium",
    free_mb: int = 9000,
    required: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run the script with a `make` that is ``make`` and a browser of this name, in a folder without a history.

    Its disk has ``free_mb`` left, and `REQUIRE_BROWSER` is ``required``.
    """
    script = tmp_path / "checkout" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    text = (repository / ".ci" / "run").read_text(encoding="utf-8")
    limits = (
        ("TOTAL_S=4200", total_s),
        ("DOCS_BY_S=2500", docs_s),
        ("PART_BY_S=3300", part_s),
        ("GOAL_S=1200", goal_s),
    )
    for limit, value in limits:
        assert f"\n{limit}\n" in text
        text = text.replace(limit, f"{limit.partition('=')[0]}={value}")
    script.write_text(text, encoding="utf-8")
    stub = tmp_path / "bin" / "make"
    stub.parent.mkdir(parents=True)
    stub.write_text(f'#!/bin/sh\necho "make $*"\n{make}\n', encoding="utf-8")
    stub.chmod(0o755)
    disk = stub.parent / "df"
    disk.write_text(f"#!/bin/sh\necho Avail\necho '  {free_mb}M'\n", encoding="utf-8")
    disk.chmod(0o755)
    used = ("dirname", "git", "mktemp", "rm", "sleep", "timeout")
    tools = {name: shutil.which(name) or "" for name in used}
    for name, path in (tools | ({browser: "/bin/true"} if browser else {})).items():
        (stub.parent / name).symlink_to(path)
    variables = {name: value for name, value in os.environ.items() if name != REQUIRED}
    variables |= {"PATH": str(stub.parent), "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    return subprocess.run(
        [shutil.which("bash") or "", str(script)],
        env=variables | ({REQUIRED: required} if required else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_disk_without_room_for_an_environment_is_named_before_anything_is_installed(
    tmp_path: Path, repository: Path
) -> None:
    done = _run(tmp_path / "full", repository, "exit 0", free_mb=8999)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the disk of {tmp_path}/full/checkout has 8999 MB left" in done.stderr
    assert "need 9000: free some" in done.stderr
    (tmp_path / "ready" / "checkout" / ".venv").mkdir(parents=True)
    assert _run(tmp_path / "ready", repository, "exit 0", free_mb=8999).returncode == 0


def test_all_steps_run_in_their_order(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, "exit 0")

    assert done.returncode == 0, done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith("make ")]
    assert ran == [
        "make environment",
        "make check",
        "make test",
        "make simulate",
        "make demo",
        "make test-docs ARGS=--tier rest --part-s 130 --part-since='' --ignore=tests/docs/test_apart.py",
        "make test-part PART_S=80 SINCE=",
    ]
    assert done.stdout.count("s, all so far ") == 7
    assert done.stdout.splitlines()[-1].startswith(".ci/run: passed, all of it, after ")
    assert done.stderr == ""


def test_a_step_that_fails_is_named(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, 'test "$1" != test || exit 2')

    assert done.returncode == 2
    assert done.stderr == ".ci/run: step 'test' failed with status 2\n"


def test_a_step_that_takes_too_long_is_named(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, 'test "$1" != check || sleep 30', total_s=3)

    assert done.returncode == 1
    assert ".ci/run: step 'check' was ended after " in done.stderr
    assert "make test\n" not in done.stdout


@pytest.mark.parametrize(
    ("docs_s", "part_s", "named"), [(-1, -1, "'docs' 'part'"), (1000, -1, "'part'")]
)
def test_the_last_line_names_what_a_slow_machine_leaves_out(
    docs_s: int, part_s: int, named: str, tmp_path: Path, repository: Path
) -> None:
    done = _run(tmp_path, repository, "exit 0", docs_s=docs_s, part_s=part_s)

    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(".ci/run: passed in part, after ")
    assert f"this machine was too slow for {named}; " in last
    assert "passed, all of it" not in done.stdout
    assert ("test-docs" in done.stdout) is (docs_s > 0)
    assert "test-part" not in done.stdout


@pytest.mark.parametrize(("goal_s", "is_said"), [(-1, True), (1000, False)])
def test_a_run_that_took_longer_than_it_should_says_so(
    goal_s: int, is_said: bool, tmp_path: Path, repository: Path
) -> None:
    done = _run(tmp_path, repository, "exit 0", goal_s=goal_s)

    assert done.returncode == 0
    assert ("more than the -1 s of two quiet cores" in done.stderr) is is_said


@pytest.mark.parametrize("browser", [*browser.NAMES, ""])
def test_a_run_without_a_browser_says_what_it_has_not_tested(
    browser: str, tmp_path: Path, repository: Path
) -> None:
    done = _run(tmp_path, repository, "exit 0", browser=browser)

    assert done.returncode == 0
    assert ("the tests that open the report page were skipped" in done.stderr) is not bool(browser)
    said = ", all of it, after" if browser else ", without the report page, after"
    assert f".ci/run: passed{said} " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("browser", "required", "seen"),
    [("chromium", "", CHROMIUM), ("chromium", "1", "1"), ("", "", ""), ("", "1", "1")],
)
def test_where_there_is_a_browser_the_tests_have_to_open_the_page(
    browser: str, required: str, seen: str, tmp_path: Path, repository: Path
) -> None:
    done = _run(tmp_path, repository, f'echo "needs ${REQUIRED}."', browser=browser, required=required)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"needs {seen}.\n") == done.stdout.count("make ") == 7


def test_a_run_that_could_not_fetch_axe_says_so(tmp_path: Path, repository: Path) -> None:
    make = f'echo "file ${NOT_FETCHED}"; test "$1" != test || echo "needs axe" >>"${NOT_FETCHED}"'
    done = _run(tmp_path, repository, make)

    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith(".ci/run: passed, without axe, after ")
    assert done.stderr.startswith(".ci/run: axe could not be fetched: ")
    (file,) = {line for line in done.stdout.splitlines() if line.startswith("file ")}
    assert not Path(file.removeprefix("file ")).exists()


def test_a_slow_machine_without_a_browser_says_both(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, "exit 0", part_s=-1, browser="")

    assert done.returncode == 0
    said = ".ci/run: passed in part, without the report page, after "
    assert done.stderr.splitlines()[-1].startswith(said)


def test_a_machine_three_times_slower_runs_every_step_in_time(repository: Path) -> None:
    """On a quiet machine, 820 s are gone before the documentation, which takes 110 s, and the part 215 s."""
    text = (repository / ".ci" / "run").read_text(encoding="utf-8")
    limits = {name: int(value) for name, value in re.findall(r"^([A-Z_]+_S)=(\d+)$", text, re.M)}
    assert limits["DOCS_BY_S"] >= 3 * 820
    assert limits["PART_BY_S"] >= 3 * (820 + 110)
    assert limits["TOTAL_S"] >= 3 * (820 + 110 + 215)


@pytest.mark.parametrize(
    "step", ["environment", "check", "test", "simulate", "demo", "test-docs", "test-part"]
)
def test_each_step_is_a_target_of_the_makefile(step: str, repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")

    assert f"\n{step}:" in makefile
