"""The calls whose JSON the schemas are read from, and the caches they run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record, Store, digest_of, open_store
from inductor_plugin.cache.key import Difference
from inductor_plugin.cache.lookup.near import Near
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.tuning.report.miss import Miss
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record
from tests.support.cli.command import filled
from tests.support.trust.payload import FRIEND, STRANGER, Kernel

KEY = record().digest
"""Of two records, so that most verbs want its environment before it."""
PLACE = f"{record().environment[:8]}/{KEY[:8]}"
SECOND = record(problem=2).digest[:12]
FUSED = record(problem=5)
EXACT = {**ENVIRONMENT, "numerics": {"deterministic": True}}
SCENARIOS: Mapping[str, Sequence[Sequence[str]]] = {
    "stats": (
        ["stats"],
        ["INDUCTOR_PLUGIN_CACHE_READ={other}", "stats", "--cache-dir", "{shared}"],
    ),
    "ls": (["ls"], ["ls", "--op", "mm", "--limit", "1"]),
    "ls_kernels": (["ls", "--kernels"], ["ls", "--kernels", "--cache-dir", "{signed}"]),
    "ls_quarantine": (
        ["ls", "--quarantine"],
        ["ls", "--quarantine", "--cache-dir", "{shared}"],
    ),
    "ls_environments": (["ls", "--environments"],),
    "show_record": (["show", PLACE], ["show", FUSED.digest, "--cache-dir", "{shared}"]),
    "show_kernel": (
        ["show", kernel_key().digest[:12]],
        ["show", kernel_key("signed").digest, "--cache-dir", "{signed}"],
    ),
    "show_environment": (
        ["show", record().environment],
        ["show", digest_of(EXACT), "--cache-dir", "{shared}"],
    ),
    "explain": (
        ["explain", PLACE],
        ["explain", SECOND],
        ["explain", FUSED.digest, "--cache-dir", "{shared}"],
    ),
    "explain_last": (
        ["explain", "--last"],
        ["explain", "--last", "--cache-dir", "{shared}"],
    ),
    "explain_profile": (["explain", "--profile", "{profile}"],),
    "diff_keys": (
        ["diff", PLACE, SECOND],
        ["diff", SECOND, PLACE],
        ["diff", PLACE, PLACE],
    ),
    "diff_sources": (["diff", "{cache}", "{pins}"], ["diff", "{cache}", "{other}"]),
    "verify": (
        ["verify"],
        ["verify", "--cache-dir", "{signed}"],
        ["verify", "--cache-dir", "{damaged}"],
        ["verify", "--repair", "--cache-dir", "{damaged}"],
    ),
    "prune": (["prune", "--max-bytes", "1", "--dry-run"], ["prune", "--older-than", "1d"]),
    "export": (["export", "{folder}/x.tar.gz"],),
    "import": (["import", "--trust", "{folder}/x.tar.gz"],),
    "merge_caches": (
        ["merge", "{folder}/merged", "{cache}", "{other}", "{shared}"],
        ["merge", "{folder}/merged", "{other}"],
    ),
    "merge_pins": (
        ["merge", "{folder}/merged.json", "{pins}"],
        ["merge", "{folder}/merged.json", "{other}", "{shared}"],
    ),
    "pin": (["pin", "{folder}/new.json"],),
    "repro": (["repro", PLACE], ["repro", PLACE, "--out", "{folder}/repro.py"]),
    "report": (["report", "{folder}/x.html"],),
    "release": (["release", "bad-1"], ["release", "--all", "--cache-dir", "{shared}"]),
    "unpin": (["unpin", "--all"], ["unpin", FUSED.digest, "--cache-dir", "{shared}"]),
    "retune": (["retune", PLACE],),
    "rm": (["rm", SECOND],),
    "clear": (["clear", "--force"],),
    "stats_zero": (["stats", "--zero"],),
    "key": (["key", "new", "{folder}/key"], ["key", "show", "{folder}/key"]),
}
"""The calls whose JSON has a committed schema, in the order in which they run on one cache.

A word ``INDUCTOR_PLUGIN_NAME=VALUE`` before the verb sets a variable.
"""
ELSEWHERE: Mapping[str, str] = {
    "bench": "repro/test_script.py",
    "bench_regret": "repro/test_script.py",
    "check": "cli/test_pins.py",
    "demo": "cli/test_demo.py",
    "doctor": "cli/test_doctor.py",
    "precompile": "aot/test_precompile.py",
    "pull": "cli/test_remote.py",
    "push": "cli/test_remote.py",
    "tune": "cli/test_tune.py",
    "wheel": "cache/transfer/test_wheel.py",
}
"""Calls that need torch or a remote: the test which holds what they say against the committed schema (`schemas.follow`)."""
PROFILE: Mapping[str, Any] = {
    "traceEvents": [
        {"name": f"inductor_plugin {'a' * 12}/{'b' * 12} fast mm(2x3, 3x4)", "ts": 1, "dur": 2}
    ]
}
"""A trace of ``torch.profiler`` with one call of a kernel."""
OLD_MISS: Mapping[str, Any] = {
    "pid": 7,
    "time": 1.0,
    "policy": "tune",
    "misses": [
        {
            "op": "mm",
            "digest": KEY,
            "describe": "mm(1x512)",
            "environment": record().environment,
            "reason": "no record",
        }
    ],
}
"""Misses with the fields that `explain --last` needs, and no others."""


def graph_that_gives_up(*problems: Record, winner: str = "library") -> Record:
    """Return the record of a graph that was compared with the winners of these problems, and runs library kernels for some.

    Args:
        problems: Their records.
        winner: Which: the winner of the graph's record.
    """
    chosen = {problem.digest: "fused" for problem in problems}
    rows = [measured("tuned", 2.0, provenance={"choices": chosen}), measured(winner)]
    why = decision(winner, 2)
    return record(*rows, op="graph", problem=70, describe="graph of 9 nodes", decision=why)


def signed(folder: Path) -> Store:
    """Return a cache with a kernel that a trusted key has signed, and one of a stranger."""
    store = open_store(folder / "signed")
    for name, signer in (("signed", FRIEND), ("refused", STRANGER)):
        kernel = Kernel(folder / name / "files", {"kernel.so": b"library"}, name).signed(signer)
        kernel.fields["taken"] = {"by": "signature", "source": "x.pack"}
        kernel.place(store)
    return store


def shared(folder: Path) -> Store:
    """Return a cache that has used a remote: a pinned record with an epilogue, a failure, misses, all counters."""
    store = open_store(folder / "shared")
    here, there = store.put_environment(ENVIRONMENT), store.put_environment(EXACT)
    fused = record(
        measured("fused"),
        measured("slow", 4.0),
        problem=5,
        decision=decision("fused", 2),
        epilogue={"out": "relu(acc)"},
        pinned=True,
    )
    store.put_record(fused)
    store.put_record(graph_that_gives_up(fused))
    details = {"candidate": "worse", "problem": "mm(5x512)", "limits": {"timeout_s": 30.0}}
    failure = {"status": "raised", "reason": "no answer", **details}
    store.quarantine(here, f"worse-{FUSED.digest[:12]}", failure)
    near = Near(here, FUSED.digest, "mm(5x512)", (Difference("size.0", 5, 6),))
    miss = Miss("mm", KEY, "mm(6x512)", there, ("fused",), "the nearest differs", near)
    alone = Miss("mm", KEY, "mm(6x512)", there, (), "no record", None)
    rows = [miss.to_dict(), alone.to_dict()]
    process = {"pid": 8, "time": 2.0, "program": "train.py", "policy": "cached"}
    store.put_misses({**process, "misses": rows})
    amounts = Amounts(**dict.fromkeys(vars(Amounts()), 1))
    store.add_counts(**amounts.counters(), hits=1, misses=1, corrupt=1)
    return store


def damaged(folder: Path) -> Store:
    """Return a cache with a damaged kernel and a damaged record."""
    store = filled(folder / "damaged")
    next(store.iter_kernels()).path("kernel.so").write_bytes(b"librarY")
    kept = record(problem=2)
    store.layout.record(kept.environment, kept.op, kept.digest).write_bytes(b"damaged")
    return store
