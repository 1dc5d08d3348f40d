from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_plugin.cli import VERBS, main
from inductor_plugin.cli.output.completion import SHELLS


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_every_verb(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb.name in script for verb in VERBS)
    assert "--prometheus" in script


COMPLETED = [
    (("st",), {"stats"}),
    (("import", "x"), {"x.pack", "xfolder"}),
    (("diff", "x"), {"x.pack", "xfolder"}),
    (("ls", "--cache-dir", "x"), {"xfolder"}),
    (("report", "out.html", "x"), {"x.pack", "xfolder"}),
]
"""Words of a line that is being written, and what is offered for the last of them in a folder with a file and a folder."""


def prepared(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Write the script for a shell, and what it may offer, to a folder; return the shell's path."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"needs {shell}")
    main(["completion", shell])
    (folder / "script").write_text(capsys.readouterr().out)
    (folder / "x.pack").touch()
    (folder / "xfolder").mkdir()
    return path


@pytest.mark.parametrize(("words", "offered"), COMPLETED)
def test_bash_takes_the_script_and_completes_verbs_files_and_folders(
    words: tuple[str, ...], offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bash = prepared("bash", tmp_path, capsys)
    line = (
        f"source ./script; COMP_WORDS=(inductor-plugin {' '.join(words)}); COMP_CWORD={len(words)}; "
        f"_shtab_inductor_plugin inductor-plugin {words[-1]} x; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        [bash, "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert {word.rstrip("/") for word in done.stdout.split()} == offered


ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'source ./setup'
zpty -w -n shell "$1"$'\\t'
while zpty -r shell; do :; done
"""
"""Types words and a tab in a shell with a terminal of its own, which ends when it has completed them."""
SETUP = """
autoload -Uz compinit
compinit -u -D
eval "$(<script)"
compadd() {
  if [[ ${@[1,(i)(-|--)]} != *-[OAD]\\ * ]]; then
    local -a names
    builtin compadd -A names "$@"
    print -rl -- $names >> offered
  fi
  builtin compadd "$@"
}
comppostfuncs=(exit)
"""
"""Of the lists that the completion gives to zsh, writes those that are offered, but not those that it filters."""


@pytest.mark.parametrize(("words", "offered"), COMPLETED)
def test_zsh_takes_the_script_and_completes_verbs_files_and_folders(
    words: tuple[str, ...], offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zsh = prepared("zsh", tmp_path, capsys)
    (tmp_path / "setup").write_text(SETUP)
    line = " ".join(("inductor-plugin", *words))
    done = subprocess.run(
        [zsh, "-f", "-c", ZSH, "zsh", line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert (tmp_path / "offered").exists(), said
    names = (tmp_path / "offered").read_text().split()
    assert {name.rstrip("/") for name in names} == offered, said


def test_zsh_offers_files_and_folders(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "zsh"])
    script = capsys.readouterr().out
    assert ":_files" in script
    assert ":_files -/" in script


def test_without_the_package_the_way_to_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert 'pip install "inductor-plugin[completion]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("completion", "bash", "--json"), ("--json", "completion", "zsh")]
)
def test_a_script_is_no_json(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "inductor-plugin completion: completion is a script for a shell; leave out --json\n"
    )
