"""Candidates that misbehaved: their failure, when, and how often."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.folder import MISSING, Folder
from inductor_plugin.cache.key import SCHEMA
from inductor_plugin.errors import CacheError

logger = logging.getLogger(__name__)

_LOCK_S = 30.0


@dataclass(frozen=True)
class Quarantined:
    """One candidate that is not tried again.

    Attributes:
        environment: Digest of the environment it misbehaved in.
        candidate: Its name in the quarantine.
        status: The failure: ``hung``, ``crashed``, ``wrong`` ...
        reason: One line for people.
        created: Time of the first failure, in seconds since 1970.
        updated: Time of the last failure, in seconds since 1970.
        count: Number of failures.
        fields: All recorded details.
    """

    environment: str
    candidate: str
    status: str
    reason: str
    created: float
    updated: float
    count: int
    fields: Mapping[str, Any]

    def failure(self) -> tuple[str, str] | None:
        """Return the failed candidate, and the prefix of the digest of its problem.

        None if the entry's name is not ``CANDIDATE-PREFIX``, a candidate on a problem.
        """
        candidate = str(self.fields.get("candidate", ""))
        start = self.candidate.removeprefix(f"{candidate}-")
        return (candidate, start) if candidate and start and start != self.candidate else None


class QuarantineShelf:
    """The quarantine of one cache directory."""

    def __init__(self, folder: Folder) -> None:
        """Keep the entries in ``folder``."""
        self._folder = folder
        self._memory: dict[tuple[str, str], Quarantined] = {}

    def put(self, environment: str, candidate: str, fields: Mapping[str, Any]) -> None:
        """Record that a candidate misbehaved; ``fields`` should have ``status`` and ``reason``."""
        if self._folder.degraded is None:
            try:
                with self._folder.lock(f"quarantine-{environment[:8]}", _LOCK_S):
                    entry = self._again(environment, candidate, fields)
                    path = self._folder.layout.quarantine(environment, candidate)
                    if self._folder.write(path, {"format": SCHEMA, **asdict(entry)}):
                        self._folder.forget_damage(path)
                        return
            except CacheError as error:
                logger.warning(
                    "inductor-plugin: the quarantine of %s is kept in memory only: %s",
                    candidate,
                    error,
                )
        self._memory[environment, candidate] = self._again(environment, candidate, fields)

    def add(self, entry: Quarantined) -> bool:
        """Add an entry of another cache; return False if the candidate has one already."""
        if self.get(entry.environment, entry.candidate) is not None:
            return False
        path = self._folder.layout.quarantine(entry.environment, entry.candidate)
        return self._folder.write(path, {"format": SCHEMA, **asdict(entry)})

    def get(self, environment: str, candidate: str) -> Quarantined | None:
        """Return a candidate's entry, or None if it may be tried."""
        if self._memory and (environment, candidate) in self._memory:
            return self._memory[environment, candidate]
        return self._read(self._folder.layout.quarantine(environment, candidate))

    def release(self, environment: str, candidate: str) -> bool:
        """Let a candidate be tried again; return False if it was not in quarantine."""
        removed = self._memory.pop((environment, candidate), None) is not None
        try:
            self._folder.layout.quarantine(environment, candidate).unlink()
        except MISSING:
            return removed
        except OSError as error:
            self._folder.degrade(str(error))
            return removed
        return True

    def everything(self) -> Iterator[Quarantined]:
        """Yield all entries; damaged ones are reported and skipped."""
        for path in quarantine_files(self._folder.layout.quarantined):
            entry = self._read(path)
            if entry is not None and (entry.environment, entry.candidate) not in self._memory:
                yield entry
        yield from list(self._memory.values())

    def _again(self, environment: str, candidate: str, fields: Mapping[str, Any]) -> Quarantined:
        before = self.get(environment, candidate)
        now = round(time.time(), 3)
        return Quarantined(
            environment=environment,
            candidate=candidate,
            status=str(fields.get("status", "failed")),
            reason=str(fields.get("reason", "")),
            created=before.created if before else now,
            updated=now,
            count=before.count + 1 if before else 1,
            fields=document.plain(dict(fields)),
        )

    def _read(self, path: Path) -> Quarantined | None:
        try:
            return parse_quarantined(path.read_bytes())
        except MISSING:
            return None
        except (OSError, ValueError) as error:
            self._folder.report_damage(path, str(error))
            return None


def parse_quarantined(data: bytes) -> Quarantined:
    """Return the entry in a file's bytes.

    Raises:
        ValueError: The file is damaged or of another format.
    """
    fields = document.load(data)
    if fields.pop("format", None) != SCHEMA:
        raise ValueError(f"it is not of format {SCHEMA}")
    try:
        return Quarantined(**fields)
    except TypeError as error:
        raise ValueError(f"it is not a quarantine entry: {error}") from error


def quarantine_files(quarantined: Path) -> list[Path]:
    """Return the files of the quarantine, sorted; empty if the folder does not exist."""
    return sorted(quarantined.glob("*/*.json")) if quarantined.is_dir() else []
