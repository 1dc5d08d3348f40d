"""How fast the cache is with many records: lookups cold and warm, `ls`, `stats`, `prune` of records and of kernels, as JSON.

Cold is the first lookup of a record in a process, of a file in the page cache of the system: it has just been written. What a
disk takes to read it is not measured.

python -m benchmarks.startup.cache_speed [--records 10000] [--candidates 20] [--out FILE]

A million records (``--records 1000000 --candidates 4``) take 3.3 GB and 1.2 million inodes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import io
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.startup.cold_warm import machine
from inductor_plugin import cli
from inductor_plugin.cache import (
    Decision,
    KernelKey,
    Measured,
    Record,
    Store,
    digest_of,
    document,
    open_store,
)
from inductor_plugin.cache.record import to_fields

Place = tuple[str, str, str]

CANDIDATES = 20
SAMPLES = 12
LOOKUPS = 500
WRITTEN = 1000
"""Records that are written by the cache itself, to time it; the others are copies of one with other numbers."""
KERNELS = 200
"""Kernels of 50 kB, of which half are evicted."""
LISTED = 100_000
"""Records above which the verbs that show or read every record are left out: `ls --limit 0`, `ls --json`, `verify`, `explain`."""
_KERNEL_BYTES = 50_000
_NUMBER = "4242424242"
"""Stands for a record's number in the document that the others are copied from."""


def record_of(environment: str, index: int, count: int = CANDIDATES) -> Record:
    """Return a record of the size a tuned matrix product has."""
    problem = {"op": "mm", "inputs": [{"size": [index, 512], "stride": [512, 1]}], "epilogue": ""}
    candidates = {
        f"cpp_CppMicroGemm-{number:012x}": Measured(
            candidate=f"cpp_CppMicroGemm-{number:012x}",
            name=f"cpp_CppMicroGemm_{number}",
            kind="cpp",
            description=f"block_m=32, block_n={number}, block_k=64",
            status="ok",
            reason="",
            samples_ms=tuple(0.1 + 0.001 * sample + index * 1e-6 for sample in range(SAMPLES)),
            median_ms=0.105,
            spread_ms=0.003,
            error=1e-6,
            compile_s=1.5,
            kernel=digest_of({"kernel": number}),
            measured_at=1.7e9,  # not of the number: a time in the future is read slowly
            provenance={"host": "host", "python": "3.11.7", "driver": "550.54"},
        )
        for number in range(count)
    }
    winner = next(iter(candidates))
    return Record(
        environment=environment,
        op="mm",
        digest=digest_of(problem),
        problem=problem,
        describe=f"mm({index}x512, 512x512)",
        candidates=candidates,
        decision=Decision(winner, winner, "fastest", 1.02, 1.0, 1.7e9, count),
        created=1.7e9,
        updated=1.7e9,
    )


def lookup_us(store: Store, places: list[Place], name: str) -> dict[str, float]:
    """Return the microseconds of one lookup as figures of a name: the median, what 95 % of all take at most, and the longest."""
    times: list[float] = []
    for place in places:
        started = time.perf_counter()
        record = store.record(*place)
        times.append((time.perf_counter() - started) * 1e6)
        if record is None:
            raise RuntimeError(f"the record {place} is not there")
    figures = {
        f"lookup_{name}_us": statistics.median(times),
        f"lookup_{name}_p95_us": statistics.quantiles(times, n=20, method="inclusive")[-1],
        f"lookup_{name}_max_us": max(times),
    }
    return {field: round(each_us, 1) for field, each_us in figures.items()}


def verb_s(folder: Path, verb: str, *arguments: str) -> float:
    """Return the seconds a verb of the command line takes inside this process."""
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        cli.main([verb, "--cache-dir", str(folder), *arguments])
    if not output.getvalue():
        raise RuntimeError(f"{verb} said nothing")
    return round(time.perf_counter() - started, 3)


def fill(store: Store, environment: str, numbers: range, candidates: int) -> list[Place]:
    """Write records without the cache, which takes 3 ms for each: copies of one document with other numbers.

    Their digests are made of the number alone. Their times of use lie an hour back and more, so that `prune` may take them.
    """
    model = record_of(environment, int(_NUMBER), candidates)
    body = document.dump(to_fields(model))
    rest = body[body.index(b"\n", 2) + 1 :]  # what the checksum is of
    head = body[: body.index(b'"sha256": "') + len(b'"sha256": "')]
    parts = re.split(f"({_NUMBER}|{model.digest})".encode(), rest)
    folder = store.layout.record(environment, "mm", model.digest).parent
    folder.mkdir(parents=True, exist_ok=True)
    places: list[Place] = []
    now = time.time()
    for number in numbers:
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        words = {_NUMBER.encode(): str(number).encode(), model.digest.encode(): digest.encode()}
        text = b"".join(words.get(part, part) for part in parts)
        path = f"{folder}/{digest}.json"
        with open(path, "wb") as file:  # noqa: PTH123  a Path costs as much as the write
            file.write(b"".join((head, hashlib.sha256(text).hexdigest().encode(), b'",\n', text)))
        used = now - 3600.0 - (numbers.stop - number)
        os.utime(path, (used, used))
        places.append((environment, "mm", digest))
    return places


def add_kernels(store: Store) -> int:
    """Add kernels, and return the size of the cache."""
    for number in range(KERNELS):
        name = f"kernel-{number}"
        key = KernelKey("template", name, name, "cuda:90", "toolchain", "")
        store.put_kernel(key, {"kernel.so": number.to_bytes(4, "big") * (_KERNEL_BYTES // 4)})
    return open_store(store.root).usage().bytes


def measure(folder: Path, count: int, candidates: int = CANDIDATES) -> dict[str, float]:
    """Fill a cache with records and return the figures."""
    store = open_store(folder)
    environment = store.put_environment({"device": "benchmark"})
    written = min(count, WRITTEN)
    started = time.perf_counter()
    places: list[Place] = []
    for index in range(written):
        stored = store.put_record(record_of(environment, index, candidates))
        places.append((environment, stored.op, stored.digest))
    put_ms = (time.perf_counter() - started) / written * 1e3
    places += fill(store, environment, range(written, count), candidates)
    chosen = places[:: max(1, count // LOOKUPS)]
    gc.collect()
    gc.freeze()  # a process of its own would not hold what was written
    fresh = open_store(folder)
    lookups = lookup_us(fresh, chosen, "cold") | lookup_us(fresh, chosen, "warm")
    size = fresh.usage().bytes
    figures = {
        "records": count,
        "candidates": candidates,
        "bytes_per_record": round(size / count),
        "put_ms": round(put_ms, 3),
        **lookups,
        "ls_s": verb_s(folder, "ls"),
        "show_s": verb_s(folder, "show", places[-1][2]),
        "stats_s": verb_s(folder, "stats"),
        "prune_dry_s": verb_s(folder, "prune", "--dry-run", "--max-bytes", str(size * 99 // 100)),
        "prune_s": verb_s(
            folder, "prune", "--max-bytes", str(size - min(1000, count // 2) * (size // count))
        ),
    }
    size = add_kernels(store)
    half = KERNELS // 2 * (_KERNEL_BYTES + 1000)
    figures["prune_kernels_s"] = verb_s(folder, "prune", "--max-bytes", str(size - half))
    if (left := len(list(store.iter_kernels()))) >= KERNELS:
        raise RuntimeError(f"prune left all {left} kernels")
    if count <= LISTED:
        figures |= {
            "ls_all_s": verb_s(folder, "ls", "--limit", "0"),
            "ls_json_s": verb_s(folder, "ls", "--json"),
            "explain_s": verb_s(folder, "explain", places[-1][2]),
            "verify_s": verb_s(folder, "verify"),
        }
    return figures


def main() -> None:
    """Run the benchmark and write its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="of each record")
    parser.add_argument("--out", type=Path, help="file for the JSON; standard output if unset")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "cache", arguments.records, arguments.candidates)
        text = json.dumps({"machine": machine(), **figures}, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
