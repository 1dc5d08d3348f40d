"""The requests to a remote that tuning a problem costs, counted from what the product asks of a store in memory."""

from __future__ import annotations

import errno
import functools
from collections import Counter
from collections.abc import Sequence

from inductor_plugin.cache import Decision, Measured, Record, digest_of, open_store
from inductor_plugin.cache.remote.exchange import Exchange
from inductor_plugin.cache.remote.name import Place

_SAMPLE = 32
_CANDIDATES = 21
_ENVIRONMENT = {"device": {"name": "simulated"}, "software": {"torch": "any"}}


def requests_of(problems: int) -> dict[str, int]:
    """Return the requests for objects of so many problems: where they are tuned first, and on one machine that takes them over."""
    return {what: round(count * problems / _SAMPLE) for what, count in _sampled().items()}


class _Objects:
    """A store in memory that counts; it compares before it writes. See `Files`."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()

    def read(
        self, names: Sequence[str], limits: Sequence[int], timeout_s: float
    ) -> list[bytes | OSError]:
        del timeout_s
        self.requests["read"] += len(names)
        return [self._read(name, limit) for name, limit in zip(names, limits, strict=True)]

    def create(self, name: str, data: bytes, timeout_s: float) -> None:
        del timeout_s
        self.requests["write"] += 1
        if name in self._objects:
            raise FileExistsError(name)
        self._objects[name] = data

    def replace(self, name: str, data: bytes, timeout_s: float) -> None:
        del timeout_s
        self.requests["write"] += 1
        self._objects[name] = data

    def folders(self, folder: str, timeout_s: float) -> list[str]:
        raise NotImplementedError("a compile lists nothing")

    def names(self, prefix: str, timeout_s: float) -> list[str]:
        raise NotImplementedError("a compile lists nothing")

    def _read(self, name: str, limit: int) -> bytes | OSError:
        data = self._objects.get(name)
        if data is None:
            return FileNotFoundError(name)
        return data if len(data) <= limit else OSError(errno.EFBIG, "too large")


@functools.cache
def _sampled() -> dict[str, int]:
    objects = _Objects()
    records = [_record(number) for number in range(_SAMPLE)]
    places = [Place(record.environment, record.op, record.digest) for record in records]
    store = open_store("/nowhere", memory_only=True)
    store.put_environment(_ENVIRONMENT)
    first = Exchange(objects, store, kernels=False)
    for place, record in zip(places, records, strict=True):
        chain = first.fetch([place], 1.0)[place].chain
        first.publish(record, 1.0, chain)
    first.overwritten(1.0)
    cold, objects.requests = objects.requests, Counter()
    second = Exchange(objects, open_store("/nowhere", memory_only=True), kernels=False)
    second.fetch(places, 1.0)
    return {
        "read, cold": cold["read"],
        "write, cold": cold["write"],
        "read, warm": objects.requests["read"],
    }


def _record(number: int) -> Record:
    problem = {"op": "mm", "size": [64, number]}
    rows = [_row(f"kernel-{index}") for index in range(_CANDIDATES)]
    return Record(
        environment=digest_of(_ENVIRONMENT),
        op="mm",
        digest=digest_of(problem),
        problem=problem,
        describe=f"mm({number})",
        candidates={row.candidate: row for row in rows},
        decision=Decision("kernel-0", "kernel-1", "simulated", 1.02, 1.5, 1.0, _CANDIDATES),
        created=1.0,
        updated=1.0,
    )


def _row(name: str) -> Measured:
    return Measured(
        candidate=name,
        name=name,
        kind="template",
        description="",
        status="ok",
        reason="",
        samples_ms=(1.0,) * 5,
        median_ms=1.0,
        spread_ms=0.1,
        error=None,
        compile_s=1.5,
        kernel=None,
        measured_at=1.0,
        provenance={},
    )
