"""The pin file that the ranks of a job record together: each adds what it has compiled, as the stages of a pipeline do."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from pathlib import Path

from inductor_plugin.cache.transfer.draft import draft_of, exclusive
from inductor_plugin.errors import CacheError, warn_once
from inductor_plugin.tuning.pins.document import dump, parse
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import PinFile
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.store import StoreLostError

logger = logging.getLogger(__name__)

_GUARD = threading.Lock()
_RECORDINGS: Counter[tuple[str, Path]] = Counter()
"""How often a rank has recorded to a file: the second time, ranks replace what they have recorded the first time."""
_LEAST_S, _EACH_S = 60.0, 0.5
"""Seconds in which the ranks of a job write one file, at least and for each rank: with 500 pins, a rank's turn takes 0.2 s."""


def write_recorded(file: Path, own: PinFile, job: Job | None, rank: int | None) -> None:
    """Write a pin file; of ranks that write the same file, the first replaces what is there, and the others add to it.

    A file counts as this job's by its content, whose digest is in the job's store: a folder may be each rank's own, or shared.
    A rank that cannot ask the store, or whose turn does not come, leaves the file alone: it may be the job's. It writes its
    decisions beside it (`beside`), with a warning.

    Args:
        file: The file, in an existing folder.
        own: What this process has recorded.
        job: The job of this process; None without one.
        rank: The rank of this process by its launcher; None without other ranks.

    Raises:
        OSError: The folder cannot be written to.
    """
    if job is not None:
        rank, reason = job.rank, _add(file, own, job)
    else:
        reason = "there is no process group when the block ends"
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


def _add(file: Path, own: PinFile, job: Job) -> str:
    """Write the file of all ranks; return why it was left alone, empty if it was not."""
    process = job.token, file.resolve()
    with _GUARD:
        # Also of a recording that does not come into the file: the next one is of the ranks' next.
        _RECORDINGS[process] += 1
        number = _RECORDINGS[process]
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
        number: How often it has recorded to this file.
    """
    latest = number
    if file.exists():
        before = file.read_text(encoding="utf-8", errors="replace")
        recorded = int(job.store.get(_key(before)) or 0)
        if recorded >= number:
            own, latest = merge([parse(before), own]), recorded
    text = dump(own)
    job.store.put(_key(text), str(latest))
    return text


def _key(text: str) -> str:
    return f"recorded/{hashlib.sha256(text.encode()).hexdigest()}"


def _replace(file: Path, text: str) -> None:
    with draft_of(file) as draft:
        draft.write_text(text, encoding="utf-8")
