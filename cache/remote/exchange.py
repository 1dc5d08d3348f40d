"""What goes to and comes from a remote: one call after the other, each within a limit of time."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from inductor_plugin.cache import document
from inductor_plugin.cache.guard import MAX_DOCUMENT_BYTES
from inductor_plugin.cache.merge import combine
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import environment_document, parse_environment
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cache.remote.answer import Answer
from inductor_plugin.cache.remote.chain import EXPIRED, Chain, read_chains
from inductor_plugin.cache.remote.edition import MAX_BYTES, Edition, edition_of, is_news, united
from inductor_plugin.cache.remote.files import Files, WriteRefusedError
from inductor_plugin.cache.remote.kernels import KernelTraffic
from inductor_plugin.cache.remote.name import (
    MOST_EDITIONS,
    Place,
    edition_name,
    environment_name,
)
from inductor_plugin.cache.remote.receipts import Receipts
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.errors import warn_once

logger = logging.getLogger(__name__)

_MOST_SAVED_MS = 1e9
"""Time of one record up to which it counts as saved, 11 days: no true one has more, and counters are whole numbers."""

_MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)


class Exchange:
    """Carries records and kernels between a cache and a remote."""

    def __init__(
        self,
        files: Files,
        store: Store,
        *,
        kernels: bool,
        trusted: bool = False,
        signer: Signer | None = None,
        source: str = "a remote",
    ) -> None:
        """Carry kernels, too, if asked: they are code that this process would run.

        Args:
            files: The remote.
            store: The cache; its trust says whose signatures count.
            kernels: Whether winners' kernels travel.
            trusted: Whether unsigned kernels are fetched, too.
            signer: Signs kernels that were built in the cache.
            source: The remote's URL, kept with each kernel that comes from it.
        """
        self._files = files
        self._store = store
        self._source = source
        self._kernels: KernelTraffic | None = None
        if kernels:
            self._kernels = KernelTraffic(
                files, store, self._count, trusted=trusted, signer=signer, source=source
            )
        own = () if signer is None else (signer.public,)
        self._keys = frozenset((*store.trust.counting(), *own))
        self._guard = threading.Lock()
        self._amounts = Amounts()
        self._receipts = Receipts()
        self._environments: set[str] = set()  # that are in the remote: two requests for each record

    @property
    def is_unconfirmed(self) -> bool:
        """Whether something was written that `overwritten` has not looked at."""
        return self._receipts.is_open

    def take_amounts(self) -> Amounts:
        """Return what has gone over the line since the last call."""
        with self._guard:
            amounts, self._amounts = self._amounts, Amounts()
        return amounts

    def fetch(self, places: Sequence[Place], timeout_s: float) -> dict[Place, Answer]:
        """Put what the remote knows of records, and their winners' kernels, into the cache.

        What arrives is checked as an import is: size, checksum, depth, type of every field, and that it is what was asked for.
        """
        parts = [*self.fetch_parts(places, timeout_s)]
        return {place: answer for part in parts for place, answer in part.items()}

    def fetch_parts(
        self, places: Sequence[Place], timeout_s: float
    ) -> Iterator[dict[Place, Answer]]:
        """Do as `fetch`, and yield the answers as they are complete: those without a missing kernel do not wait for others."""
        chains = read_chains(
            lambda n, limits: self._files.read(n, limits, timeout_s), places, keys=self._keys
        )
        answers = {place: self._taken(chain) for place, chain in chains.items()}
        kernels = self._kernels
        for complete in [[*answers]] if kernels is None else kernels.fetch(answers, timeout_s):
            part = {place: answers[place] for place in complete}
            self._count(
                asked=len(part),
                hits=sum(answer.hit for answer in part.values()),
                bytes_read=sum(chains[place].bytes for place in part),
                corrupt=sum(len(answer.damage) for answer in part.values()),
            )
            if part:
                yield part

    def publish(self, record: Record, timeout_s: float, known: Chain | None = None) -> Chain:
        """Write what is known of a record, unless the remote knows it; return its chain after that.

        Nothing is replaced. If another machine writes at the same time, its edition is read and the next one has both. Where a store
        does not compare before it writes, a name is looked at just before: another machine may have written since the chain was
        read. What is written between these two requests may be lost; `overwritten` tells, and who calls it writes it again.

        Args:
            record: The record.
            timeout_s: Limit of one request.
            known: Its chain, as it was read before.

        Raises:
            OSError: It could not be written, or read.
        """
        place = Place(record.environment, record.op, record.digest)
        chain = (
            known if known is not None else self._chain(place, Chain(keys=self._keys), timeout_s)
        )
        mine = self._outgoing(record, chain, timeout_s)
        if chain.next == 0:  # the first editions of a record may have expired, and others not
            late = self._chain(place, Chain(next=EXPIRED, keys=self._keys), timeout_s)
            mine = united(late.edition, mine, self._keys)
        while chain.next < MOST_EDITIONS:
            whole = united(chain.edition, mine, self._keys)
            if not is_news(chain.edition, whole, chain.next):
                return chain
            data = whole.dump()
            if len(data) > MAX_BYTES:  # more than a reader takes
                break
            name = edition_name(place, chain.next)
            if self._is_free(name, timeout_s) and self._created(name, data, timeout_s):
                self._count(sent=1)
                self._receipts.add(place, name, data)
                return replace(chain, edition=whole, next=chain.next + 1)
            taken, chain = chain.next, self._chain(place, chain, timeout_s)
            chain = replace(chain, next=max(chain.next, taken + 1))  # it may have expired meanwhile
        if is_news(chain.edition, united(chain.edition, mine, self._keys), chain.next):
            self._say_full(record, chain)
        return chain

    def overwritten(self, timeout_s: float) -> list[Place]:
        """Read back all editions that were written since the last call; return the records of those that are not there as written.

        Raises:
            OSError: They could not be read; the next call looks at them.
        """
        lost, size = self._receipts.lost(self._files, timeout_s)
        self._count(bytes_read=size)
        return lost

    def _outgoing(self, record: Record, chain: Chain, timeout_s: float) -> Edition:
        """Return what this machine writes of a record, and write the environment and the kernel before, where they are news."""
        alone, environment, kernels = edition_of(record), record.environment, self._kernels
        entry = None if kernels is None else kernels.outgoing(record, chain.edition)
        described = None if kernels is None or entry is None else kernels.described(entry)
        mine = alone
        if entry is not None and described is not None:
            mine = edition_of(record, {entry.digest: described})
        is_news_there = is_news(chain.edition, united(chain.edition, mine, self._keys), chain.next)
        if kernels is None or entry is None or described is None:
            if is_news_there:
                self._publish_environment(environment, timeout_s)
            return mine
        if is_news_there or kernels.has_expired(environment, entry):
            self._publish_environment(environment, timeout_s)
            if not kernels.publish(environment, entry, timeout_s, self._created):
                return alone
        return mine

    def _say_full(self, record: Record, chain: Chain) -> None:
        """Count a record that takes no more, and warn of the first."""
        self._count(full=1)
        size = f"it would have more than {MAX_BYTES >> 20} MiB"
        why = f"it has {chain.next} editions" if chain.next >= MOST_EDITIONS else size
        text = f"{record.describe}: its record in {self._source} is full ({why}); what is new stays in this cache"
        warn_once(logger, text, f"full {self._source}")

    def fetch_environment(self, digest: str, timeout_s: float) -> None:
        """Put the fields of an environment into the cache.

        Raises:
            OSError: They cannot be read.
            ValueError: They are damaged.
        """
        name = environment_name(digest)
        content = self._files.read([name], [MAX_DOCUMENT_BYTES], timeout_s)[0]
        if isinstance(content, OSError):
            raise content
        self._count(bytes_read=len(content))
        self._store.put_environment(parse_environment(content, digest))
        self._environments.add(digest)

    def _chain(self, place: Place, begun: Chain, timeout_s: float) -> Chain:
        """Return the chain of a record from where it is known.

        Raises:
            OSError: It cannot be read.
        """

        def ask(names: Sequence[str], limits: Sequence[int]) -> list[bytes | OSError]:
            return self._files.read(names, limits, timeout_s)

        chain = read_chains(ask, [place], {place: begun}, begun.keys)[place]
        if chain.error is not None:
            raise chain.error
        self._count(bytes_read=chain.bytes - begun.bytes)
        return chain

    def _taken(self, chain: Chain) -> Answer:
        """Put the record of a chain into the cache."""
        if chain.edition is None:
            return Answer(chain, damage=chain.damaged, error=chain.error)
        record = chain.edition.record
        before = self._store.record(record.environment, record.op, record.digest)
        hit = before is None or _is_more(before, record)
        if hit:
            self._store.add_record(record)
            self._count(saved_ms=saved_ms(before, record))
        return Answer(chain, hit, chain.damaged, error=chain.error)

    def _publish_environment(self, digest: str, timeout_s: float) -> None:
        fields = None if digest in self._environments else self._store.environment(digest)
        if fields is not None:
            described = document.dump(environment_document(digest, fields))
            self._created(environment_name(digest), described, timeout_s)
            self._environments.add(digest)

    def _is_free(self, name: str, timeout_s: float) -> bool:
        """Return whether no object has a name.

        Raises:
            OSError: That could not be seen.
        """
        there = self._files.read([name], [0], timeout_s)[0]
        if isinstance(there, OSError) and there.errno != errno.EFBIG:
            if isinstance(there, FileNotFoundError):
                return True
            raise there
        return False

    def _created(self, name: str, data: bytes, timeout_s: float) -> bool:
        """Write an object; return False if another one has this name.

        It is read back. An attempt that failed may have written it, and where a store does not compare before it writes,
        another machine may have replaced it.

        Raises:
            WriteRefusedError: Nothing may be written.
            OSError: It could not be written, or read back.
        """
        failure: OSError | None = None
        try:
            self._files.create(name, data, timeout_s)
        except FileExistsError:
            pass
        except OSError as error:
            refused = isinstance(error, PermissionError) or error.errno in _MAY_NOT_WRITE
            failure = WriteRefusedError(f"{type(error).__name__}: {error}") if refused else error
        else:
            self._count(bytes_written=len(data))
        there = self._files.read([name], [len(data)], timeout_s)[0]
        if isinstance(there, OSError):
            if failure is None and there.errno == errno.EFBIG:
                return False
            raise failure or there
        self._count(bytes_read=len(there))
        return there == data

    def _count(self, **amounts: float) -> None:
        with self._guard:
            self._amounts += Amounts(**amounts)  # pyright: ignore[reportArgumentType]


def is_worth_sending(record: Record) -> bool:
    """Return True if a record says what was measured; others say why there was nothing to measure."""
    return any(measured.status == "ok" for measured in record.candidates.values())


def saved_ms(before: Record | None, record: Record) -> float:
    """Return milliseconds of compiling and of samples behind those candidates of a record that another one lacks."""
    known: Iterable[str] = before.candidates if before is not None else ()
    rows = [row for name, row in record.candidates.items() if name not in known]
    total = sum(1e3 * (row.compile_s or 0.0) + sum(row.samples_ms) for row in rows)
    return min(total, _MOST_SAVED_MS)


def _is_more(before: Record, record: Record) -> bool:
    old, new = edition_of(before), edition_of(combine(before, record))
    return is_news(old, new)
