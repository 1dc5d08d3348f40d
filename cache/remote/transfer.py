"""Writes a whole cache, or a part of it, to a remote, and takes one over: for people, who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TypeVar

from inductor_plugin.cache.record import GRAPH, Record
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cache.remote.answer import reason_of
from inductor_plugin.cache.remote.exchange import Exchange, is_worth_sending
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import Place, is_part, place_of, prefix, records_prefix
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.errors import CacheError

T = TypeVar("T")

_THREADS = 16
"""Records that are written at once: an object store answers after 50 ms, and takes hundreds of requests a second."""
_WAITING = 4 * _THREADS
"""Records that are read before their turn: a whole cache does not fit into memory."""
_BATCH = 64
_MOST_FAILURES = 2 * _BATCH
"""Failures in a row after which a store is taken for gone: each may last `LIMIT_S`."""
_FAULTS = (OSError, CacheError, ValueError, RecursionError)
"""What goes wrong with one record: the store, or a damaged entry of the cache."""
LIMIT_S = 60.0
"""Limit of one request; no compile waits for it. S3 lists some 400,000 names within it, a thousand an answer."""
_LETTERS = "0123456789abcdef"
"""Of which the digests of problems are made."""
_MOST_LETTERS = 2
"""First letters of digests by which names are listed where there are many: 256 parts have 10^8. A store that dies meanwhile costs three limits."""


@dataclass(frozen=True)
class Transferred:
    """What `push` or `pull` has done.

    Attributes:
        records: Records that were looked at.
        changed: Those of which the other side knew less.
        failed: Those that could not be written or read.
        reason: The first reason, empty if none failed.
        refused: Why the first kernel that may not run here was left there, empty if there is none.
        amounts: What has gone over the line.
    """

    records: int = 0
    changed: int = 0
    failed: int = 0
    reason: str = ""
    refused: str = ""
    amounts: Amounts = field(default_factory=Amounts)


class _Streak:
    """Failures in a row, counted by any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._count = 0

    @property
    def is_over(self) -> bool:
        """Whether there were too many."""
        return self._count >= _MOST_FAILURES

    def add(self, *, failed: bool) -> None:
        """Count one more, unless this one is well."""
        with self._guard:
            self._count = self._count + 1 if failed else 0


@dataclass(frozen=True)
class TransferPart:
    """The part of a cache or a remote that is transferred; records of whole graphs never are.

    Attributes:
        kernels: Whether winners' kernels are, too.
        environment: Only environments with this prefix of their digest.
        op: Only records of this operator.
    """

    kernels: bool = False
    environment: str = ""
    op: str | None = None

    def has(self, entry: Record | Place) -> bool:
        """Return whether a record, or the place of one, belongs to the part."""
        is_chosen = entry.environment.startswith(self.environment) and self.op in (None, entry.op)
        return is_chosen and entry.op != GRAPH


def push(
    store: Store,
    files: Files,
    part: TransferPart,
    limit_s: float = LIMIT_S,
    signer: Signer | None = None,
    source: str = "a remote",
) -> Transferred:
    """Write the records of a cache to a remote, unless it knows what they say.

    A record that fails does not keep the others; after `_MOST_FAILURES` in a row the rest is not tried.

    Args:
        store: The cache.
        files: The remote.
        part: Which of them.
        limit_s: Limit of one request.
        signer: Signs kernels that were built in this cache.
        source: The remote's URL.
    """
    exchange = Exchange(files, store, kernels=part.kernels, signer=signer, source=source)
    streak = _Streak()
    chosen = (
        record for record in store.iter_records() if part.has(record) and is_worth_sending(record)
    )

    def write(record: Record) -> str:
        if streak.is_over:
            return f"{record.describe}: not tried, since {_MOST_FAILURES} failed before it"
        reason = ""
        try:
            exchange.publish(record, limit_s)
        except _FAULTS as error:
            reason = f"{record.describe}: {reason_of(error)}"
        streak.add(failed=bool(reason))
        return reason

    done = Transferred()
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: set[Future[str]] = set()
        try:
            for record in chosen:
                if len(waiting) >= _WAITING:
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    done = _with(done, [each.result() for each in ended])
                waiting.add(pool.submit(write, record))
            done = _with(done, [each.result() for each in waiting])
        except BaseException:  # Ctrl-C: not after all others
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    amounts = exchange.take_amounts()
    repaired, reason = _written_again(exchange, store, limit_s)
    whole = _with(done, filter(None, [reason]))
    return replace(whole, records=done.records, changed=amounts.sent, amounts=amounts + repaired)


def pull(
    store: Store,
    files: Files,
    part: TransferPart,
    limit_s: float = LIMIT_S,
    *,
    trusted: bool = False,
    source: str = "a remote",
) -> Transferred:
    """Take over what a remote knows. It is listed, which a compile never does.

    Args:
        store: The cache; its trust says whose kernels are taken.
        files: The remote.
        part: Which records are taken.
        limit_s: Limit of one request, or of listing a part of the names.
        trusted: Take unsigned kernels, too.
        source: The remote's URL.

    Raises:
        CacheError: It cannot be listed.
    """
    exchange = Exchange(files, store, kernels=part.kernels, trusted=trusted, source=source)
    try:
        environments = _environments(files, part, limit_s)
        places = [each for digest in environments for each in _places(files, digest, part, limit_s)]
    except OSError as error:
        raise CacheError(f"the remote cannot be listed: {reason_of(error)}") from error
    for digest in environments:
        _take_environment(exchange, digest, limit_s)
    done, streak, unwritten = Transferred(), _Streak(), store.unwritten
    for batch in _batches(places):
        if streak.is_over:
            done = _with(done, [f"not tried, since {_MOST_FAILURES} failed before it"] * len(batch))
        else:
            done = _with_batch(done, exchange, batch, limit_s, streak)
    lost = store.unwritten - unwritten
    why = f"it cannot be written: {store.degraded or 'the warnings of this process say why'}"
    amounts, done = exchange.take_amounts(), _with(done, [why] * lost)
    return replace(done, changed=amounts.hits, amounts=amounts)


def _environments(files: Files, part: TransferPart, limit_s: float) -> list[str]:
    """Return the environments of a part.

    Raises:
        OSError: They cannot be listed.
    """
    listed = files.folders(prefix(), limit_s)
    return sorted(each for each in listed if each.startswith(part.environment) and is_part(each))


def _places(files: Files, environment: str, part: TransferPart, limit_s: float) -> list[Place]:
    """Return the records of a part in one environment, listed operator by operator; files of kernels are not.

    Raises:
        OSError: They cannot be listed.
    """
    ops = [part.op] if part.op else files.folders(records_prefix(environment), limit_s)
    starts = [records_prefix(environment, op) for op in ops if is_part(op) and op != GRAPH]
    names = (name for start in starts for name in _names(files, start, limit_s))
    return [*dict.fromkeys(place for place in map(place_of, names) if place and part.has(place))]


def _names(files: Files, start: str, limit_s: float, letters: int = _MOST_LETTERS) -> list[str]:
    """Return the names that begin so: a few at a time where the store needs longer than the limit for all of them.

    Raises:
        OSError: They cannot be listed.
    """
    try:
        return files.names(start, limit_s)
    except TimeoutError:
        if letters == 0:
            raise
    parts = (_names(files, start + letter, limit_s, letters - 1) for letter in _LETTERS)
    return [name for names in parts for name in names]


def _with_batch(
    done: Transferred, exchange: Exchange, batch: Sequence[Place], limit_s: float, streak: _Streak
) -> Transferred:
    """Take some records over; return what is done with them. Their answers are not kept: they have all that was read."""
    try:
        answers = exchange.fetch(batch, limit_s)
    except _FAULTS as error:  # of this cache
        streak.add(failed=True)
        return _with(done, [reason_of(error)] * len(batch))
    reasons: list[str] = []
    for answer in answers.values():
        streak.add(failed=answer.error is not None)
        reasons.append(
            "; ".join(filter(None, [*answer.damage, answer.unkept]))
            if answer.error is None
            else reason_of(answer.error)
        )
        done = replace(done, refused=done.refused or answer.refused)
    return _with(done, reasons)


def _written_again(exchange: Exchange, store: Store, limit_s: float) -> tuple[Amounts, str]:
    """Write again what another machine has replaced since; return what has gone over the line, and why that failed."""
    reason = ""
    try:
        for place in exchange.overwritten(limit_s):
            record = store.record(*place)
            if record is not None:
                exchange.publish(record, limit_s)
    except _FAULTS as error:
        reason = f"what was written could not be read back: {reason_of(error)}"
    return exchange.take_amounts(), reason


def _take_environment(exchange: Exchange, digest: str, limit_s: float) -> None:
    """Take over the fields of an environment; without them its records are only shown with its digest."""
    try:
        exchange.fetch_environment(digest, limit_s)
    except (OSError, ValueError, RecursionError):
        return


def _with(done: Transferred, reasons: Iterable[str]) -> Transferred:
    """Return what is done with some more records: why each failed, empty if it did not."""
    each = [*reasons]
    failures = [reason for reason in each if reason]
    return replace(
        done,
        records=done.records + len(each),
        failed=done.failed + len(failures),
        reason=next(filter(None, [done.reason, *failures]), ""),
    )


def _batches(places: Sequence[T]) -> Iterator[Sequence[T]]:
    return (places[start : start + _BATCH] for start in range(0, len(places), _BATCH))
