from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inductor_plugin import cli
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
]


def test_every_verb_is_there_once():
    names = [verb.name for verb in cli.VERBS]
    assert len(set(names)) == len(names)
    assert set(VERBS) <= set(names)


@pytest.mark.parametrize("code", ["import inductor_plugin.cli", "STATS"])
def test_the_command_line_starts_without_torch(code: str, cache_dir: Path, repository: Path):
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
    assert "--cache-dir" in said


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
