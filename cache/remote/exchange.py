"""What goes to and comes from a remote: one call after the other, each within a limit of time."""

from __future__ import annotations

import errno
import hashlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.entry import ENTRY, KernelEntry
from inductor_plugin.cache.guard import MAX_DOCUMENT_BYTES, read
from inductor_plugin.cache.merge import combine
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.records import environment_document, parse_environment
from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cache.remote.chain import Chain, read_chains
from inductor_plugin.cache.remote.descriptions import signers
from inductor_plugin.cache.remote.edition import MAX_BYTES, Edition, edition_of, is_news, united
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import (
    MOST_EDITIONS,
    Place,
    edition_name,
    environment_name,
    file_name,
)
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.transfer.kernels import admitted, outgoing_fields
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.errors import CacheError, TrustError, warn_once

logger = logging.getLogger(__name__)

_RATE_BYTES_S = 1 << 20
"""A file may take a second more for each of these: it is uploaded, or fetched, behind a compile."""

_MOST_BUILDS = 3
"""Builds of one kernel whose files are asked for, each where those of the one before are gone."""

_MOST_SAVED_MS = 1e9
"""Time of one record up to which it counts as saved, 11 days: no true one has more, and counters are whole numbers."""


@dataclass(frozen=True)
class Answer:
    """What a remote said of one record.

    Attributes:
        chain: Its editions.
        hit: Whether it knew more than the cache.
        damage: Damaged objects, and why.
        refused: Why its winner's kernel may not run here, empty if it may.
        error: Why something could not be read; None if it could.
    """

    chain: Chain
    hit: bool = False
    damage: tuple[str, ...] = ()
    refused: str = ""
    error: OSError | None = None


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
            trusted: Whether kernels that nobody has signed are fetched, too.
            signer: Signs kernels that were built in the cache.
            source: The remote's URL, kept with each kernel that comes from it.
        """
        self._files = files
        self._store = store
        self._kernels = kernels
        self._trusted = trusted
        self._signer = signer
        self._source = source
        own = () if signer is None else (signer.public,)
        self._keys = frozenset((*store.trust.counting(), *own))
        self._guard = threading.Lock()
        self._amounts = Amounts()

    def take_amounts(self) -> Amounts:
        """Return what has gone over the line since the last call."""
        with self._guard:
            amounts, self._amounts = self._amounts, Amounts()
        return amounts

    def fetch(self, places: Sequence[Place], timeout_s: float) -> dict[Place, Answer]:
        """Put what the remote knows of records, and their winners' kernels, into the cache.

        What arrives is checked as an import is: size, checksum, depth, type of every field, and that it is what was asked for.
        """
        chains = read_chains(
            lambda n, limits: self._files.read(n, limits, timeout_s), places, keys=self._keys
        )
        answers = {place: self._taken(chain) for place, chain in chains.items()}
        if self._kernels:
            self._fetch_kernels(answers, timeout_s)
        self._count(
            asked=len(answers),
            hits=sum(answer.hit for answer in answers.values()),
            bytes_read=sum(chain.bytes for chain in chains.values()),
            corrupt=sum(len(answer.damage) for answer in answers.values()),
        )
        return answers

    def publish(self, record: Record, timeout_s: float, known: Chain | None = None) -> Chain:
        """Write what is known of a record, unless the remote knows it; return its chain after that.

        Nothing is replaced. If another machine writes at the same time, its edition is read and the next one has both.

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
        entry = self._winner(record, chain.edition) if self._kernels else None
        fields = {} if entry is None else {entry.digest: self._outgoing(entry)}
        mine = edition_of(record, fields)
        if is_news(chain.edition, united(chain.edition, mine, self._keys), chain.next):
            self._publish_environment(record.environment, timeout_s)
            if entry is not None:
                self._publish_files(record.environment, entry, timeout_s)
        while chain.next < MOST_EDITIONS:
            whole = united(chain.edition, mine, self._keys)
            if not is_news(chain.edition, whole, chain.next):
                return chain
            data = whole.dump()
            if len(data) > MAX_BYTES:  # nobody would read it
                break
            if self._created(edition_name(place, chain.next), data, timeout_s):
                self._count(sent=1)
                return replace(chain, edition=whole, next=chain.next + 1)
            taken, chain = chain.next, self._chain(place, chain, timeout_s)
            chain = replace(chain, next=max(chain.next, taken + 1))  # it may have expired meanwhile
        if is_news(chain.edition, united(chain.edition, mine, self._keys), chain.next):
            self._say_full(record, chain)
        return chain

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

    def _chain(self, place: Place, begun: Chain, timeout_s: float) -> Chain:
        """Return the chain of a record from where it is known.

        Raises:
            OSError: It cannot be read.
        """

        def ask(names: Sequence[str], limits: Sequence[int]) -> list[bytes | OSError]:
            return self._files.read(names, limits, timeout_s)

        chain = read_chains(ask, [place], {place: begun})[place]
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

    def _fetch_kernels(self, answers: dict[Place, Answer], timeout_s: float) -> None:
        """Fetch the winners' kernels that the cache lacks, all files together; of a kernel whose files are gone the next build."""
        places = [*answers]
        for build in range(_MOST_BUILDS):
            wanted: dict[Place, KernelEntry] = {}
            for place in places:
                answers[place], entry = self._wanted(place, answers[place], build)
                if entry is not None:
                    wanted[place] = entry
            contents = self._contents(wanted, timeout_s)
            places = []
            for place, entry in wanted.items():
                answers[place], is_settled = self._placed(place, entry, contents, answers[place])
                if not is_settled:
                    places.append(place)

    def _wanted(
        self, place: Place, answer: Answer, build: int
    ) -> tuple[Answer, KernelEntry | None]:
        """Return a build of the winner's kernel if the cache lacks that kernel and may have the build."""
        edition = answer.chain.edition
        try:
            entry = self._missing(edition, build) if edition is not None else None
            if entry is not None:
                # Before its files are fetched: their checksums are a part of what is signed.
                (entry,) = admitted(self._store, [entry], self._source, trusted=self._trusted)
        except TrustError as error:
            if build:  # the first one may run here, and its files are gone
                return answer, None
            self._count(refused=1)
            return replace(answer, refused=str(error)), None
        except (ValueError, RecursionError) as error:
            damage = (*answer.damage, f"{edition_name(place, 0)}: {error}")
            return replace(answer, damage=damage), None
        return answer, entry

    def _contents(
        self, wanted: Mapping[Place, KernelEntry], timeout_s: float
    ) -> dict[str, bytes | OSError]:
        """Return the files of kernels by their names."""
        names: dict[str, int] = {}
        for place, entry in wanted.items():
            for sha256 in entry.files.values():
                names[file_name(place.environment, sha256)] = entry.bytes
        if not names:
            return {}
        limit_s = timeout_s + sum(entry.bytes for entry in wanted.values()) / _RATE_BYTES_S
        return dict(zip(names, self._files.read([*names], [*names.values()], limit_s), strict=True))

    def _placed(
        self,
        place: Place,
        entry: KernelEntry,
        contents: Mapping[str, bytes | OSError],
        answer: Answer,
    ) -> tuple[Answer, bool]:
        """Publish a fetched kernel in the cache, if each file is the one that the edition names; False if another build may be."""
        files: dict[str, bytes] = {}
        for name, sha256 in entry.files.items():
            content = contents[file_name(place.environment, sha256)]
            if isinstance(content, FileNotFoundError):
                return answer, False  # it has expired
            if isinstance(content, OSError):
                return replace(answer, error=content), True
            if hashlib.sha256(content).hexdigest() != sha256:
                what = (
                    f"{file_name(place.environment, sha256)}: its checksum does not match its name"
                )
                return replace(answer, damage=(*answer.damage, what)), False
            files[name] = content
        try:
            self._store.put_kernel(entry.key, files, entry.resources, entry.further)
        except CacheError as error:
            return replace(answer, error=OSError(str(error))), True
        self._count(kernels=1, bytes_read=sum(map(len, files.values())))
        return answer, True

    def _missing(self, edition: Edition, build: int) -> KernelEntry | None:
        """Return a build of the kernel of an edition's winner, None if there is none, or the cache has that kernel."""
        digest = _winners_kernel(edition.record)
        if digest is None or self._store.kernel(digest) is not None:
            return None
        return edition.kernel(digest, build)

    def _winner(self, record: Record, edition: Edition | None) -> KernelEntry | None:
        """Return the kernel of a record's winner that the remote lacks, or lacks signed by this machine; None if it lacks none."""
        digest = _winners_kernel(record)
        if digest is None:
            return None
        there = edition.descriptions(digest) if edition is not None else ()
        if not there:
            return self._store.kernel(digest)
        if self._signer is None:
            return None
        # What lies there without a true signature serves fewer machines than one that is signed, and each key other ones.
        known = signers(there)
        entry = None if self._signer.public in known else self._store.kernel(digest)
        is_own = entry is not None and entry.taken is None
        return entry if is_own or not known else None

    def _outgoing(self, entry: KernelEntry) -> dict[str, Any]:
        """Return the fields of a kernel that an edition has."""
        return outgoing_fields(document.load(read(entry.folder / ENTRY)), entry, self._signer)

    def _publish_environment(self, digest: str, timeout_s: float) -> None:
        fields = self._store.environment(digest)
        if fields is not None:
            described = document.dump(environment_document(digest, fields))
            self._created(environment_name(digest), described, timeout_s)

    def _publish_files(self, environment: str, entry: KernelEntry, timeout_s: float) -> None:
        """Write the files of a kernel that are not there yet: their names are their checksums.

        Other bytes under such a name are a part of the file, left by a writer that was killed where writing takes several
        steps; nobody could use them, so that they are replaced.
        """
        for name, sha256 in entry.files.items():
            data = entry.path(name).read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                continue  # it was built again meanwhile; who misses it builds it
            limit_s = timeout_s + len(data) / _RATE_BYTES_S
            if not self._created(file_name(environment, sha256), data, limit_s):
                self._files.replace(file_name(environment, sha256), data, limit_s)

    def _created(self, name: str, data: bytes, timeout_s: float) -> bool:
        """Write an object; return False if another one has this name.

        It is read back. An attempt that failed may have written it, and where a store does not compare before it writes,
        another machine may have replaced it.

        Raises:
            OSError: It could not be written, or read back.
        """
        failure: OSError | None = None
        try:
            self._files.create(name, data, timeout_s)
        except FileExistsError:
            pass
        except OSError as error:
            failure = error
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


def _winners_kernel(record: Record) -> str | None:
    """Return the digest of the compiled kernel of a record's winner, None if it has none."""
    decision = record.valid_decision
    winner = record.candidates.get(decision.winner) if decision is not None else None
    return winner.kernel if winner is not None else None
