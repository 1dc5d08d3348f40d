"""Attacks by files: archives, records and links that somebody else wrote, given to the verbs of the command line.

Each ends as documented: with an answer, or with one line that says what is wrong.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Pack, digest_of, document, open_store
from inductor_plugin.cache.pack import dump_pack
from inductor_plugin.cache.record import to_fields
from inductor_plugin.cli import main
from tests.support.cache import archives
from tests.support.cache.calls import OPERAND
from tests.support.cache.calls import fused as fused_record
from tests.support.cache.records import (
    ENVIRONMENT,
    decision,
    kernel_key,
    measured,
    put_library,
    record,
)
from tests.support.cli.command import filled, key, run
from tests.support.processes import repro
from tests.support.repository import REPOSITORY

KEY = {
    "template": "t",
    "source": "s",
    "config": "c",
    "target": "sm_90a",
    "toolchain": "x",
    "flags": "f",
}


def environment_member(fields: dict[str, Any]) -> dict[str, bytes]:
    digest = digest_of(fields)
    content = document.dump({"format": 1, "digest": digest, "fields": fields})
    return {f"records/{digest}/environment.json": content}


def imported(file: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Import an archive into a cache, and return the exit status and what is said."""
    capsys.readouterr()
    status = main(["import", str(file), "--trust", "--cache-dir", str(cache_dir)])
    captured = capsys.readouterr()
    assert captured.err.count("\n") == (status != 0)
    return status, captured.out + captured.err


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "inductor_plugin", *map(str, words)]


def candidate(fields: dict[str, Any], **values: Any) -> None:
    fields["candidates"]["a"].update(values)


ODD: dict[str, Callable[[dict[str, Any]], None]] = {
    "median": lambda fields: candidate(fields, median_ms="abc"),
    "spread": lambda fields: candidate(fields, spread_ms="abc"),
    "infinite": lambda fields: candidate(fields, median_ms=float("inf")),
    "negative": lambda fields: candidate(fields, median_ms=-1.0),
    "status": lambda fields: candidate(fields, status=5),
    "samples": lambda fields: candidate(fields, samples_ms=None),
    "provenance": lambda fields: candidate(fields, provenance=[]),
    "description": lambda fields: candidate(fields, description=["x"]),
    "kernel": lambda fields: candidate(fields, kernel=7),
    "measured": lambda fields: candidate(fields, measured_at="soon"),
    "winner": lambda fields: fields["decision"].update(winner=["x"]),
    "speedup": lambda fields: fields["decision"].update(speedup="fast"),
    "decided": lambda fields: fields["decision"].update(decided_at="z"),
    "problem": lambda fields: fields.update(problem=[["a", 1]]),
    "updated": lambda fields: fields.update(updated="1.0"),
    "candidates": lambda fields: fields.update(candidates={"a": []}),
}


@pytest.mark.parametrize("name", ODD)
def test_a_record_of_odd_types_is_refused_by_import_and_named_by_verify(
    name: str, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = to_fields(record(measured("a"), decision=decision("a")))
    ODD[name](fields)
    members = archives.record_member(fields)
    file = archives.write(tmp_path / "x", {**environment_member(ENVIRONMENT), **members})
    status, said = imported(file, cache_dir, capsys)
    assert status == 2
    assert "damaged entry" in said
    assert not cache_dir.exists()
    store = filled(cache_dir)
    ((place, content),) = members.items()
    (cache_dir / place).write_bytes(content)
    for verb in (("ls",), ("stats",), ("export", tmp_path / "e"), ("prune", "--max-bytes", "1GiB")):
        run(store, *verb)
    for verb in (("explain", key()), ("show", key()), ("repro", key()), ("diff", key(), key())):
        run(store, *verb, status=2)
    run(store, "verify", status=1)
    assert fields["digest"] in capsys.readouterr().out


def test_a_kernel_of_odd_types_switches_no_other_kernel_off(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_library(open_store(cache_dir))
    for field, value in (("template", ["x"]), ("config", {"a": 1}), ("target", None)):
        members = archives.kernel_members({**KEY, field: value}, b"x")
        file = archives.write(tmp_path / "x", members)
        status, said = imported(file, tmp_path / "other", capsys)
        assert (status, "damaged kernel" in said) == (2, True)
        for place, content in members.items():
            (cache_dir / place).parent.mkdir(parents=True, exist_ok=True)
            (cache_dir / place).write_bytes(content)
    store, mine = open_store(cache_dir), kernel_key()
    (kernel,) = store.kernels_like(mine.template, mine.config, mine.target)
    assert kernel.key == mine
    run(store, "ls", "--kernels")
    run(store, "verify", status=1)


MARK = "open('PWNED', 'w')"


def product(**fields: Any) -> dict[str, Any]:
    base = {"op": "mm", "inputs": [OPERAND] * 2, "output": OPERAND, "arguments": [], "dynamic": []}
    return {"problem": {**base, **fields}}


ALPHA = repr(f"1) if {MARK} else torch.addmm(bias,a,b")
INJECTIONS: dict[str, dict[str, Any]] = {
    "describe": {"describe": f'mm(2x2, 2x2)"""\n{MARK}\n"""'},
    "out_dtype": product(arguments=[["out_dtype", f"torch.float32) if {MARK} else (0"]]),
    "alpha": {
        **product(op="addmm", inputs=[OPERAND] * 3, arguments=[["alpha", ALPHA]]),
        "op": "addmm",
        "describe": "addmm(2x2, 2x2, 2x2)",
    },
    "output": product(output={**OPERAND, "dtype": f"float32\n{MARK}"}),
    "size": product(inputs=[{**OPERAND, "size": [f"2\n{MARK},#"]}, OPERAND]),
    "rejected": {"rejected": {f'a\n"""\n{MARK}\n"""': f'\\"""\n{MARK}\n'}},
}


def injected() -> dict[str, dict[str, Any]]:
    """Return the fields of a record with code in it, by where the code stands."""
    base = to_fields(replace(record(measured("a")), describe="mm(2x2, 2x2)", **product()))
    fused = to_fields(fused_record())
    assert fused["epilogue"]["step 3"].endswith("= float16")
    fused["epilogue"]["step 3"] = f"to_dtype 2 = float32).add(0 if {MARK} else 1"
    return {"epilogue": fused, **{name: {**base, **odd} for name, odd in INJECTIONS.items()}}


@pytest.mark.slow
def test_scripts_of_imported_records_run_no_text_of_them(
    tmp_path: Path, inductor_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts: list[str] = []
    for name, fields in injected().items():
        members = {**environment_member(ENVIRONMENT), **archives.record_member(fields)}
        file = archives.write(tmp_path / "x", members)
        assert imported(file, tmp_path / name, capsys)[0] == 0
        scripts.append(str(tmp_path / f"{name}.py"))
        run(open_store(tmp_path / name), "repro", fields["digest"][:12], "--out", scripts[-1])
    ended = repro.ran(scripts, REPOSITORY, inductor_cache)
    refused = [Path(path).stem for path, (status, _) in ended.items() if status == 3]
    assert refused == ["epilogue", "describe", "out_dtype", "alpha", "output"], ended
    assert ended[str(tmp_path / "rejected.py")][1].endswith("right\n")
    assert not (REPOSITORY / "PWNED").exists()


def test_a_pack_writes_no_header_into_its_wheel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = archives.kernel_members(KEY, b"x")
    digest = next(iter(members)).split("/")[2]
    for target, machine, status in (
        ("H200", "x86_64", 0),
        ("H200\nRequires-Dist: evil-package\nClassifier: x", "x86_64", 2),
        ("H200", "x86_64\nTag: py3-none-any", 2),
        ("日本", "日本", 2),
        ("../../../x", "x86_64", 2),
        ("\x1b[2J", "x86_64", 2),
    ):
        pack = Pack(target, "sm_90a", 1.0, {"machine": machine}, ("m:f",), ("p",), (digest,))
        packs = {f"packs/{pack.name}.json": dump_pack(pack)}
        file = archives.write(tmp_path / "x.pack", {**members, **packs})
        assert main(["wheel", str(file), "--out", str(tmp_path)]) == status, target
        assert "\x1b" not in capsys.readouterr().err
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert b"evil" not in b"".join(opened.read(name) for name in opened.namelist())


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_three_gigabytes_is_not_read(
    kind: bytes, cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = kind, 3 << 30
    file = tmp_path / "bomb.pack"
    content = header.tobuf(tarfile.GNU_FORMAT) + bytes(16 << 20)
    file.write_bytes(gzip.compress(content, 1))
    status, said = imported(file, cache_dir, capsys)
    assert status == 2
    assert "header of 3221225472 bytes" in said or "no plain file" in said


def test_a_library_that_two_thousand_names_repeat_counts_two_thousand_times(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = bytes(40 << 20)
    members: dict[str, bytes] = {}
    manifest: dict[str, str] = {}
    checksum = archives.sha256(library)
    for number in range(2000):
        folder, entry = archives.kernel_entry({**KEY, "source": str(number)}, library[:1])
        members[f"{folder}/entry.json"] = entry
        manifest[f"{folder}/entry.json"] = archives.sha256(entry)
        if not number:
            members[f"{folder}/kernel.so"] = library
        manifest[f"{folder}/kernel.so"] = checksum
    started = time.monotonic()
    file = archives.write(tmp_path / "x", members, manifest)
    status, said = imported(file, cache_dir, capsys)
    assert (status, "holds more than 68719476736 bytes" in said) == (2, True)
    assert time.monotonic() - started < 60.0
    assert not cache_dir.exists()


def test_deep_and_strange_archives_are_refused_in_one_line(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = b"x"
    for name in ("kernels/../ab/cd/kernel.so", "x\x1b[2J", "/etc/passwd", "../../x"):
        status, said = imported(archives.write(tmp_path / "x", {name: entry}), cache_dir, capsys)
        assert status == 2
        assert "\x1b" not in said
    deep = b'  "format": 1, "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"\n}\n"
    body = b'{\n  "sha256": "' + archives.sha256(deep).encode() + b'",\n' + deep
    file = archives.write(tmp_path / "x", {f"records/{'e' * 64}/mm/{'a' * 64}.json": body})
    assert imported(file, cache_dir, capsys)[0] == 2
    run(filled(tmp_path / "sound"), "export", tmp_path / "y")
    with (tmp_path / "y").open("ab") as archive:
        archive.write(b"garbage")
    status, said = imported(tmp_path / "y", cache_dir, capsys)
    assert (status, "damaged" in said) == (2, True)
    assert not cache_dir.exists()


def test_an_export_follows_no_link_with_a_name_that_can_be_guessed(
    cache_dir: Path, tmp_path: Path
) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    victim.write_text("precious")
    (shared / ".x.pack.part").symlink_to(victim)
    run(filled(cache_dir), "export", shared / "x.pack")
    assert victim.read_text() == "precious"
    assert not (shared / "x.pack").is_symlink()


def test_of_two_exports_to_one_file_each_is_whole(tmp_path: Path) -> None:
    for name in ("first", "second"):
        store = filled(tmp_path / name)
        store.put_kernel(kernel_key(name), {"kernel.so": os.urandom(4 << 20)})
    exports = [
        subprocess.Popen(
            command("export", tmp_path / "x", "--force", "--cache-dir", tmp_path / name),
            cwd=REPOSITORY,
        )
        for name in ("first", "second")
    ]
    assert [export.wait(60) for export in exports] == [0, 0]
    store = open_store(tmp_path / "third")
    run(store, "import", "--trust", tmp_path / "x")
    names = {kernel.key.source for kernel in store.iter_kernels()}
    assert names in ({kernel_key().source, "first"}, {kernel_key().source, "second"})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"first", "second", "third", "x"}


def test_what_killed_imports_left_goes_with_the_next_write(cache_dir: Path, tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    source.put_kernel(kernel_key(), {"kernel.so": os.urandom(24 << 20)})
    run(source, "export", tmp_path / "x")
    private = cache_dir / "private"
    words = command("import", "--trust", tmp_path / "x", "--cache-dir", cache_dir)
    with subprocess.Popen(words, cwd=REPOSITORY) as process:
        while not any(private.glob("*/*")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert any(private.iterdir())
    small = filled(tmp_path / "small")
    run(small, "export", tmp_path / "y")
    run(open_store(cache_dir), "import", "--trust", tmp_path / "y")
    assert list(private.iterdir()) == []


def test_a_disk_that_is_full_is_not_called_a_damaged_archive(
    cache_dir: Path, tmp_path: Path
) -> None:
    source = open_store(tmp_path / "source")
    source.put_kernel(kernel_key(), {"kernel.so": os.urandom(1 << 20)})
    run(source, "export", tmp_path / "x")
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "from inductor_plugin.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [
        sys.executable,
        "-c",
        limited,
        "import",
        "--trust",
        tmp_path / "x",
        "--cache-dir",
        cache_dir,
    ]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "damaged" not in done.stderr
    assert done.stderr.count("\n") == 1


EXHAUSTED = """
import os, resource, sys
from inductor_plugin.cache import open_store
from tests.support.cache.records import kernel_key, measured, record
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = record()
for free in range(4):
    store, descriptors = open_store(sys.argv[1]), []
    try:
        while True:
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for _ in range(free):
        os.close(descriptors.pop())
    store.kernel(kernel_key().digest), store.record(kept.environment, kept.op, kept.digest)
    for descriptor in descriptors:
        os.close(descriptor)
    assert store.kernel(kernel_key().digest) is not None, free
    assert store.record(kept.environment, kept.op, kept.digest) is not None, free
print("all is there")
"""


def test_without_free_descriptors_sound_entries_are_neither_damaged_nor_removed(
    cache_dir: Path,
) -> None:
    store = filled(cache_dir)
    words = [sys.executable, "-c", EXHAUSTED, str(cache_dir)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout == "all is there\n", done.stderr
    assert "damaged" not in done.stderr
    run(store, "verify")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_an_endless_file_in_place_of_a_record_hangs_no_verb(
    kind: str, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, kept = filled(cache_dir), record()
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    run(store, "ls")
    run(store, "stats")
    run(store, "verify", status=1)
    assert f"record {path}: it is a pipe or a device" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["/", "/tmp"])
def test_no_mode_of_the_systems_own_paths_is_to_be_changed(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--cache-dir", path]) == 2
    assert "chmod" not in capsys.readouterr().err
