"""What `.ci/run` says when a step fails or takes too long."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def _run(
    tmp_path: Path, repository: Path, make: str, total_s: int = 1000
) -> subprocess.CompletedProcess[str]:
    """Run the script with a `make` that is ``make``, in a folder without a history."""
    script = tmp_path / "checkout" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    text = (repository / ".ci" / "run").read_text(encoding="utf-8")
    assert "TOTAL_S=1190" in text
    script.write_text(text.replace("TOTAL_S=1190", f"TOTAL_S={total_s}"), encoding="utf-8")
    stub = tmp_path / "bin" / "make"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\necho "make $*"\n{make}\n', encoding="utf-8")
    stub.chmod(0o755)
    return subprocess.run(
        ["bash", str(script)],
        env=os.environ
        | {
            "PATH": f"{stub.parent}:{os.environ['PATH']}",
            "GIT_CEILING_DIRECTORIES": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_steps_run_in_their_order(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, "exit 0")

    assert done.returncode == 0, done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith("make ")]
    assert ran == [
        "make environment",
        "make check",
        "make test",
        "make demo",
        "make test-part PART_S=300 SINCE=",
    ]
    assert done.stdout.count("s, all so far ") == 5


def test_a_step_that_fails_is_named(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, 'test "$1" != test || exit 2')

    assert done.returncode == 2
    assert done.stderr == ".ci/run: step 'test' failed with status 2\n"


def test_a_step_that_takes_too_long_is_named(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, 'test "$1" != check || sleep 30', total_s=3)

    assert done.returncode == 1
    assert ".ci/run: step 'check' was ended after " in done.stderr
    assert "make test\n" not in done.stdout


def test_without_time_for_slow_tests_they_are_left_out(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, "exit 0", total_s=100)

    assert done.returncode == 0, done.stderr
    assert "too little for tests that take minutes" in done.stderr
    assert "test-part" not in done.stdout


@pytest.mark.parametrize("step", ["environment", "check", "test", "demo", "test-part"])
def test_each_step_is_a_target_of_the_makefile(step: str, repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")

    assert f"\n{step}:" in makefile
