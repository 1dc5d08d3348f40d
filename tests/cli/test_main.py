from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_plugin import cli
from inductor_plugin.cache import document, open_store
from inductor_plugin.cli.verb import Verb
from inductor_plugin.errors import CacheError

VERBS = [
    "stats",
    "ls",
    "show",
    "explain",
    "diff",
    "export",
    "import",
    "merge",
    "verify",
    "prune",
    "pin",
    "check",
    "demo",
    "doctor",
    "retune",
    "rm",
    "clear",
    "unpin",
    "bench",
    "key",
]


def test_every_verb_is_there_once():
    names = [verb.name for verb in cli.VERBS]
    assert len(set(names)) == len(names)
    assert set(VERBS) <= set(names)


def run_without_a_reader(repository: Path, verb: str) -> subprocess.CompletedProcess[str]:
    """Run a verb whose output nobody reads; it prints to a pipe that is closed on the other side."""
    code = (
        "import os, sys; from inductor_plugin import cli; from inductor_plugin.cli.verb import *\n"
        f"def run(arguments):\n{verb}\n"
        "cli.VERBS = (Verb('x', 'x', lambda parser: None, run),)\n"
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
        "sys.exit(cli.main(['x']))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        (" lines_to(arguments)('half'); print('whole', file=sys.stderr); return 1", 1),
        (" print('x' * 1_000_000, flush=True); print('whole', file=sys.stderr)", 141),
    ],
)
def test_work_without_a_reader_is_no_success(repository: Path, verb: str, status: int):
    done = run_without_a_reader(repository, verb)
    assert done.returncode == status
    assert ("whole" in done.stderr) is (status == 1)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_another_pipe_that_breaks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run(_: object) -> int:
        raise BrokenPipeError("the worker is gone")

    monkeypatch.setattr(cli, "VERBS", (Verb("x", "x", lambda _: None, run),))
    assert cli.main(["x"]) == 2
    assert "the worker is gone" in capsys.readouterr().err


@pytest.mark.parametrize("code", ["import inductor_plugin.cli", "STATS"])
def test_the_command_line_starts_without_torch(code: str, cache_dir: Path, repository: Path):
    cache_dir.mkdir(mode=0o700)
    stats = (
        "from inductor_plugin.cli import main; "
        f"assert main(['stats', '--json', '--cache-dir', {str(cache_dir)!r}]) == 0"
    )
    code = stats if code == "STATS" else code
    check = (
        "import sys; assert not {'torch', 'rich', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", f"{code}; {check}"], cwd=repository, check=True)


@pytest.mark.parametrize("verb", [verb.name for verb in cli.VERBS])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--json" in said
    assert ("--cache-dir" in said) == (verb not in ("merge", "wheel", "completion", "key"))


def test_help_is_shown_where_no_verb_is_given(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 2
    said = capsys.readouterr().err
    assert all(f"    {verb}" in said for verb in VERBS)


def test_options_may_stand_before_the_verb(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cache_dir.mkdir(mode=0o700)
    assert cli.main(["--cache-dir", str(cache_dir), "--json", "stats"]) == 0
    assert json.loads(capsys.readouterr().out)["cache_dir"] == str(cache_dir)
    here, there = tmp_path / "here", tmp_path / "there"
    assert cli.main(["--cache-dir", str(here), "merge", str(there), str(cache_dir)]) == 2
    assert "--cache-dir has no meaning here" in capsys.readouterr().err
    assert not here.exists()
    assert not there.exists()


def test_an_error_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["check", str(tmp_path / "x\x1b[2J\nFAKE")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main(["import", str(tmp_path / "x\x1b[2J\nFAKE")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_a_warning_cannot_write_to_the_terminal(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    store = open_store(cache_dir)
    store.quarantine("e", "bad", {"status": "hung", "reason": "r"})
    (path,) = store.layout.quarantined.rglob("*.json")
    path.write_bytes(document.dump({"format": 1, "\x1b[2J\nFAKE": 1}))
    monkeypatch.setattr(logging.getLogger("inductor_plugin"), "propagate", False)
    assert cli.main(["ls", "--quarantine", "--cache-dir", str(cache_dir)]) == 0
    said = capsys.readouterr().err
    assert "damaged cache entry" in said
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert not logging.getLogger("inductor_plugin").handlers


def test_the_package_can_be_run(repository: Path):
    command = [sys.executable, "-m", "inductor_plugin", "--version"]
    done = subprocess.run(command, cwd=repository, capture_output=True, check=True)
    assert done.stdout.startswith(b"inductor-plugin ")


def test_a_word_that_is_no_verb_ends_with_2(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.main(["nonsense"])
    assert ended.value.code == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("error", [CacheError("what; do this"), OSError(28, "No space left")])
def test_an_error_is_one_line_and_2(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run(_: object) -> int:
        raise error

    verb = Verb("broken", "a verb that fails", lambda _: None, run)
    monkeypatch.setattr(cli, "VERBS", (verb,))
    assert cli.main(["broken"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"inductor-plugin broken: {error}\n"


def test_a_reader_that_stops_reading_is_no_error(cache_dir: Path, repository: Path):
    child = subprocess.Popen(
        [sys.executable, "-m", "inductor_plugin.cli", "ls", "--help"],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    assert b"Traceback" not in child.stderr.read()
    child.wait(20)
    child.stderr.close()
