"""Winners' kernels on their way between a cache and a remote."""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.entry import ENTRY, KernelEntry
from inductor_plugin.cache.guard import read
from inductor_plugin.cache.record import Record
from inductor_plugin.cache.remote.answer import Answer
from inductor_plugin.cache.remote.descriptions import signers
from inductor_plugin.cache.remote.edition import Edition
from inductor_plugin.cache.remote.files import Files
from inductor_plugin.cache.remote.name import Place, edition_name, file_name
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.transfer.kernels import admitted, outgoing_fields
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.errors import CacheError, TrustError

logger = logging.getLogger(__name__)

_MOST_BUILDS = 3
"""Builds of one kernel whose files are asked for, each where those of the build before are gone."""
_PART_BYTES = 64 << 20
"""Kernels that are fetched together have so many bytes at most, unless it is a single one: they are in memory at once."""
_RATE_BYTES_S = 1 << 20
"""A file may take a second more for each of these: it is uploaded, or fetched, in the background of a compile."""


class KernelTraffic:
    """Carries the kernels of winners; used by any thread that has an exchange."""

    def __init__(
        self,
        files: Files,
        store: Store,
        count: Callable[..., None],
        *,
        trusted: bool,
        signer: Signer | None,
        source: str,
    ) -> None:
        """Carry kernels between a remote and a cache.

        Args:
            files: The remote.
            store: The cache; its trust says whose signatures count.
            count: Adds to `Amounts`, by the names of their fields.
            trusted: Whether unsigned kernels are fetched, too.
            signer: Signs kernels that were built in the cache.
            source: The remote's URL, kept with each kernel that comes from it.
        """
        self._files = files
        self._store = store
        self._count = count
        self._trusted = trusted
        self._signer = signer
        self._source = source
        self._expired: set[tuple[str, str]] = set()

    def fetch(self, answers: dict[Place, Answer], timeout_s: float) -> Iterator[list[Place]]:
        """Fetch the winners' kernels that the cache lacks, in parts; of several builds the next where one has expired.

        Args:
            answers: What the remote has answered about each record; completed here.
            timeout_s: Limit of one request, beside the time for its bytes.

        Yields:
            Records whose answers are complete: those first that lack no kernel, before anything is fetched.
        """
        left: list[Place] = [*answers]
        number = 0
        while left and number < _MOST_BUILDS:
            wanted = self._wanted(answers, left, number)
            yield [place for place in left if place not in wanted]
            left, number = [], number + 1
            for part in _parts(wanted):
                self._fetch_part(answers, {place: wanted[place] for place in part}, timeout_s)
                left += [place for place in part if answers[place].expired]
                yield [place for place in part if not answers[place].expired]
        yield left

    def outgoing(self, record: Record, edition: Edition | None) -> KernelEntry | None:
        """Return the kernel of a record's winner that the remote lacks, or lacks signed by this machine; None if it lacks none."""
        digest = winners_kernel(record)
        if digest is None:
            return None
        there = edition.descriptions(digest) if edition is not None else ()
        if not there or (record.environment, digest) in self._expired:
            return self._store.kernel(digest)
        if self._signer is None:
            return None
        # What lies there without a true signature serves fewer machines than one that is signed, and each key other ones.
        known = signers(there)
        entry = None if self._signer.public in known else self._store.kernel(digest)
        is_own = entry is not None and entry.taken is None
        return entry if is_own or not known else None

    def has_expired(self, environment: str, entry: KernelEntry) -> bool:
        """Return whether files of a kernel were missing when it was asked for, so that they are written whatever is known of it."""
        return (environment, entry.digest) in self._expired

    def described(self, entry: KernelEntry) -> dict[str, Any] | None:
        """Return the fields of a kernel that an edition has; None if this cache cannot read it any more."""
        try:
            return outgoing_fields(document.load(read(entry.folder / ENTRY)), entry, self._signer)
        except (OSError, ValueError, RecursionError) as error:
            logger.debug("kernel %s is not sent: %s", entry.digest, error)
            return None

    def publish(
        self,
        environment: str,
        entry: KernelEntry,
        timeout_s: float,
        created: Callable[[str, bytes, float], bool],
    ) -> bool:
        """Write the files of a kernel that are not there yet: their names are their checksums.

        Other bytes under such a name are a part of the file, left by a writer that was killed where writing takes several
        steps; no reader could use them, so that they are replaced.

        Args:
            environment: The environment whose records name it.
            entry: The kernel.
            timeout_s: Limit of one request.
            created: Writes an object; returns False if another one has its name.

        Returns:
            Whether all are there; False if this cache does not have them any more, or cannot read them.

        Raises:
            OSError: One could not be written.
        """
        for name, sha256 in entry.files.items():
            try:
                data = entry.path(name).read_bytes()
            except OSError as error:  # of this cache, and not of the remote
                logger.debug("kernel %s is not sent: %s", entry.digest, error)
                return False
            if hashlib.sha256(data).hexdigest() != sha256:
                return False  # it was built again meanwhile; who misses it builds it
            limit_s = timeout_s + len(data) / _RATE_BYTES_S
            if not created(file_name(environment, sha256), data, limit_s):
                self._files.replace(file_name(environment, sha256), data, limit_s)
        self._expired.discard((environment, entry.digest))
        return True

    def _wanted(
        self, answers: dict[Place, Answer], places: Sequence[Place], number: int
    ) -> dict[Place, KernelEntry]:
        """Return one build of each kernel that the cache lacks and may take; complete the answers of the others."""
        wanted: dict[Place, KernelEntry] = {}
        for place in places:
            answer = answers[place]
            edition = answer.chain.edition
            try:
                entry = self._missing(edition, number) if edition is not None else None
                if entry is not None:
                    # Before its files are fetched: their checksums are a part of what is signed.
                    (entry,) = admitted(self._store, [entry], self._source, trusted=self._trusted)
            except TrustError as error:
                if number:  # the first build may run here, and its files are gone
                    continue
                answers[place] = replace(answer, refused=str(error))
                self._count(refused=1)
                continue
            except (ValueError, RecursionError) as error:
                damage = (*answer.damage, f"{edition_name(place, 0)}: {error}")
                answers[place] = replace(answer, damage=damage)
                continue
            if entry is not None:
                wanted[place] = entry
        return wanted

    def _fetch_part(
        self, answers: dict[Place, Answer], part: Mapping[Place, KernelEntry], timeout_s: float
    ) -> None:
        """Fetch the files of some kernels together, and complete the answers."""
        names: dict[str, int] = {}
        for place, entry in part.items():
            for sha256 in entry.files.values():
                names[file_name(place.environment, sha256)] = entry.bytes
        size = sum(dict(_size(*each) for each in part.items()).values())
        limit_s = timeout_s + size / _RATE_BYTES_S
        read_files = self._files.read([*names], [*names.values()], limit_s)
        contents = dict(zip(names, read_files, strict=True))
        for place, entry in part.items():
            answers[place] = self._placed(place, entry, contents, answers[place])

    def _placed(
        self,
        place: Place,
        entry: KernelEntry,
        contents: Mapping[str, bytes | OSError],
        answer: Answer,
    ) -> Answer:
        """Publish a fetched kernel in the cache, if each file is the one that the edition names."""
        files: dict[str, bytes] = {}
        for name, sha256 in entry.files.items():
            content = contents[file_name(place.environment, sha256)]
            if isinstance(content, FileNotFoundError):
                self._expired.add((place.environment, entry.digest))
                return replace(answer, expired=True)
            if isinstance(content, OSError) and content.errno != errno.EFBIG:
                return replace(answer, expired=False, error=content)
            # One that is larger than the edition says is damage, too.
            if isinstance(content, OSError) or hashlib.sha256(content).hexdigest() != sha256:
                what = (
                    f"{file_name(place.environment, sha256)}: its checksum does not match its name"
                )
                # As one that has expired: the next machine that builds it writes it again.
                self._expired.add((place.environment, entry.digest))
                return replace(answer, expired=True, damage=(*answer.damage, what))
            files[name] = content
        try:
            self._store.put_kernel(entry.key, files, entry.resources, entry.further)
        except CacheError as error:
            return replace(answer, expired=False, unkept=str(error))
        self._expired.discard((place.environment, entry.digest))
        self._count(kernels=1, bytes_read=sum(map(len, files.values())))
        return replace(answer, expired=False)

    def _missing(self, edition: Edition, number: int) -> KernelEntry | None:
        """Return a build of the kernel of an edition's winner that the cache lacks; None if it lacks none, or there are fewer."""
        digest = winners_kernel(edition.record)
        if digest is None or self._store.kernel(digest) is not None:
            return None
        return edition.kernel(digest, number)


_Files = tuple[str, ...]


def _size(place: Place, entry: KernelEntry) -> tuple[_Files, int]:
    """Return the files of a kernel, the same for each record that it wins, and their bytes."""
    return (place.environment, *sorted(entry.files.values())), entry.bytes


def _parts(wanted: Mapping[Place, KernelEntry]) -> Iterator[list[Place]]:
    """Yield the records of kernels that are fetched together, small ones first; those of the same files are in one part."""
    part: list[Place] = []
    sizes: dict[_Files, int] = {}
    for place in sorted(wanted, key=lambda place: _size(place, wanted[place])[::-1]):
        files, size = _size(place, wanted[place])
        if sizes and files not in sizes and sum(sizes.values()) + size > _PART_BYTES:
            yield part
            part, sizes = [], {}
        part.append(place)
        sizes[files] = size
    if part:
        yield part


def winners_kernel(record: Record) -> str | None:
    """Return the digest of the compiled kernel of a record's winner, None if it has none."""
    decision = record.valid_decision
    winner = record.candidates.get(decision.winner) if decision is not None else None
    return winner.kernel if winner is not None else None
