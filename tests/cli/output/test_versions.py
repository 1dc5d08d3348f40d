from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from inductor_plugin.cli import main
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


def test_the_version_imports_none_of_them() -> None:
    program = (
        "import sys\nfrom inductor_plugin.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'triton', 'cutlass'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
