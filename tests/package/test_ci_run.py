"""What `.ci/run` says when a step fails or takes too long."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def _run(
    tmp_path: Path, repository: Path, make: str, total_s: int = 1000, slow_s: int = 1000
) -> subprocess.CompletedProcess[str]:
    """Run the script with a `make` that is ``make``, in a folder without a history."""
    script = tmp_path / "checkout" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    text = (repository / ".ci" / "run").read_text(encoding="utf-8")
    for limit, value in (("TOTAL_S=4200", total_s), ("SLOW_S=1500", slow_s)):
        assert limit in text
        text = text.replace(limit, f"{limit.partition('=')[0]}={value}")
    script.write_text(text, encoding="utf-8")
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
        "make simulate",
        "make demo",
        "make test-docs",
        "make test-part PART_S=300 SINCE=",
    ]
    assert done.stdout.count("s, all so far ") == 7


def test_a_step_that_fails_is_named(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, 'test "$1" != test || exit 2')

    assert done.returncode == 2
    assert done.stderr == ".ci/run: step 'test' failed with status 2\n"


def test_a_step_that_takes_too_long_is_named(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, 'test "$1" != check || sleep 30', total_s=3)

    assert done.returncode == 1
    assert ".ci/run: step 'check' was ended after " in done.stderr
    assert "make test\n" not in done.stdout


def test_on_a_slow_machine_slow_tests_are_left_out(tmp_path: Path, repository: Path) -> None:
    done = _run(tmp_path, repository, "exit 0", slow_s=-1)

    assert done.returncode == 0, done.stderr
    assert "step 'docs' is left out" in done.stderr
    assert "step 'part' is left out" in done.stderr
    assert "test-docs" not in done.stdout
    assert "test-part" not in done.stdout


@pytest.mark.parametrize(
    "step", ["environment", "check", "test", "simulate", "demo", "test-docs", "test-part"]
)
def test_each_step_is_a_target_of_the_makefile(step: str, repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")

    assert f"\n{step}:" in makefile
