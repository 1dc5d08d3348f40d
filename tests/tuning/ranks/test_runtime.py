"""The part of a process in its job, as its contexts hand it out."""

from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.config import Config
from inductor_plugin.tuning import runtime as runtime_module
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.agreed import of_verdict
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.runtime import Runtime
from tests.support.ranks.simulated import MemoryStore


def test_a_rank_has_one_part_in_its_job_for_each_group(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, runtime = MemoryStore(), Runtime()
    job = Job(1, 2, store)

    def current(options: Config) -> Job | None:
        return None if options.ranks == "off" else job

    def config(**options: str) -> Config:
        return Config.load({"cache_dir": str(cache_dir), **options}, environ={})

    monkeypatch.setattr(runtime_module, "current", current)
    context = runtime.context(config(), "cpu", {})
    share = context.share(host_counts=True)
    assert share is not None
    assert context.share(host_counts=True) is share
    assert context.share(host_counts=False) not in (None, share)
    own = of_verdict(Verdict("library", "library", "it is refused"), None, share.rank)
    assert (own.rank, share.decide("mm/fusion", own)) == (1, own)
    assert f"{context.terms(host_counts=True).group}/decision/mm/fusion" in store.values
    alone = runtime.context(config(ranks="off"), "cpu", {})
    assert alone.share(host_counts=True) is None
    runtime.forget()
