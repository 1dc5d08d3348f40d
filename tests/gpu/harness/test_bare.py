"""A bare checkout runs a session: nothing of it is installed, and there is no network."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.gpu.session.run import FILE
from tests.support.repository import REPOSITORY


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what git has of the checkout, with no trace of an installation."""
    repository = REPOSITORY
    copy = tmp_path_factory.mktemp("bare") / "checkout"
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=repository, capture_output=True, text=True, check=False)
    names = [name for name in done.stdout.split("\0") if name]
    if not names:
        pytest.skip("needs git and its history")
    for name in names:
        if (repository / name).exists() and not name.startswith(("benchmarks/results/", "docs/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, copy / name, follow_symlinks=False)
    return copy


def offline() -> list[str]:
    """Return what a command begins with to run without a network; empty where that is not allowed."""
    command = ["unshare", "-rn"]
    done = (
        subprocess.run([*command, "true"], capture_output=True, check=False)
        if shutil.which("unshare")
        else None
    )
    return command if done is not None and done.returncode == 0 else []


def plain_environment(**more: str) -> dict[str, str]:
    hidden = ("PYTHON", "INDUCTOR_PLUGIN", "VIRTUAL_ENV", "TORCH")
    return {name: text for name, text in os.environ.items() if not name.startswith(hidden)} | more


@pytest.mark.claim
def test_a_bare_checkout_simulates_a_session(bare: Path) -> None:
    command = [*offline(), sys.executable, "-S", "-m", "tests.gpu.session", "--simulate"]
    done = subprocess.run(
        command, cwd=bare, env=plain_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert f"simulated in {bare}" in done.stdout


def test_a_bare_checkout_knows_its_backend(bare: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in site.getsitepackages():
        for entry in Path(folder).iterdir():
            ours = "inductor_plugin" in entry.name or entry.suffix == ".pth"
            if not ours and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    code = (
        "import importlib.metadata as m, pathlib, sys, torch._dynamo as dynamo;"
        "assert not [e for e in m.entry_points(group='torch_dynamo_backends') if 'plugin' in e.name];"
        "import inductor_plugin.backend as b; from tests.gpu.session import environment as e;"
        "print(e.backend(), pathlib.Path(b.__file__).parents[1])"
    )
    done = subprocess.run(
        [*offline(), sys.executable, "-S", "-c", code],
        cwd=bare,
        env=plain_environment(PYTHONPATH=f"{bare}{os.pathsep}{packages}"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1:] == [f"known to torch.compile {bare}"], done.stderr


def needed_by(*names: str) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions of these names and all that they need, without their extras."""
    result: dict[str, importlib.metadata.Distribution] = {}
    left = list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in result:
            continue
        try:
            result[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        wanted = [line for line in result[name].requires or () if "extra ==" not in line]
        left += [re.split(r"[^\w.-]", line)[0] for line in wanted]
    return list(result.values())


def python_with(folder: Path, *names: str) -> Path:
    """Return an interpreter that has these distributions, what they need, and nothing else."""
    venv.create(folder, symlinks=True, with_pip=False)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / "lib" / version / "site-packages"
    for distribution in needed_by(*names):
        parts = {file.parts[0] for file in distribution.files or ()}
        for part in parts - {"..", "__pycache__"}:
            if not (packages / part).exists():
                (packages / part).symlink_to(Path(str(distribution.locate_file(part))))
    return folder / "bin" / "python"


@pytest.mark.slow
def test_with_torch_and_pytest_alone_the_part_for_a_cpu_passes(bare: Path, tmp_path: Path) -> None:
    python = python_with(tmp_path / "python", "torch", "pytest", "filelock")
    lacking = [str(python), "-c", "import rich"]
    assert subprocess.run(lacking, capture_output=True, check=False).returncode == 1
    results = tmp_path / "results"
    command = [*offline(), str(python), "-m", "tests.gpu.session"]
    done = subprocess.run(
        [*command, "--part", "cpu", "--results", str(results)],
        cwd=bare,
        env=plain_environment(CUDA_VISIBLE_DEVICES="", HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["step"]: row for row in json.loads((results / FILE).read_text())["steps"]}
    assert [row["status"] for row in rows.values()] == 5 * ["passed"]
    assert re.match(r"(\d+)/\d+ tests collected", rows["the GPU tests"]["detail"])
    facts = json.loads((results / "environment-cpu.json").read_text())
    assert facts["backend"] == "known to torch.compile"
    assert facts["packages"]["rich"] is None
    figures = json.loads((results / "probe-dry.json").read_text())
    assert figures["mm forced twin"]["taken"][0].startswith("dry_twin")
