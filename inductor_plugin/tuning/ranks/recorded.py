"""The pin file that the ranks of a job record together: each adds what it has compiled, as the stages of a pipeline do."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache.transfer.draft import draft_of, exclusive
from inductor_plugin.errors import CacheError, warn_once
from inductor_plugin.tuning.pins.document import dump, parse
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import PinFile
from inductor_plugin.tuning.ranks.job import Job, has_no_store
from inductor_plugin.tuning.ranks.store import StoreLostError

logger = logging.getLogger(__name__)

_GUARD = threading.Lock()
_RECORDINGS: Counter[tuple[str, Path]] = Counter()
"""How many blocks with a file a rank has begun: in the second one, ranks replace what they have recorded in the first one."""
_LEAST_S, _EACH_S = 60.0, 0.5
"""Seconds in which the ranks of a job write one file, at least and for each rank: with 500 pins, a rank's turn takes 0.2 s."""


@dataclass(frozen=True)
class Begun:
    """A block whose decisions are recorded.

    Attributes:
        file: The file that they are written to.
        job: The job of this process; None without one.
        number: How many blocks with that file this rank has begun in that job; 0 without one.
    """

    file: Path
    job: Job | None
    number: int

    def in_job(self, job: Job | None) -> Begun:
        """Return the block as it ends: it may have initialized the process group, and begins for that job then."""
        return self if job is self.job else begin(self.file, job)


def begin(file: Path, job: Job | None) -> Begun:
    """Count a block that begins; one that raises is counted, too: the next block of this rank is of the other ranks' next.

    Args:
        file: The file, in an existing folder.
        job: The job of this process; None without one.
    """
    if job is None:
        return Begun(file, None, 0)
    process = job.token, file.resolve()
    with _GUARD:
        _RECORDINGS[process] += 1
        return Begun(file, job, _RECORDINGS[process])


def write_recorded(begun: Begun, own: PinFile, rank: int | None) -> None:
    """Write a pin file; of ranks that write the same file, the first replaces what is there, and the others add to it.

    A file counts as this job's by its content, whose digest is in the job's store: a folder may be each rank's own, or shared.
    A rank that cannot ask the store, or whose turn does not come, leaves the file alone: it may be the job's. It writes its
    decisions beside it (`beside`), with a warning.

    Args:
        begun: The block that ends.
        own: What this process has recorded.
        rank: The rank of this process by its launcher; None without other ranks.

    Raises:
        OSError: The folder cannot be written to.
    """
    file, job = begun.file, begun.job
    if job is not None:
        rank, reason = job.rank, _add(file, own, job, begun.number)
    else:
        no_group = "there is no process group when the block ends"
        reason = "the process group has no store" if has_no_store() else no_group
    if rank is None:
        _replace(file, dump(own))
    elif reason:
        apart = beside(file, rank)
        _replace(apart, dump(own))
        warn_once(
            logger,
            f"{apart} has the decisions of this rank, which are not in {file} ({reason}); "
            "`inductor-plugin merge` puts the files of a job together",
        )


def beside(file: Path, rank: int) -> Path:
    """Return the file of one rank beside that of all: ``pins.rank3.json``."""
    return file.with_name(f"{file.stem}.rank{rank}{file.suffix}")


def _add(file: Path, own: PinFile, job: Job, number: int) -> str:
    """Write the file of all ranks; return why it was left alone, empty if it was not."""
    limit_s = max(_LEAST_S, _EACH_S * job.world)
    try:
        with exclusive(file, limit_s):
            _replace(file, _joint(file, own, job, number))
    except StoreLostError as error:
        return f"the store of the job is lost: {error}"
    except CacheError:
        return f"others were writing that for {limit_s:g} s"
    return ""


def _joint(file: Path, own: PinFile, job: Job, number: int) -> str:
    """Return the text of a file with this rank's decisions and those that other ranks have written; others may add to it then.

    Args:
        file: The file.
        own: What this rank has recorded.
        job: Its job.
        number: Which of its blocks with this file it is.
    """
    latest = number
    if file.exists():
        before = file.read_text(encoding="utf-8", errors="replace")
        recorded = int(job.store.get(_key(file, before)) or 0)
        if recorded >= number:
            own, latest = merge([parse(before), own]), recorded
    text = dump(own)
    key = _key(file, text)
    job.store.put(key, str(max(latest, int(job.store.get(key) or 0))))
    return text


def _key(file: Path, text: str) -> str:
    """Return the key of a file's name and content, without its folder, which may differ from machine to machine."""
    return f"recorded/{hashlib.sha256(f'{file.name}/{text}'.encode()).hexdigest()}"


def _replace(file: Path, text: str) -> None:
    with draft_of(file) as draft:
        draft.write_text(text, encoding="utf-8")
