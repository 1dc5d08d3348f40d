"""The pin file that the ranks of a job record together: each adds what it has compiled, as the stages of a pipeline do."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from pathlib import Path

from inductor_plugin.cache.transfer.draft import draft_of, exclusive
from inductor_plugin.errors import warn_once
from inductor_plugin.tuning.pins.document import dump, parse
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import PinFile
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.store import StoreLostError

logger = logging.getLogger(__name__)

_GUARD = threading.Lock()
_RECORDINGS: Counter[tuple[str, Path]] = Counter()
"""How often a rank has recorded to a file: the second time, ranks replace what they have recorded the first time."""


def write_recorded(file: Path, own: PinFile, job: Job | None, rank: int | None) -> None:
    """Write a pin file; of ranks that write the same file, the first replaces what is there, and the others add to it.

    A file counts as this job's by its content, whose digest is in the job's store: a folder may be each rank's own, or shared.

    Args:
        file: The file, in an existing folder.
        own: What this process has recorded.
        job: The job of this process; None without one.
        rank: The rank of this process by its launcher; None without other ranks.

    Raises:
        CacheError: Another process has not ended writing the file in time.
        OSError: The folder cannot be written to.
    """
    if job is None and rank is None:
        _replace(file, dump(own))
        return
    with exclusive(file):
        text, reason = dump(own), "there is no process group when the block ends"
        if job is not None:
            try:
                text, reason = _joint(file, own, job), ""
            except StoreLostError as error:
                reason = f"the store of the job is lost: {error}"
        if reason:
            warn_once(
                logger,
                f"{file} has the decisions of this rank alone ({reason}); let each rank record to its own file, "
                "and `inductor-plugin merge` them",
            )
        _replace(file, text)


def _joint(file: Path, own: PinFile, job: Job) -> str:
    """Return the text of a file with this rank's decisions and those that other ranks have written; others may add to it then."""
    process = job.token, file.resolve()
    with _GUARD:
        _RECORDINGS[process] += 1
        latest = number = _RECORDINGS[process]
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
