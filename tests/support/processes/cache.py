"""Functions that child processes of the cache's tests run, each by name."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from inductor_plugin.cache import (
    Decision,
    KernelKey,
    Measured,
    Record,
    Store,
    digest_of,
    open_store,
)

ENVIRONMENT = digest_of({"device": "test"})


def key(index: int) -> KernelKey:
    """Return one of the keys all processes build."""
    return KernelKey("t", f"source {index}", "c", "x", "g", "f")


def record(index: int, candidate: str) -> Record:
    """Return a record with one candidate."""
    measured = Measured(
        candidate, candidate, "cpp", "", "ok", "", (1.0,), 1.0, 0.0, None, None, None, 1.0, {}
    )
    digest = digest_of({"problem": index})
    won = Decision(candidate, None, "only one", 1.02, None, 1.0, 1)
    return Record(
        ENVIRONMENT,
        "mm",
        digest,
        {"problem": index},
        "mm",
        {candidate: measured},
        {},
        won,
        1.0,
        1.0,
    )


def build(store: Store, index: int, builds: Path, who: str) -> None:
    """Build a kernel slowly, and log each build."""

    with store.lock_kernel(key(index).digest, 60):
        entry = store.kernel(key(index).digest)
        if entry is None:
            with (builds / f"{index}").open("a") as file:
                file.write(f"{who}\n")
            time.sleep(0.05)
            entry = store.put_kernel(key(index), {"kernel.so": str(index).encode() * 1000})
    if entry.path("kernel.so").read_bytes() != str(index).encode() * 1000:
        raise RuntimeError(f"kernel {index} is not what was built")


def share(cache: str, who: str, keys: str, builds: str) -> None:
    """Build every kernel, and add this process's candidate to every record."""
    store = open_store(cache)
    store.put_environment({"device": "test"})
    for index in range(int(keys)):
        build(store, index, Path(builds), who)
        store.put_record(record(index, f"candidate-{who}"))
        store.add_counts(hits=1)


def write_for_ever(cache: str) -> None:
    """Write kernels, records, quarantine and counters until killed."""
    store = open_store(cache)
    print("ready", flush=True)
    index = 0
    while True:
        index += 1
        store.put_environment({"device": "test"})
        store.put_record(record(index % 7, f"candidate-{index}"))
        store.put_kernel(key(index), {"kernel.so": b"x" * 20_000, "source.cpp": b"source"})
        store.quarantine(ENVIRONMENT, f"bad-{index % 5}", {"status": "hung", "reason": "r"})
        store.add_counts(misses=1)
        if index % 10 == 0:
            store.prune(max_bytes=200_000)


def hold(cache: str, name: str) -> None:
    """Hold a lock until killed."""
    with open_store(cache).lock_kernel(name, 10):
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    {"share": share, "write_for_ever": write_for_ever, "hold": hold}[sys.argv[1]](*sys.argv[2:])
