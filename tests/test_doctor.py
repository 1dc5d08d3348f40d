from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from inductor_plugin import doctor


def test_every_finding_that_is_not_ok_says_what_to_do(cache_dir: Path):
    findings = doctor.examine(cache_dir)
    assert {one.state for one in findings} <= {"ok", "off", "broken"}
    assert [one.name for one in findings if one.state != "ok" and not one.remedy] == []
    assert json.loads(json.dumps([one.to_dict() for one in findings]))[0]["name"] == "python"
    assert all(one.name in doctor.render(findings) for one in findings)
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


def test_the_compiler_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "bad-c++"
    fake.write_text("#!/bin/sh\necho 'fatal error: Python.h: not found' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    finding = doctor.compiler()
    assert finding.state == "broken"
    assert "Python's headers" in finding.remedy


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


def test_a_cache_that_is_no_folder_is_broken(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    assert "is not a folder" in doctor.cache(file).detail


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_broken(tmp_path: Path):
    tmp_path.chmod(0o500)
    finding = doctor.cache(tmp_path / "below")
    assert finding.state == "broken"
    assert "cannot be written" in finding.detail
