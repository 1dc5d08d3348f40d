from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_plugin.cache import owner


def test_a_name_tells_a_running_process_from_one_that_has_ended():
    name = f"{owner.prefix()}ab"
    assert owner.has_ended(name) is False
    place, pid, started = name.split("-")[:3]
    assert int(pid) == os.getpid()
    assert owner.has_ended(f"{place}-{pid}-{int(started) + 1}-ab") is True  # its number was reused
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        of_child = f"{place}-{child.pid}-{owner.start_ticks(child.pid)}-ab"
        assert owner.has_ended(of_child) is False
    finally:
        child.kill()
        child.communicate()
    assert owner.has_ended(of_child) is True


def test_of_a_process_elsewhere_nothing_is_known():
    place, pid, started = owner.prefix().split("-")[:3]
    assert owner.has_ended(f"{'0' * 12}-{pid}-{started}-ab") is None
    assert place != "0" * 12
    for name in ("", "x", "1-2", "-1-2-3", f"{place}-0-1-ab"):
        assert owner.has_ended(name) is None


def test_names_of_earlier_versions_protect_what_runs_and_say_nothing_else():
    assert owner.has_ended(f"{os.getpid()}-{'0' * 16}") is False
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert owner.has_ended(f"{child.pid}-{'0' * 16}") is None


def test_without_proc_names_are_those_of_earlier_versions(monkeypatch: pytest.MonkeyPatch):
    def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(owner, "boot_and_namespace", nothing)
    assert owner.prefix_of(-1) == "-1-"


def test_a_process_that_cannot_be_looked_at_gives_its_number_alone(monkeypatch: pytest.MonkeyPatch):
    ended = 2**22 + 1  # above all numbers of processes
    assert owner.prefix_of(ended) == f"{ended}-"

    def nowhere() -> None:
        return None

    monkeypatch.setattr(owner, "boot_and_namespace", nowhere)
    assert owner.prefix_of(os.getpid()) == f"{os.getpid()}-"
    owner.prefix_of.cache_clear()


def test_a_file_belongs_to_the_user_that_a_process_acts_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A program with the rights of another user (setuid) creates files of that user."""
    status = tmp_path.stat()
    monkeypatch.setattr("os.getuid", lambda: status.st_uid + 1)
    assert owner.belongs_to_user(status)
    monkeypatch.setattr("os.geteuid", lambda: status.st_uid + 1)
    assert not owner.belongs_to_user(status)
