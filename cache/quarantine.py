"""Candidates that misbehaved: their failure, when, and how often."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.document import moment, table, text, typed, unknown, whole
from inductor_plugin.cache.folder import Folder, Listing, is_damage
from inductor_plugin.cache.guard import MISSING, is_folder, read
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.cache.layout import part
from inductor_plugin.cache.lock import HeldLock
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

_LOCK_S = 30.0

MISHAPS = frozenset({"hung", "crashed", "out_of_memory", "sticky_error"})
"""Failures that a busy machine, a full memory or another process may have caused."""

CONDEMNING = 2
"""Mishaps alone and with default limits after which a candidate is not tried again."""

_MISHAPS = "mishaps"


@dataclass(frozen=True)
class Quarantined:
    """One candidate that misbehaved.

    Attributes:
        environment: Digest of the environment it misbehaved in.
        candidate: Its name in the quarantine.
        status: The failure: ``hung``, ``crashed``, ``wrong`` ...
        reason: One line for people.
        created: Time of the first failure, in seconds since 1970.
        updated: Time of the last failure, in seconds since 1970.
        count: Number of failures.
        fields: All recorded details.
        extra: Fields of a newer version; they are written back as they were read.
    """

    environment: str
    candidate: str
    status: str
    reason: str
    created: float
    updated: float
    count: int
    fields: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def condemned(self) -> bool:
        """True if the candidate is not tried again; see `is_condemned`."""
        return is_condemned(self.status, self.mishaps)

    @property
    def mishaps(self) -> object:
        """Number of mishaps, alone and with default limits; all failures of an entry that does not count them."""
        return self.fields.get(_MISHAPS, self.count)

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON values, the unknown fields among them."""
        fields = asdict(self)
        extra = fields.pop("extra")
        return {**fields, **unknown(extra, fields)}

    def failure(self) -> tuple[str, str] | None:
        """Return the failed candidate, and the prefix of the digest of its problem.

        None if the entry's name is not that of `quarantine_name`, a candidate on a problem.
        """
        candidate = str(self.fields.get("candidate", ""))
        start = self.candidate.removeprefix(f"{candidate}-")
        return (candidate, start) if candidate and start and start != self.candidate else None


def quarantine_name(candidate_id: str, problem_digest: str) -> str:
    """Return the quarantine's name for a candidate on a problem.

    A kernel that hangs or runs out of memory on one shape may be the best on another.
    """
    return f"{candidate_id}-{problem_digest[:12]}"


def is_condemned(status: str, mishaps: object) -> bool:
    """Return True if a candidate is not tried again. Pure.

    What a candidate did by itself (``wrong``, ``red_zone``, ``raised``, ``compile_failed`` ...) condemns
    it at once; a mishap condemns it when it has happened twice, alone and with default limits.

    Args:
        status: The last failure.
        mishaps: Number of mishaps, alone and with default limits. Anything else than a number condemns.
    """
    if status not in MISHAPS or isinstance(mishaps, bool) or not isinstance(mishaps, int):
        return True
    return not 0 <= mishaps < CONDEMNING


class QuarantineShelf:
    """The quarantine of one cache directory."""

    def __init__(self, folder: Folder) -> None:
        """Keep the entries in ``folder``."""
        self._folder = folder
        self._memory: dict[tuple[str, str], Quarantined] = {}
        self._listing = Listing()

    def put(
        self, environment: str, candidate: str, fields: Mapping[str, Any], *, counts: bool = True
    ) -> Quarantined:
        """Record that a candidate misbehaved, and return its entry.

        Args:
            environment: Digest of the environment.
            candidate: Its name in the quarantine.
            fields: Details; they should have ``status`` and ``reason``.
            counts: Whether a mishap counts towards `Quarantined.condemned`: the candidate was alone, and
                no limit was below its default.
        """
        path = self._folder.layout.quarantine(environment, candidate)
        if self._folder.degraded is None:
            try:
                with self._lock(environment):
                    entry = self._again(environment, candidate, fields, counts=counts)
                    if self._is_replaceable(path) and self._write(entry):
                        self._folder.forget_damage(path)
                        self._memory.pop((environment, candidate), None)
                        return entry
            except CacheError as error:
                _warn_of_unwritten(candidate, error)
        entry = self._again(environment, candidate, fields, counts=counts)
        self._memory[environment, candidate] = entry
        self._folder.count_unwritten()
        return entry

    def add(self, entry: Quarantined) -> bool:
        """Add an entry of another cache; return False if the candidate's own says as much.

        Where it cannot be written, it is kept in memory.
        """
        name = entry.environment, entry.candidate
        path = self._folder.layout.quarantine(*name)
        if self._folder.degraded is None:
            try:
                with self._lock(entry.environment):
                    own = self.get(*name)
                    if own is not None and _rank(own) >= _rank(entry):
                        return False
                    if self._is_replaceable(path) and self._write(entry):
                        self._folder.forget_damage(path)
                        self._memory.pop(name, None)
                        return True
            except CacheError as error:
                _warn_of_unwritten(entry.candidate, error)
        own = self.get(*name)
        if own is not None and _rank(own) >= _rank(entry):
            return False
        self._memory[name] = entry
        self._folder.count_unwritten()
        return True

    def _lock(self, environment: str) -> HeldLock:
        """Return the lock of what is in quarantine in an environment."""
        return self._folder.lock(f"quarantine-{environment[:8]}", _LOCK_S)

    def _write(self, entry: Quarantined) -> bool:
        path = self._folder.layout.quarantine(entry.environment, entry.candidate)
        return self._folder.write(path, {"format": SCHEMA, **entry.plain()})

    def _is_replaceable(self, path: Path) -> bool:
        """Return False for a file that cannot be read or is another version's; it may be sound."""
        try:
            parse_quarantined(read(path))
        except MISSING:
            return True
        except (OSError, ValueError) as error:
            return is_damage(error)
        return True

    def get(self, environment: str, candidate: str) -> Quarantined | None:
        """Return a candidate's entry, or None; one that is not `condemned` may be tried."""
        if self._memory and (environment, candidate) in self._memory:
            return self._memory[environment, candidate]
        path = self._folder.layout.quarantine(environment, candidate)
        return self._folder.parsed(path, parse_quarantined)

    def among(self, environment: str, candidates: Iterable[str]) -> dict[str, Quarantined]:
        """Return the entries of those candidates that have one; only their files are opened."""
        folder = self._folder.layout.quarantine(environment, "any").parent
        names = self._listing.names(folder)
        entries: dict[str, Quarantined] = {}
        for candidate in candidates:
            if (
                names is not None
                and f"{part(candidate)}.json" not in names
                and (environment, candidate) not in self._memory
            ):
                continue
            entry = self.get(environment, candidate)
            if entry is not None:
                entries[candidate] = entry
        return entries

    def release(self, environment: str, candidate: str) -> bool:
        """Let a candidate be tried again; return False if it was not in quarantine, or stays there."""
        self._folder.check_may_change()
        removed = self._memory.pop((environment, candidate), None) is not None
        try:
            with self._lock(environment):  # a process that counts one more mishap has read the file
                self._folder.layout.quarantine(environment, candidate).unlink()
        except MISSING:
            return removed
        except CacheError as error:
            logger.warning("inductor-plugin: %s stays in quarantine: %s", candidate, error)
            return removed
        except OSError as error:
            self._folder.degrade(error)
            return removed
        return True

    def everything(self) -> Iterator[Quarantined]:
        """Yield all entries; damaged ones are reported and skipped."""
        for path in quarantine_files(self._folder.layout.quarantined):
            entry = self._folder.parsed(path, parse_quarantined)
            if entry is not None and (entry.environment, entry.candidate) not in self._memory:
                yield entry
        yield from list(self._memory.values())

    def _again(
        self, environment: str, candidate: str, fields: Mapping[str, Any], *, counts: bool
    ) -> Quarantined:
        before = self.get(environment, candidate)
        now = round(time.time(), 3)
        plain = document.plain(dict(fields))
        status = str(fields.get("status", "failed"))
        if status in MISHAPS and not (before and before.condemned):
            mishaps = before.mishaps if before else 0
            plain[_MISHAPS] = (mishaps if isinstance(mishaps, int) else 0) + int(counts)
        return Quarantined(
            environment=environment,
            candidate=candidate,
            status=status,
            reason=str(fields.get("reason", "")),
            created=before.created if before else now,
            updated=now,
            count=before.count + 1 if before else 1,
            fields=plain,
            extra=before.extra if before else {},
        )


def _warn_of_unwritten(candidate: str, error: CacheError) -> None:
    logger.warning(
        "inductor-plugin: the quarantine of %s is kept in memory only: %s", candidate, error
    )


def _rank(entry: Quarantined) -> tuple[bool, int, float, int, str]:
    """Return the rank of an entry among those of several caches for one candidate: the highest is kept, in any order. Pure.

    One that condemns comes first, then the one with more mishaps, then the later.
    """
    mishaps = entry.mishaps if isinstance(entry.mishaps, int) else 0
    text = json.dumps(entry.plain(), sort_keys=True)
    return entry.condemned, mishaps, entry.updated, entry.count, text


def parse_quarantined(data: bytes, path: Path | None = None) -> Quarantined:
    """Return the entry in a file's bytes; every field's type was checked.

    Args:
        data: The bytes.
        path: The file, whose name must be the entry's; None if it lies elsewhere.

    Raises:
        ForeignError: The file is of another format.
        ValueError: It is damaged, or has another candidate's name.
    """
    fields = document.load(data)
    document.check_format(fields, SCHEMA)
    try:
        values = typed(fields, _QUARANTINED)
    except ValueError as error:
        raise ValueError(f"it is not a quarantine entry: {error}") from error
    entry = Quarantined(**values, extra=unknown(fields, {"format", *_QUARANTINED}))
    name = (part(entry.environment), part(entry.candidate))
    if path is not None and name != (path.parent.name, path.stem):
        raise ValueError(f"it lies under another name ({entry.candidate})")
    return entry


def quarantine_files(quarantined: Path) -> list[Path]:
    """Return the files of the quarantine, sorted; empty if the folder does not exist."""
    return sorted(quarantined.glob("*/*.json")) if is_folder(quarantined) else []


_QUARANTINED: dict[str, Callable[[Any], Any]] = {
    "environment": text,
    "candidate": text,
    "status": text,
    "reason": text,
    "created": moment,
    "updated": moment,
    "count": whole,
    "fields": table,
}
