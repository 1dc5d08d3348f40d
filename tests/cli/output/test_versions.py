from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cli import main
from inductor_plugin.cli.output.versions import versions_text
from inductor_plugin.version import __version__


def test_the_version_names_torch_and_the_tools(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"inductor-plugin {__version__}"
    rows = {name.strip(): text.strip() for name, _, text in (o.partition(":") for o in others)}
    assert rows["torch"] == version("torch")
    assert rows["Python"] == sys.version.split()[0]
    assert rows.keys() >= {"Triton", "CUTLASS", "nvcc wheel"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"digest": {"gitCommit": "c0ffee"}}, ["commit:     c0ffee"]),
        ({"digest": {"gitCommit": "c0ffee"}, "annotations": {"x": False}}, ["commit:     c0ffee"]),
        ({"digest": {"gitCommit": "c0ffee"}, "annotations": {"x": True}}, ["commit:     c0ffee, changed"]),
        (None, []),
        ({"digest": {}}, []),
    ],
)  # fmt: skip
def test_the_version_names_the_commit_if_the_wheel_does(
    source: Any, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "inductor_plugin-0.2.0.dist-info"
    (info / "provenance").mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: inductor-plugin\nVersion: 0.2.0\n")
    definition = {} if source is None else {"resolvedDependencies": [source]}
    stated = {"predicate": {"buildDefinition": definition}}
    (info / "provenance" / "inductor-plugin.intoto.json").write_text(json.dumps(stated))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    lines = versions_text().splitlines()
    assert [line for line in lines if line.startswith("commit")] == said


def test_the_version_imports_none_of_them() -> None:
    program = (
        "import sys\nfrom inductor_plugin.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'triton', 'cutlass'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
