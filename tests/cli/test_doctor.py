from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from inductor_plugin.cache import document, open_store
from inductor_plugin.cache.transfer.archive import export_archive, import_archive
from inductor_plugin.cli import doctor
from inductor_plugin.cli.finding import Finding, render
from inductor_plugin.errors import CacheRefusedError
from tests.support.cache.records import give_away, kernel_key
from tests.support.cli.schemas import follow
from tests.support.trust.payload import FRIEND, TRUST


@pytest.fixture(autouse=True)
def _room_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """What is found here does not depend on the space that the machine has left (CI once had under 1 GiB)."""
    usage = shutil.disk_usage

    def roomy(path: Path) -> SimpleNamespace:
        total = usage(path).total  # 0 in /proc
        return SimpleNamespace(total=total, free=2**40 if total else 0)

    monkeypatch.setattr("shutil.disk_usage", roomy)


@pytest.mark.parametrize(
    ("quotas", "said", "remedy"),
    [
        ({}, "", ""),
        ({Path("pod"): 16.0}, "", ""),
        (
            {Path("pod"): 16.0, Path("container"): 2.5},
            "the time of 2.5 for 16 threads",
            "set OMP_NUM_THREADS=2",
        ),
        ({Path("pod"): 0.5}, "the time of 0.5 for 16 threads", "set OMP_NUM_THREADS=1"),
    ],
)
def test_a_quota_below_the_number_of_threads_is_named(
    monkeypatch: pytest.MonkeyPatch, quotas: dict[Path, float], said: str, remedy: str
) -> None:
    monkeypatch.setattr(doctor, "quotas", lambda: quotas)
    monkeypatch.setattr(doctor.torch, "get_num_threads", lambda: 16)
    finding = doctor.cpu()
    assert ("by quota" in finding.detail) is bool(said)
    assert said in finding.detail
    assert finding.remedy == remedy or finding.state == "off"  # a CPU without AVX2 says that


def test_every_finding_that_is_not_ok_says_what_to_do(cache_dir: Path):
    findings = doctor.examine(cache_dir)
    assert {finding.state for finding in findings} <= {"ok", "off", "broken"}
    assert [
        finding.name for finding in findings if finding.state != "ok" and not finding.remedy
    ] == []
    said = json.loads(json.dumps([finding.to_dict() for finding in findings]))
    assert said[0]["name"] == "python"
    follow("doctor", said)
    assert all(finding.name in render(findings) for finding in findings)
    assert not cache_dir.exists()


@pytest.mark.parametrize(
    ("version", "state", "detail"),
    [
        ((3, 11, 7), "ok", "one by one"),
        ((3, 11, 9), "ok", r"3\.11\.9$"),
        ((3, 14, 0), "broken", "not supported"),
        ((3, 9, 0), "broken", "not supported"),
    ],
)
def test_python_is_judged_by_its_version(version: tuple[int, int, int], state: str, detail: str):
    finding = doctor.python(version)
    assert finding.state == state
    assert re.search(detail, finding.detail)


def test_what_a_pack_says_is_one_line_that_a_terminal_only_shows():
    forged = Finding("packs", "off", "it is signed by x\x1b[2J\nok      trust  all signed", "a\nb")
    assert render([forged]).splitlines() == [
        "off     packs  it is signed by x\\x1b[2J\\nok      trust  all signed",
        "               -> a\\nb",
    ]


def test_a_wrong_variable_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_POLICE", "tune")
    finding = doctor.options()
    assert finding.state == "broken"
    assert "INDUCTOR_PLUGIN_POLICY" in finding.detail


def test_options_that_differ_from_their_defaults_are_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_MAX_CANDIDATES", "3")
    assert doctor.options().detail == "max_candidates=3"


def test_a_switch_that_cannot_act_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", "1")
    assert "is on" in doctor.switch().detail
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert doctor.switch().remedy == "unset TORCH_DEVICE_BACKEND_AUTOLOAD"


def test_a_checkout_that_is_not_installed_is_not_broken(monkeypatch: pytest.MonkeyPatch):
    def none(**_: str) -> tuple[()]:
        return ()

    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", none)
    finding = doctor.switch()
    assert finding.state == "off"
    assert "`import inductor_plugin.backend`" in finding.detail
    assert "pip install -e ." in finding.remedy


def test_the_compiler_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "bad-c++"
    fake.write_text("#!/bin/sh\necho 'fatal error: Python.h: not found' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    finding = doctor.compiler()
    assert finding.state == "broken"
    assert "Python's headers" in finding.remedy


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("p.cpp:2:10: fatal error: omp.h: No such file or directory", "install OpenMP"),
        ("/usr/bin/ld: cannot find -lgomp\ncollect2: error: ld returned 1", "install OpenMP"),
        ("clang: error: unsupported option '-fopenmp'", "install OpenMP"),
        ("g++: internal compiler error: Killed (program cc1plus)", "repair or reinstall"),
        ("p.cpp:1:10: fatal error: Python.h: No such file", "install Python's headers"),
    ],
)
def test_the_remedy_is_for_what_the_compiler_wrote(failure: str, remedy: str):
    assert doctor.compiler_remedy(failure).startswith(remedy)


def test_a_machine_without_compiler_is_told_to_install_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    finding = doctor.compiler()
    assert (finding.state, finding.remedy) == ("broken", "install g++, or set CXX to a compiler")


def test_a_cache_that_others_can_write_is_broken(tmp_path: Path):
    tmp_path.chmod(0o777)
    finding = doctor.cache(tmp_path)
    assert finding.state == "broken"
    assert "mode 0777" in finding.detail
    tmp_path.chmod(0o700)
    assert doctor.cache(tmp_path).state == "ok"


@pytest.mark.parametrize("folder", ["", "kernels"])
@pytest.mark.parametrize("how", ["group", "everyone", "owner"])
def test_a_cache_that_is_refused_when_it_is_opened_is_broken(
    folder: str, how: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    open_store(cache_dir).layout.kernels.mkdir(mode=0o700)
    assert doctor.cache(cache_dir).state == "ok"
    if how == "owner":
        give_away(cache_dir / folder, monkeypatch)
    else:
        (cache_dir / folder).chmod(0o770 if how == "group" else 0o707)
    with pytest.raises(CacheRefusedError) as refused:
        open_store(cache_dir)
    finding = doctor.cache(cache_dir)
    assert finding.state == "broken"
    assert str(refused.value).endswith(f"{finding.detail}; {finding.remedy}")


def test_a_cache_that_is_no_folder_is_broken(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        finding = doctor.cache(path)
        assert f"{file} is not a folder" in finding.detail
        assert finding.remedy == "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_a_file_system_that_keeps_no_files_is_not_short_of_space():
    finding = doctor.cache(Path("/proc/inductor-plugin"))
    assert (finding.state, finding.remedy) == (
        "broken",
        "set INDUCTOR_PLUGIN_CACHE_DIR to a folder you can write",
    )


def test_a_disk_that_is_almost_full_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = SimpleNamespace(total=2**40, used=2**40, free=2**20)

    def disk_usage(_path: Path) -> SimpleNamespace:
        return full

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    assert doctor.cache(tmp_path).remedy == "free some space, or move the cache"


def test_a_second_cache_is_checked(cache_dir: Path, tmp_path: Path):
    assert doctor.second_cache("").state == "ok"
    open_store(cache_dir)
    finding = doctor.second_cache(cache_dir)
    assert (finding.state, finding.detail) == (
        "ok",
        f"{cache_dir}, read only: 0 records, 0 kernels",
    )
    missing = doctor.second_cache(tmp_path / "none")
    assert (missing.state, missing.remedy) == ("broken", "correct or unset cache_read")
    cache_dir.chmod(0o777)
    refused = doctor.second_cache(cache_dir)
    assert refused.state == "broken"
    assert refused.remedy.endswith(f"chmod go-w {cache_dir}")


def test_of_a_second_cache_it_is_said_who_vouches_for_its_kernels(
    cache_dir: Path, tmp_path: Path
) -> None:
    """It said "ok" where every kernel of the second cache was refused at its load."""
    theirs = open_store(tmp_path / "theirs")
    theirs.put_kernel(kernel_key("theirs"), {"kernel.so": b"theirs"})
    export_archive(theirs, tmp_path / "x", signer=FRIEND)
    store = open_store(cache_dir, trust=TRUST)
    import_archive(store, tmp_path / "x")
    store.put_kernel(kernel_key("own"), {"kernel.so": b"own"})
    finding = doctor.second_cache(cache_dir, f"{FRIEND.public} a friend")
    assert (finding.state, finding.detail) == (
        "ok",
        f"{cache_dir}, read only: 0 records, 2 kernels: 1 built there, 1 signed by a friend",
    )
    refused = doctor.second_cache(cache_dir, "")
    assert refused.state == "broken"
    assert "1 built there, 1 refused" in refused.detail
    assert "add the signer to INDUCTOR_PLUGIN_TRUSTED_KEYS" in refused.remedy


def test_a_remote_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert doctor.remote("").state == "ok"
    assert doctor.remote(f"file://{tmp_path}").detail == f"file://{tmp_path} answers"
    (tmp_path / "doctor").mkdir()
    assert doctor.remote(f"file://{tmp_path}").state == "broken"
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert 'pip install "inductor-plugin[s3]"' in doctor.remote("s3://bucket").detail


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_broken(tmp_path: Path):
    tmp_path.chmod(0o500)
    finding = doctor.cache(tmp_path / "below")
    assert finding.state == "broken"
    assert "cannot be written" in finding.detail


def test_a_cache_of_another_format_is_not_used(cache_dir: Path):
    open_store(cache_dir).layout.schema.write_bytes(document.dump({"format": 2}))
    finding = doctor.cache(cache_dir)
    assert finding.state == "broken"
    assert f"{cache_dir} is not used: the cache has format 2" in finding.detail
    assert finding.remedy == "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own"
