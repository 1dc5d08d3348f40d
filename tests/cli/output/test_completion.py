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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("st",), {"stats"}),
        (("import", "x"), {"x.pack", "xfolder"}),
        (("diff", "x"), {"x.pack", "xfolder"}),
        (("ls", "--cache-dir", "x"), {"xfolder"}),
        (("report", "out.html", "x"), {"x.pack", "xfolder"}),
    ],
)
def test_bash_takes_the_script_and_completes_verbs_files_and_folders(
    words: tuple[str, ...], offered: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    main(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "x.pack").touch()
    (tmp_path / "xfolder").mkdir()
    line = (
        f"source ./script; COMP_WORDS=(inductor-plugin {' '.join(words)}); COMP_CWORD={len(words)}; "
        f"_shtab_inductor_plugin inductor-plugin {words[-1]} x; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(
        [bash, "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert {word.rstrip("/") for word in done.stdout.split()} == offered


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
