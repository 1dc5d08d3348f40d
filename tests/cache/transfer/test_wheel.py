from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.transfer import wheel
from inductor_plugin.cache.transfer.archive import export_archive
from inductor_plugin.cache.transfer.wheel import PACK_FILE, write_wheel
from inductor_plugin.cli import main
from inductor_plugin.errors import ArchiveError, PackError
from tests.support.cache.packs import pack_file
from tests.support.cache.records import kernel_key
from tests.support.cli.schemas import follow
from tests.support.distribution import check_bill, check_provenance, provenance_of


def test_the_wheel_is_one_that_pip_installs(tmp_path: Path) -> None:
    file = pack_file(tmp_path)
    wheel_file = write_wheel(file, tmp_path, version="1.2")
    machine = platform.machine()
    stem = r"inductor_plugin_pack_rtx_4090_[0-9a-f]{8}"
    assert re.fullmatch(rf"{stem}-1\.2-py3-none-linux_{machine}\.whl", wheel_file.file.name)
    assert re.fullmatch(r"inductor-plugin-pack-rtx_4090-[0-9a-f]{8}", wheel_file.name)
    assert wheel_file.kernels == 1
    site = tmp_path / "site"
    # Without an index, and without the plugin that it depends on.
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*command, "--target", str(site), str(wheel_file.file)], check=True, timeout=120)
    (package,) = site.glob("*_kernels")
    assert (package / PACK_FILE).read_bytes() == file.read_bytes()
    (points,) = site.glob("*.dist-info/entry_points.txt")
    assert points.read_text() == f"[inductor_plugin.packs]\n{package.name[:-8]} = {package.name}\n"


def test_the_verb_says_what_it_has_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pack_file(tmp_path)
    assert main(["wheel", str(file), "--name", "tuned", "--out", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    follow("wheel", said)
    assert said["name"] == "tuned"
    assert Path(said["file"]).is_file()


def test_equal_packs_give_equal_wheels(tmp_path: Path) -> None:
    file = pack_file(tmp_path)
    first = write_wheel(file, tmp_path).file.read_bytes()
    assert write_wheel(file, tmp_path).file.read_bytes() == first


def test_a_wheel_says_what_is_in_it_and_what_compiled_it(tmp_path: Path) -> None:
    file = pack_file(tmp_path, **{"nvidia-cutlass": "4.2.0"})
    wheel_file = write_wheel(file, tmp_path)
    with zipfile.ZipFile(wheel_file.file) as zipped:
        (name,) = (n for n in zipped.namelist() if n.endswith(".dist-info/sboms/kernels.cdx.json"))
        text = zipped.read(name).decode()
    check_bill(text)
    content = json.loads(text)
    component = content["metadata"]["component"]
    assert component["hashes"][0]["content"] == hashlib.sha256(file.read_bytes()).hexdigest()
    tools = {tool["name"]: tool["version"] for tool in content["metadata"]["tools"]["components"]}
    assert tools == {"nvcc": "nvcc 13.0.88"}
    assert [part["purl"] for part in content["components"]] == ["pkg:pypi/nvidia-cutlass@4.2.0"]


def test_a_wheel_says_where_its_kernels_come_from_and_invents_nothing(tmp_path: Path) -> None:
    versions = {"torch": "2.14.1", "triton": "none", "inductor-plugin": "0.2.0"}
    wheel_file = write_wheel(pack_file(tmp_path, **versions), tmp_path, name="ours")
    predicate = check_provenance(wheel_file.file)
    name, _, files = provenance_of(wheel_file.file)
    assert name == "ours-1.dist-info/provenance/kernels.intoto.json"
    assert "ours_kernels/kernels.pack" in files
    definition, details = predicate["buildDefinition"], predicate["runDetails"]
    assert definition["externalParameters"] == {
        "name": "ours", "version": "1", "target": "RTX 4090", "arch": "sm_89", "models": ["m:f"],
    }  # fmt: skip
    assert "resolvedDependencies" not in definition  # the commit of the plugin is not known
    assert details == {
        "builder": {
            "id": "pkg:pypi/inductor-plugin",
            "version": {
                "inductor-plugin": "0.2.0",
                "machine": platform.machine(),
                "nvcc": "nvcc 13.0.88",
                "torch": "2.14.1",
            },
        },
        "metadata": {"startedOn": "1970-01-01T00:16:40Z"},
    }


def test_a_wheel_is_for_the_machine_its_pack_was_made_on(tmp_path: Path) -> None:
    wheel_file = write_wheel(pack_file(tmp_path, machine="aarch64"), tmp_path)
    assert wheel_file.file.name.endswith("-1-py3-none-linux_aarch64.whl")
    with zipfile.ZipFile(wheel_file.file) as zipped:
        facts = zipped.read(next(n for n in zipped.namelist() if n.endswith("/WHEEL"))).decode()
    assert "Tag: py3-none-linux_aarch64\n" in facts
    # Packs from before it was noted.
    assert Pack("H200", "sm_90a", 1.0, {}, (), (), ()).machine == "x86_64"


def test_two_packs_for_a_gpu_have_two_names(tmp_path: Path) -> None:
    files = [write_wheel(pack_file(tmp_path, source=name), tmp_path).file for name in ("a", "b")]
    assert len({file.name.split("-")[0] for file in files}) == 2
    assert all(file.is_file() for file in files)


def test_a_wheel_of_another_pack_is_not_overwritten(tmp_path: Path) -> None:
    first = write_wheel(pack_file(tmp_path, source="a"), tmp_path, name="ours")
    before = first.file.read_bytes()
    with pytest.raises(PackError, match="holds another pack; use another --version"):
        write_wheel(pack_file(tmp_path, source="b"), tmp_path, name="ours")
    assert first.file.read_bytes() == before
    second = write_wheel(pack_file(tmp_path, source="b"), tmp_path, name="ours", version="2")
    assert second.file != first.file
    first.file.write_bytes(b"no wheel")
    with pytest.raises(PackError, match="holds another pack"):
        write_wheel(pack_file(tmp_path, source="a"), tmp_path, name="ours")


def test_the_pack_is_stored_and_listed(tmp_path: Path) -> None:
    wheel_file = write_wheel(pack_file(tmp_path), tmp_path, name="Our.Kernels")
    with zipfile.ZipFile(wheel_file.file) as zipped:
        names = zipped.namelist()
        record = zipped.read(next(n for n in names if n.endswith("RECORD"))).decode()
    assert all(f"{name}," in record for name in names)
    assert f"our_kernels_kernels/{PACK_FILE}" in names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "../x"}, "use letters"),
        ({"version": "one"}, "write it as 1"),
    ],
)
def test_what_no_wheel_can_be_called_is_refused(
    tmp_path: Path, arguments: dict[str, str], said: str
) -> None:
    with pytest.raises(PackError, match=said):
        write_wheel(pack_file(tmp_path), tmp_path, **arguments)


@pytest.mark.parametrize(
    ("target", "software"),
    [
        ("H200\nRequires-Dist: evil-package\nClassifier: x", {}),
        ("\x1b[2J", {}),
        ("", {}),
        ("H200", {"machine": "x86_64\nTag: py3-none-any"}),
    ],
)
def test_a_pack_cannot_write_headers_of_its_wheel(
    tmp_path: Path, target: str, software: dict[str, str]
) -> None:
    with pytest.raises(ArchiveError, match="which is no name of one"):
        write_wheel(pack_file(tmp_path, target, **software), tmp_path)
    assert not list(tmp_path.glob("*.whl"))


def test_a_header_of_a_wheel_is_one_line() -> None:
    with pytest.raises(PackError, match="Summary of the wheel"):
        wheel._headers({"Summary": "x\nRequires-Dist: y"})  # pyright: ignore[reportPrivateUsage]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="there is no folder"):
        write_wheel(pack_file(tmp_path), tmp_path / "nowhere")


def test_a_damaged_pack_is_refused(tmp_path: Path) -> None:
    file = pack_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"damaged|checksum"):
        write_wheel(file, tmp_path)


def test_an_export_without_a_pack_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cache")
    store.put_kernel(kernel_key(), {"kernel.so": b"library"})
    export_archive(store, tmp_path / "x")
    with pytest.raises(PackError, match="holds 0 packs"):
        write_wheel(tmp_path / "x", tmp_path)


@pytest.mark.parametrize("name", ["4090-kernels", "4090"])
def test_a_name_that_is_no_python_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PackError, match="begin it with a letter"):
        write_wheel(pack_file(tmp_path), tmp_path, name=name)
    assert list(tmp_path.glob("*.whl")) == []
