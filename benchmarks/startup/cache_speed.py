"""How fast the cache is with many records: lookups cold and warm, `ls`, as JSON.

python -m benchmarks.startup.cache_speed [--records 10000] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

from inductor_plugin import cli
from inductor_plugin.cache import Decision, Measured, Record, Store, digest_of, open_store

CANDIDATES = 20
SAMPLES = 12
LOOKUPS = 500


def record_of(environment: str, index: int) -> Record:
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
            measured_at=1.7e9 + index,
            provenance={"host": "host", "python": "3.11.7", "driver": "550.54"},
        )
        for number in range(CANDIDATES)
    }
    winner = next(iter(candidates))
    return Record(
        environment=environment,
        op="mm",
        digest=digest_of(problem),
        problem=problem,
        describe=f"mm({index}x512, 512x512)",
        candidates=candidates,
        decision=Decision(winner, winner, "fastest", 1.02, 1.0, 1.7e9, CANDIDATES),
        created=1.7e9,
        updated=1.7e9 + index,
    )


def lookup_us(store: Store, places: list[tuple[str, str, str]]) -> float:
    """Return the median microseconds of one lookup."""
    times: list[float] = []
    for place in places:
        started = time.perf_counter()
        record = store.record(*place)
        times.append((time.perf_counter() - started) * 1e6)
        if record is None:
            raise RuntimeError(f"the record {place} is not there")
    return round(statistics.median(times), 1)


def verb_s(folder: Path, verb: str, *arguments: str) -> float:
    """Return the seconds a verb of the command line takes inside this process."""
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        cli.main([verb, "--cache-dir", str(folder), *arguments])
    if not output.getvalue():
        raise RuntimeError(f"{verb} said nothing")
    return round(time.perf_counter() - started, 3)


def measure(folder: Path, count: int) -> dict[str, float]:
    """Fill a cache with records and return the figures."""
    store = open_store(folder)
    environment = store.put_environment({"device": "benchmark"})
    started = time.perf_counter()
    places: list[tuple[str, str, str]] = []
    for index in range(count):
        stored = store.put_record(record_of(environment, index))
        places.append((environment, stored.op, stored.digest))
    put_ms = (time.perf_counter() - started) / count * 1e3
    chosen = places[:: max(1, count // LOOKUPS)]
    gc.collect()
    gc.freeze()  # a process of its own would not hold what was written
    fresh = open_store(folder)
    cold_us = lookup_us(fresh, chosen)
    warm_us = lookup_us(fresh, chosen)
    return {
        "records": count,
        "bytes_per_record": round(fresh.usage().bytes / count),
        "put_ms": round(put_ms, 3),
        "lookup_cold_us": cold_us,
        "lookup_warm_us": warm_us,
        "ls_s": verb_s(folder, "ls"),
        "ls_all_s": verb_s(folder, "ls", "--limit", "0"),
        "ls_json_s": verb_s(folder, "ls", "--json"),
        "show_s": verb_s(folder, "show", places[-1][2]),
        "explain_s": verb_s(folder, "explain", places[-1][2]),
        "stats_s": verb_s(folder, "stats"),
        "verify_s": verb_s(folder, "verify"),
    }


def main() -> None:
    """Run the benchmark and write its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="file for the JSON; standard output if unset")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(measure(Path(folder) / "cache", arguments.records), indent=2)
    if arguments.out is not None:
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
