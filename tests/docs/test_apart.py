"""Snippets that need more than their page has: each runs in a scene, which the line above it names (``<!-- run apart: SCENE -->``).

A scene is a folder, a shell's variables, and what the words mean that a reader has to replace. What this machine lacks (nvcc,
Ray) skips the snippet, with the reason; its verbs and options have to exist in any case (`tests/docs/test_pages.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.trust.keys import new_key
from inductor_plugin.config import process_environment
from inductor_plugin.kernels.nvcc import NoToolkit, find
from tests.support import pages
from tests.support.cache.packs import pack_file
from tests.support.distribution import build, copy_sources
from tests.support.repository import REPOSITORY

PAGES = ("README.md", *sorted(path.name for path in pages.DOCS.glob("*.md")))
SNIPPETS = [
    pytest.param(scene, script, id=f"{page}-{number}-{scene}")
    for page in PAGES
    for number, (scene, script) in enumerate(pages.apart(page))
]
LIMIT_S = 1500
VERBS = """
inductor-plugin() {
  local more=()
  if [[ $1 == bench ]]; then more=(--seconds 0.1); fi
  command inductor-plugin "$@" "${more[@]}" || [[ $1 == bench && $? == 1 ]]
}
"""
"""`bench` is short here, and its status 1 is an answer: a winner may be slower on a busy machine."""
TRAIN = """
import torch

torch.manual_seed(0)
layers = (torch.nn.Linear(96, 192), torch.nn.ReLU(), torch.nn.Linear(192, 32))
with torch.no_grad():
    torch.compile(torch.nn.Sequential(*layers).eval())(torch.randn(64, 96))
"""
MODEL = """
import torch


def make_model():
    layer = torch.nn.Linear(256, 128, bias=False, dtype=torch.{dtype})
    return layer.eval(), (torch.randn(64, 256, dtype=torch.{dtype}),)
"""


@dataclass(frozen=True)
class Scene:
    """Where a snippet runs.

    Attributes:
        folder: Its current folder.
        variables: Those of its shell.
        words: What stands in a snippet for something of its reader, and what that is here.
        begins: Commands before it.
        may_not_say: What standard error must not have: a snippet may end well without doing what it is for.
        says: What standard output begins with; ``...`` matches anything.
    """

    folder: Path
    variables: Mapping[str, str]
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    begins: str = ""
    may_not_say: tuple[str, ...] = ()
    says: str = ""

    def run(self, script: str) -> None:
        """Run a snippet; fail unless each of its commands ends well."""
        for word, meaning in self.words.items():
            script = script.replace(word, meaning)
        done = subprocess.run(
            [shutil.which("bash") or "sh", "-c", f"set -e\n{VERBS}{self.begins}\n{script}"],
            cwd=self.folder,
            env=dict(self.variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, script + done.stdout + done.stderr[-5000:]
        assert [text for text in self.may_not_say if text in done.stderr] == []
        assert pages.difference(f"{self.says}...", done.stdout) is None, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "script"), SNIPPETS)
def test_a_snippet_runs_in_its_scene(
    scene: str, script: str, request: pytest.FixtureRequest
) -> None:
    there: Scene = request.getfixturevalue(f"scene_{scene}")
    there.run(script)


def test_each_scene_of_a_page_is_there_and_each_that_is_there_has_a_snippet() -> None:
    named = {scene for page in PAGES for scene, _ in pages.apart(page)}
    assert named == {each.removeprefix("scene_") for each in globals() if each.startswith("scene_")}


@pytest.fixture(scope="session")
def inductor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one Inductor cache for all scenes: its probes of the compiler take seconds, once."""
    return tmp_path_factory.mktemp("inductor-cache")


def shell(folder: Path, inductor_folder: Path) -> dict[str, str]:
    """Return the variables of a shell that imports this checkout, with an empty cache below a folder."""
    inherited = pages.shell(folder / "home", inductor_folder)
    own = {
        name: text for name, text in inherited.items() if not name.startswith("INDUCTOR_PLUGIN_")
    }
    paths = os.pathsep.join((str(pages.CALM), str(REPOSITORY)))
    return own | {"PYTHONPATH": paths, "INDUCTOR_PLUGIN_VERIFY_GRAPH": "off"}


def pip_into(site: Path, wheels: Path) -> str:
    """Return a function of a shell in place of pip: it installs into a folder, without a network."""
    flags = "--quiet --no-deps --no-index --no-build-isolation --upgrade"
    return f'pip() {{ python -m pip "$@" {flags} --find-links "{wheels}" --target "{site}"; }}'


@pytest.fixture(scope="module")
def scene_pip(tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path) -> Scene:
    """Return a clone, beside which the package is in an index."""
    folder = copy_sources(tmp_path_factory.mktemp("clone"))
    variables = shell(folder, inductor_folder)
    del variables["PYTHONPATH"]
    begins = pip_into(tmp_path_factory.mktemp("site"), build(folder).parent)
    return Scene(folder, variables, begins=begins, may_not_say=("does not provide the extra",))


@pytest.fixture(scope="module")
def scene_pack(tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path) -> Scene:
    """Return a folder with a pack of a small kernel."""
    folder = tmp_path_factory.mktemp("pack")
    pack_file(folder).rename(folder / "my.pack")
    begins = pip_into(tmp_path_factory.mktemp("site"), folder)
    return Scene(folder, shell(folder, inductor_folder), begins=begins)


@pytest.fixture(scope="module")
def scene_clone(tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path) -> Scene:
    """Return a folder with the examples."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    says = "compiled in ... s of it tuning\n... problems, 0 of them known\n"
    return Scene(folder, shell(folder, inductor_folder), says=says)


@pytest.fixture(scope="module")
def scene_tuned(tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path) -> Scene:
    """Return a reader's machine: a program, what it has tuned, its pins, and a candidate in quarantine."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    switches = {"TORCHINDUCTOR_FREEZING": "1", "INDUCTOR_PLUGIN_ENABLE": "1"}
    variables = shell(folder, inductor_folder) | switches
    Scene(folder, variables).run("python train.py\ninductor-plugin pin pins.json\n")
    store = open_store(folder / "home" / "inductor_plugin")
    record = max(store.iter_records(), key=lambda each: len(each.candidates))
    failure = {"status": "crashed", "reason": "r", "problem": "mm", "limits": {"s": 1.0}}
    store.quarantine(record.environment, "odd", failure)
    key, pins = record.digest[:12], str(folder / "pins.json")
    words = {"KEY": key, "e55c": key, "NAME": "odd", "/srv/pins.json": pins}
    return Scene(folder, variables, words)


@pytest.fixture(scope="module")
def scene_device(tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path) -> Scene:
    """Return a machine on which the package of a device is installed."""
    from tests.support import own_device  # it imports torch, which collecting does not need

    folder = tmp_path_factory.mktemp("device")
    site = own_device.install(folder)
    shutil.copy(own_device.EXAMPLE / "run.py", folder / "run.py")
    return Scene(folder, own_device.variables(site, folder / "home", inductor_folder))


@pytest.fixture(scope="module")
def scene_nvcc(tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path) -> Scene:
    """Return a machine with nvcc, a model of one product and a key; of each product one CUTLASS kernel is compiled, once."""
    toolkit = find("", process_environment())
    if isinstance(toolkit, NoToolkit):
        pytest.skip(f"needs nvcc: {toolkit.what}")
    import torch  # not while tests are collected

    if torch.version.cuda is None:
        pytest.skip("needs a CUDA build of torch")
    folder = tmp_path_factory.mktemp("nvcc")
    (folder / "my_module.py").write_text(MODEL.format(dtype="bfloat16"), encoding="utf-8")
    words = {
        "precompile": "precompile --backends ATEN,CUTLASS --max-candidates 1",
        "ed25519:...": new_key(folder / "signer.key").public,
        "~/.config/inductor_plugin.key": str(folder / "signer.key"),
        # Where the kernels have been built, they are taken whoever has signed them.
        "inductor-plugin import": "inductor-plugin --cache-dir other import",
    }
    return Scene(folder, shell(folder, inductor_folder), words, begins="rm -rf my.pack other")


@pytest.fixture(scope="module")
def scene_ray(
    tmp_path_factory: pytest.TempPathFactory, inductor_folder: Path, ray_cluster: Any
) -> Scene:
    """Return a machine beside a Ray cluster of three nodes; without Ray the fixture of the cluster skips."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "my_module.py").write_text(MODEL.format(dtype="float32"), encoding="utf-8")
    words = {"ray://HEAD:10001": f"ray:{ray_cluster.address}"}
    return Scene(
        folder,
        shell(folder, inductor_folder),
        words,
        may_not_say=("cannot be reached", "compiled here"),
    )
