"""The page "Bring your own kernel", followed word by word in a fresh clone that is installed into an environment of its own."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from inductor_plugin.registry import GROUP
from tests.support import pages
from tests.support.repository import REPOSITORY

PAGE = "own-kernel.md"
FLAGS = ("--no-deps", "--no-build-isolation", "--ignore-installed")
"""torch and setuptools are those of this environment: nothing is downloaded."""


def run(*command: str, folder: Path, variables: dict[str, str] | None = None) -> str:
    """Run a command in a folder, and return what it writes to standard output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables or {k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def environment_with_torch(folder: Path) -> Path:
    """Make an environment that has this one's packages but for the plugin's sources, and return its Python.

    A .pth file adds a folder of packages without the .pth files in it: an editable installation is not taken over.
    """
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), folder=folder.parent)
    python = folder / "bin" / "python"
    paths = sysconfig.get_paths()
    inside = run(
        str(python),
        "-c",
        "import sysconfig; print(sysconfig.get_paths()['purelib'])",
        folder=folder,
    )
    packages = "\n".join(dict.fromkeys((paths["purelib"], paths["platlib"])))
    (Path(inside.strip()) / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    return python


def test_the_entry_point_of_the_page_is_read_and_names_its_class() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    text = (pages.DOCS / PAGE).read_text(encoding="utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    points = tomllib.loads(block)["project"]["entry-points"][GROUP]
    (program,) = re.findall(
        r'^```python title="my_kernels.py"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL
    )
    classes = {node.name for node in ast.parse(program).body if isinstance(node, ast.ClassDef)}
    assert points
    for value in points.values():
        module, _, name = value.partition(":")
        assert module == "my_kernels"
        assert name in classes


@pytest.mark.slow
def test_bring_your_own_kernel_works_word_by_word_in_a_fresh_clone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All is as for a reader, but for CALM: samples that other tests have disturbed count, and are not taken again.

    Without it `bench`, the page's last step but one, would end with status 2 where almost all turns are disturbed, as they are
    beside other tests on two cores; no page can foresee that. What the page shows before does not rest on it.
    """
    clone, folder = tmp_path / "clone", tmp_path / "empty"
    run("git", "clone", "--quiet", str(REPOSITORY), str(clone), folder=tmp_path)
    folder.mkdir()
    python = environment_with_torch(tmp_path / "environment")

    # What the page installs, and then the rest of it, by the Python into which it was installed.
    pip, *words = pages.first_installation(clone / "docs" / PAGE)
    assert [pip, *words] == pages.first_installation(clone / "docs" / "index.md")
    run(str(python), "-m", "pip", "--quiet", *words, *FLAGS, folder=clone)

    # The tests' own modules without the package beside them.
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "tests").symlink_to(clone / "tests")
    variables = pages.shell(folder / "home", tmp_path_factory.mktemp("inductor-cache"))
    variables["PYTHONPATH"] = os.pathsep.join((str(pages.CALM), str(beside)))
    run(str(python), "-m", "tests.support.pages", PAGE, folder=folder, variables=variables)

    assert {path.name for path in folder.glob("*.py")} == {"my_kernels.py", "run.py"}
    where = "import inductor_plugin; print(inductor_plugin.__file__)"
    imported = run(str(python), "-c", where, folder=folder, variables=variables)
    assert Path(imported.strip()).is_relative_to(tmp_path / "environment")
