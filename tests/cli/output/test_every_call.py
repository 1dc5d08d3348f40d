"""Every verb with every combination of its options: what it says with ``--json`` follows a committed schema.

A verb or option that is new fails here until it is walked, and then until its JSON has a schema.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from docs.verbs import usage
from inductor_plugin.cache import Pack, Resources, open_store
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cache.transfer import parcel
from inductor_plugin.cache.transfer.archive import export_archive, import_bytes
from inductor_plugin.cache.trust.keys import new_key
from inductor_plugin.cli import VERBS, listing, main
from inductor_plugin.cli.verb import Verb
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record
from tests.support.cli.command import OTHER, filled
from tests.support.cli.committed import FOLDER, hold_answer, schema_name
from tests.support.cli.scenarios import ELSEWHERE, OLD_MISS

Slot = Sequence[Sequence[str]]
"""Alternatives: words that are not written together."""

PLACE = f"{record().environment[:12]}/{record().digest[:12]}"
SECOND = record(problem=2).digest[:12]
NEWER = record(problem=7).digest[:12]
KERNEL, OTHER_KERNEL = kernel_key().digest[:12], kernel_key("newer").digest[:12]
HERE = record().environment[:12]
OP: Slot = ((), ("--op", "mm"))
IN_ONE: Slot = ((), ("--environment", HERE))
FORCE: Slot = ((), ("--force",), ("-y",))
REMOTE: Slot = ((), ("file://{folder}/remote",))
WALKS: Mapping[str, Sequence[Slot]] = {
    "stats": [((), ("--zero",), ("-z",))],
    "ls": [
        ((), ("--kernels",), ("--quarantine",), ("--environments",)),
        ((), ("--filter", "m")),
        ((), ("--sort", "size"), ("--reverse",), ("--limit", "1"), ("--wide",)),
        (*OP, ("--environment", HERE)),
    ],
    "show": [((PLACE,), (NEWER,), (KERNEL,), (OTHER_KERNEL,), (HERE,))],
    "explain": [((PLACE,), (NEWER,), ("--last",))],
    "diff": [
        (
            *((PLACE, NEWER), (NEWER, PLACE), (KERNEL, OTHER_KERNEL), (OTHER_KERNEL, KERNEL)),
            *((HERE, "{there}"), ("{there}", HERE), (PLACE, PLACE)),
            *(("cache", "pins"), ("pins", "cache", "second"), ("second", "cache")),
        )
    ],
    "report": [
        (("out.html",), ("out.html", "cache"), ("out.html", "cache", "pins")),
        ((), ("--trace", "trace")),
        FORCE,
    ],
    "repro": [((PLACE,), (NEWER,)), ((), ("--out", "script.py")), FORCE],
    "retune": [((PLACE,), (PLACE, SECOND)), FORCE],
    "release": [(("bad-1",), ("--all",)), IN_ONE],
    "rm": [((SECOND,), (KERNEL,), (HERE, "--force"), (PLACE, SECOND)), FORCE],
    "clear": [(("--force",), ("-y",))],
    "prune": [
        ((), ("--max-bytes", "1")),
        ((), ("--older-than", "1d")),
        ((), ("--dry-run",)),
    ],
    "verify": [((), ("--repair",))],
    "export": [(("x.tgz",),), OP, IN_ONE, FORCE],
    "import": [(("pack",),), ((), ("--trust",))],
    "merge": [
        (
            *(("new", "cache"), ("cache", "second"), ("second", "cache")),
            *(("new.json", "pins"), ("new.json", "cache", "second", "pins")),
        )
    ],
    "push": [REMOTE, OP, IN_ONE, ((), ("--kernels",))],
    "pull": [REMOTE, OP, IN_ONE, ((), ("--kernels",)), ((), ("--trust",))],
    "pin": [(("new.json",),), OP, IN_ONE, ((), ("--keep",)), FORCE],
    "unpin": [((NEWER,), ("--all",)), OP, IN_ONE],
    "wheel": [
        (("pack",),),
        ((), ("--name", "ours")),
        ((), ("--version", "2")),
        ((), ("--out", "folder")),
    ],
    "key": [(("new", "other-key"), ("show", "key"))],
}
"""Of each verb that runs without torch: words of which each combination is called, one of each slot."""
READING = ("ls", "show", "explain", "diff")
"""Verbs that change nothing: all their calls are on one copy of the cache."""
APART: Mapping[str, frozenset[str]] = {
    "stats": frozenset(
        {"--prometheus", "--watch"}
    ),  # no JSON; a line each time: test_prometheus.py
    "completion": frozenset(),  # a shell's script
    "bench": frozenset({"--regret", "--op", "--seconds", "--register"}),
    "check": frozenset({"--templates"}),
    "demo": frozenset({"--model"}),
    "doctor": frozenset(),
    "precompile": frozenset(
        {
            *("--target", "--model", "--standard", "--dynamic", "--out", "--force", "--backends"),
            *("--max-candidates", "--nvcc", "--measure"),
        }
    ),
    "tune": frozenset({"--training", "--dynamic", "--pins", "--force"}),
}
"""Options that have been looked at and are not walked: those of verbs that need torch change no field, but for `BY_OPTION`."""


def options(verb: Verb) -> set[str]:
    """Return the options of a verb itself, as its help names them."""
    return set(re.findall(r"^  (?:-\w, )?(--[a-z][a-z-]*)", usage(verb), re.MULTILINE))


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of caches and files, other ones than those the schemas are read from."""
    root = tmp_path_factory.mktemp("walk")
    store = filled(root / "cache")
    newer = {"newer": {"field": 1}}
    rows = (
        measured("fast", 1.0, extra=newer, kernel=kernel_key("newer").digest, error=1e-3),
        measured("wrong", None, status="wrong", reason="it is off", spread_ms=None),
    )
    won = replace(decision("fast", 2), library="fast", speedup=1.25, extra=newer)
    kept = record(*rows, problem=7, decision=won, epilogue={"out": "acc + bias"}, extra=newer)
    store.put_kernel(
        kernel_key("newer"), {"kernel.so": b"2"}, Resources(168, 0, 512, 128, extra=newer), newer
    )
    store.put_record(kept)
    store.pin_record(kept)
    failure = {"status": "crashed", "reason": "r", "problem": "mm", "limits": {"s": 1.0}}
    store.quarantine(record().environment, "odd", failure)
    store.put_misses(OLD_MISS)
    amounts = Amounts(**dict.fromkeys(vars(Amounts()), 7))
    store.add_counts(**amounts.counters(), newer=1)
    store.put_pack(Pack("H200", "sm_90a", 1.0, {}, ("m:f",), ("mm",), (kernel_key().digest,)))
    second = open_store(root / "second")
    second.put_environment(ENVIRONMENT)
    better = measured("slow", 0.5, samples_ms=(0.5,) * 9)
    second.put_record(record(better, decision=decision("slow", 9, 5000.0)))
    second.put_kernel(kernel_key("third"), {"kernel.so": b"3"})
    artifact = second.kernel(kernel_key("third").digest)
    assert artifact is not None
    import_bytes(store, parcel.of_kernel(artifact), f"kernel/{artifact.digest}")
    (root / "folder").mkdir()
    span = {"ph": "X", "ts": 0, "dur": 5000, "name": "a", "cat": "compile", "pid": 1, "tid": 1}
    (root / "trace").write_text(json.dumps({"traceEvents": [span]}))
    new_key(root / "key")
    export_archive(store, root / "pack", pack=store.packs()[0])
    place = ["--cache-dir", str(root / "cache")]
    assert main(["pin", *place, str(root / "pins")]) == 0
    assert main(["push", *place, "--kernels", f"file://{root}/remote"]) == 0
    return root


@pytest.mark.parametrize("verb", WALKS)
def test_each_combination_of_options_follows_a_committed_schema(
    verb: str,
    caches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Which environments are this machine's needs torch; test_listing.py asks for it.
    monkeypatch.setattr(listing, "_this_machine", list)
    there = open_store(caches / "cache").put_environment(OTHER)[:12]
    said: set[str] = set()
    for number, words in enumerate(itertools.product(*WALKS[verb])):
        folder = tmp_path / ("once" if verb in READING else str(number))
        if not folder.exists():
            shutil.copytree(caches, folder)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(folder / "cache"))
        monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_READ", str(folder / "second"))
        monkeypatch.setenv("INDUCTOR_PLUGIN_REMOTE_URL", f"file://{folder}/remote")
        call = [verb, *(word.format(there=there, folder=folder) for slot in words for word in slot)]
        capsys.readouterr()
        status = main([*call, "--json"])
        captured = capsys.readouterr()
        assert status in (0, 1), (call, captured.err)
        answer = json.loads(captured.out)
        hold_answer(call, answer)
        said.add(schema_name(call, answer))
    monkeypatch.chdir(tmp_path)
    assert said == {
        path.stem for path in FOLDER.glob(f"{verb}*.json") if path.stem.split("_")[0] == verb
    }


@pytest.mark.parametrize("verb", VERBS, ids=[verb.name for verb in VERBS])
def test_each_option_of_each_verb_is_walked_or_has_been_looked_at(verb: Verb) -> None:
    slots = WALKS.get(verb.name, ())
    walked = {word for slot in slots for words in slot for word in words if word.startswith("-")}
    assert verb.name in WALKS or verb.name in APART
    assert options(verb) == (walked - {"-z", "-y"}) | APART.get(verb.name, frozenset())
    if verb.name not in (*WALKS, "completion"):
        assert verb.name in ELSEWHERE
