"""The device of examples/custom_device, installed as pip installs a package: no file of the plugin is touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from tests.support import pages
from tests.support.repository import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "custom_device"
_POINT = re.compile(r'^npu = "([\w.:]+)"$', re.MULTILINE)


def install(folder: Path, reference: str = "") -> Path:
    """Install the package in a folder of its own, and return the folder, which has to be on the module search path.

    Args:
        folder: Where the folder is created.
        reference: The value of the entry point; empty for that of pyproject.toml.
    """
    site = folder / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLE / "toy_npu", site / "toy_npu", ignore=ignored)
    match = _POINT.search((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    assert match is not None
    describe(site, reference or match[1])
    return site


def describe(
    site: Path,
    reference: str,
    name: str = "npu",
    package: str = "toy_npu",
    group: str = "inductor_plugin.devices",
) -> None:
    """Write what pip writes of a package with one entry point."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    points = f"[{group}]\n{name} = {reference}\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")


def variables(site: Path, home: Path, inductor_folder: Path) -> dict[str, str]:
    """Return the variables of a shell in which the package is installed, with the plugin's cache in ``home``."""
    shell = pages.shell(home, inductor_folder)
    paths = (str(site), str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    # Compiled once a machine and version of torch: it takes 25 s.
    build = REPOSITORY / "build" / "custom_device" / torch.__version__
    return {
        **shell,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "TOY_NPU_BUILD": os.environ.get("TOY_NPU_BUILD", str(build)),
    }


def run(
    site: Path, home: Path, inductor_folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with the package installed, the plugin's cache in ``home`` and Inductor's elsewhere."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=home.parent,
        env=variables(site, home, inductor_folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
