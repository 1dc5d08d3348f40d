"""Random verbs, flags, keys and files on small caches: an exit status as documented, never a traceback.

A verb that only reads changes nothing in the directory, sound or damaged; nor does one that ends with 2.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inductor_plugin.cache import Pack, document, open_store
from inductor_plugin.cache.transfer.archive import export_archive
from inductor_plugin.cli import main
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record
from tests.support.cli.command import filled
from tests.support.cli.committed import hold_answer

ODD = "\x1b[2J\nFAKE"
KEYED = ("show", "explain", "diff", "repro", "bench", "retune", "rm", "unpin", "release")
FILED = ("export", "import", "pin", "check", "wheel", "merge")
BARE = ("stats", "ls", "verify", "prune", "clear", "doctor")
MODELLED = ("precompile",)
"""Verbs that take a model; `demo` starts a process each time, and has a test of its own."""
MODELS = ("none", "none:x", "os:getcwd", "json:nothing", ":", "", ODD, "tests:")
WRITING = ("retune", "rm", "unpin", "release", "import", "merge", "prune", "clear")
"""Verbs that change the cache, also without a flag."""
FINDING = ("verify", "check", "rm", "clear", "doctor")
"""Verbs that end with 1 where something is wrong."""
CHANGING = ("-z", "--zero", "--repair", "--keep")
"""Flags with which verbs that read change the cache."""

FILES = (
    "new",
    "pack",
    "cut.pack",
    "pins",
    "folder",
    "none/x",
    "-",
    "link",
    f"x{ODD}",
    "y" * 300,
    "cache",
    "z\udcff",
)
KEYS = (
    record().digest,
    record().digest[:8],
    record(problem=2).digest[:12],
    f"{record().environment[:6]}/{record().digest[:6]}",
    f"{record().environment}/mm/{record().digest}",
    kernel_key().digest[:10],
    record().environment[:10],
    "bad",
    "bad-1",
    "",
    "/",
    "//",
    "a",
    "../..",
    ODD,
    "\udcff",  # a byte that is no UTF-8
)
FLAGS: tuple[tuple[str, ...], ...] = (
    *((flag,) for flag in ("--json", "--force", "-y", "--all", "--dry-run", "--keep", "--repair")),
    *(
        (flag,)
        for flag in ("-z", "--kernels", "--quarantine", "--environments", "--wide", "--help")
    ),
    *(("--limit", text) for text in ("0", "1", "-1", "x")),
    *(("--sort", text) for text in ("ms", "speedup", "size", "op", "problem", "x")),
    *(("--filter", text) for text in ("mm", "FAST", "", ODD)),
    *(("--op", text) for text in ("mm", "typo", "", "../..", "\udcff")),
    *(("--environment", text) for text in (record().environment[:6], "0", "")),
    *(("--max-bytes", text) for text in ("0", "1.5GiB", "20k", "-1", "nan", "much")),
    *(("--older-than", text) for text in ("0", "30d", "1e9", "x")),
    *(("--out", text) for text in ("new", "folder", "pins", "none/x")),
    *(("--name", text) for text in ("ours", "../x", "")),
    *(("--seconds", text) for text in ("0.1", "-1", "x")),
    *(("--target", text) for text in ("H999", "", ODD)),
    *(("--max-candidates", text) for text in ("-1", "x")),
    ("--last",),
    *(("--profile", text) for text in ("pins", "folder", "none", "")),
    *(("--version", text) for text in ("1", "one", "1\n2")),
    ("--reverse",),
    ("--trust",),
)
CACHES = ("sound", "damaged", "odd", "newer", "empty", "none", "file", "foreign")


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cache of each kind, and files to read."""
    root = tmp_path_factory.mktemp("commands")
    store = filled(root / "sound")
    store.pin_record(record(problem=2))
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (kernel_key().digest,)))
    for name in ("damaged", "newer", "foreign"):
        shutil.copytree(root / "sound", root / name)
    layout = open_store(root / "damaged").layout
    for path in (*layout.records.rglob("*.json"), *layout.packs.glob("*"), layout.counters):
        path.write_bytes(path.read_bytes()[:-9])
    next(layout.kernels.rglob("kernel.so")).write_bytes(b"librarY")
    (root / "newer" / "schema.json").write_bytes(document.dump({"format": 2}))
    (root / "foreign").chmod(0o777)
    odd = open_store(root / "odd")
    environment = odd.put_environment({**ENVIRONMENT, "device": {"name": ODD}})
    won = replace(decision("fast"), reason=ODD, library="fast", speedup=2.0)
    named = measured("fast", description=ODD, kind=ODD)
    odd.put_record(record(named, environment=environment, describe=ODD, decision=won))
    odd.quarantine(environment, f"c{ODD}", {"status": ODD, "reason": ODD})
    open_store(root / "empty")
    (root / "file").write_text("no cache")
    files = root / "files"
    (files / "folder").mkdir(parents=True)
    pack = store.packs()[0]
    export_archive(store, files / "pack", pack=pack)
    (files / "cut.pack").write_bytes((files / "pack").read_bytes()[:-40])
    (files / "pins").write_text(json.dumps({"pins": [{"environment": "e", "op": "mm"}]}))
    (files / "link").symlink_to("pins")
    return root


def commands() -> st.SearchStrategy[tuple[str, list[str]]]:
    """Return the kind of a cache, and a command on it."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), max_size=8)
    key, file = st.sampled_from(KEYS) | text, st.sampled_from(FILES)
    words = {
        **dict.fromkeys(KEYED, st.lists(key, max_size=3)),
        **dict.fromkeys(FILED, st.lists(file, max_size=2)),
        **dict.fromkeys(BARE, st.lists(file, max_size=1)),
    }
    models = st.sampled_from(MODELS).map(lambda model: ["--model", model])
    words |= dict.fromkeys(MODELLED, models)
    flags = st.lists(st.sampled_from(FLAGS), max_size=3)

    def joined(verb: str, rest: list[str], options: list[tuple[str, ...]]) -> list[str]:
        return [verb, *rest, *(word for option in options for word in option)]

    def command(verb: str) -> st.SearchStrategy[list[str]]:
        return st.builds(joined, st.just(verb), words[verb], flags)

    return st.tuples(st.sampled_from(CACHES), st.sampled_from(sorted(words)).flatmap(command))


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of everything in a folder."""

    def facts(path: Path) -> tuple[int, int, bytes]:
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        return status.st_mode, status.st_mtime_ns if path.is_file() else 0, data

    paths = [folder, *folder.rglob("*")] if folder.exists() else []
    locks = folder / "locks"  # a lock file says nothing
    return {str(path): facts(path) for path in paths if not path.is_relative_to(locks)}


@contextlib.contextmanager
def copied(templates: Path, kind: str, folder: Path) -> Generator[Path]:
    """Put a cache and the files into an empty folder, go there, and return the cache."""
    shutil.copytree(templates / "files", folder, symlinks=True)
    cache, source = folder / "cache", templates / kind
    if source.is_dir():
        shutil.copytree(source, cache)
    elif source.exists():
        shutil.copy(source, cache)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield cache
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def ended(words: Sequence[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its status and what it says."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as error:  # argparse
            status = error.code
    assert isinstance(status, int)
    return status, out.getvalue(), err.getvalue()


def check(templates: Path, folder: Path, kind: str, words: list[str]) -> None:
    verb = words[0]
    with copied(templates, kind, folder) as cache:
        before = contents(cache)
        place = [] if verb in ("merge", "wheel") else ["--cache-dir", str(cache)]
        status, out, err = ended([verb, *place, *words[1:]])
        assert status in ((0, 1, 2) if verb in FINDING else (0, 2))
        assert "Traceback" not in err
        if status == 2:
            assert err
            assert not out or verb in (*MODELLED, "demo")  # they say what they are at
        elif "--json" in words and "--help" not in words:
            hold_answer(words, json.loads(out))
        else:
            assert all(text.isprintable() or text in "\n\t" for text in out)
        assert not any(line.startswith("FAKE") for line in out.splitlines())
        reads = verb not in WRITING and not set(words) & set(CHANGING)
        if reads or status == 2 or "--dry-run" in words:
            assert contents(cache) == before


def checked(templates: Path, folder: Path, examples: int) -> Callable[[], None]:
    """Return a test of so many commands, the same in each run."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(commands())
    def run(command: tuple[str, list[str]]) -> None:
        check(templates, folder, *command)

    return run


def test_random_commands_end_as_documented(templates: Path, tmp_path: Path) -> None:
    checked(templates, tmp_path / "here", 200)()


@pytest.mark.slow
def test_a_thousand_random_commands_end_as_documented(templates: Path, tmp_path: Path) -> None:
    checked(templates, tmp_path / "here", 1000)()


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("verb", [*KEYED, *FILED, *BARE])
def test_every_verb_on_every_cache(templates: Path, tmp_path: Path, kind: str, verb: str) -> None:
    key, file = record().digest[:8], "new" if verb in ("export", "pin") else "pack"
    words = [key] if verb in KEYED else [file] if verb in FILED else []
    more = [key] if verb == "diff" else ["cache"] if verb == "merge" else []
    check(templates, tmp_path / "here", kind, [verb, *words, *more])
    if verb != "doctor":  # it takes a second, and test_doctor.py has its JSON
        check(templates, tmp_path / "here", kind, [verb, *words, *more, "--json"])


@pytest.mark.parametrize("kind", CACHES)
def test_a_model_that_is_not_there_costs_nothing(
    templates: Path, tmp_path: Path, kind: str
) -> None:
    for model in MODELS:
        check(templates, tmp_path / "here", kind, ["precompile", "--model", model])


@pytest.mark.parametrize("kind", ["none", "damaged"])
def test_nor_does_a_demo_of_it(templates: Path, tmp_path: Path, kind: str) -> None:
    check(templates, tmp_path / "here", kind, ["demo", "--model", "none:x"])
