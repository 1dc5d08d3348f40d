"""What runs on a node of the farm: one job in a worker process of its own, as in the local pool."""

from __future__ import annotations

import math
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from inductor_plugin.errors import WorkerError
from inductor_plugin.worker.compile_pool import compile_all
from inductor_plugin.worker.failure import one_line
from inductor_plugin.worker.farm.connection import marked, node_here
from inductor_plugin.worker.farm.flight import skipped
from inductor_plugin.worker.farm.folder import NodeFolder
from inductor_plugin.worker.farm.parcel import (
    Delivery,
    Parcel,
    addressed,
    arrived,
    packed,
    why_not_compiled,
)
from inductor_plugin.worker.farm.places import settings_here
from inductor_plugin.worker.jobs import WorkerSettings
from inductor_plugin.worker.process import WorkerProcess

_PROCESSES: dict[WorkerSettings, WorkerProcess] = {}
"""The worker of this process: it has imported torch for the next Triton kernel. It ends when it is idle, or with this process."""

_FOLDERS: list[NodeFolder] = []
"""The folder of this process, in which its jobs have theirs: a job that is cancelled is killed with the process."""


def compile_parcel(parcel: Parcel, settings: WorkerSettings, limit_s: float) -> Delivery:
    """Compile a job here.

    Args:
        parcel: The job.
        settings: Of the worker process.
        limit_s: Seconds from now after which its kernels become ``skipped``; infinite for no limit.
    """
    started = time.monotonic()
    parcel = arrived(parcel)
    if settings not in _PROCESSES:
        _PROCESSES[settings] = WorkerProcess(settings_here(settings), "compile worker")
    process = _PROCESSES[settings]
    reason, passing = why_not_compiled(parcel), False
    if reason is None:
        reason, passing = _why_not_started(process), True
    if reason is not None:
        return Delivery((), {}, platform.node(), reason, node=node_here(), passing=passing)
    until = math.inf if limit_s == math.inf else started + limit_s
    try:
        delivery = _compiled(parcel, process, until)
    except OSError as error:  # as where its disk is full
        compiled = skipped(parcel.job, one_line(str(error)))
        delivery = Delivery(tuple(compiled), {}, platform.node())
    return replace(delivery, elapsed_s=time.monotonic() - started, node=node_here())


def _compiled(parcel: Parcel, process: WorkerProcess, until: float) -> Delivery:
    with marked(parcel.key), tempfile.TemporaryDirectory(dir=_own_folder()) as name:
        folder = Path(name) / "job"
        folder.mkdir()
        job = addressed(parcel.job, folder)
        return packed(job, compile_all(process, job, until), folder)


def _own_folder() -> Path:
    if not _FOLDERS or not _FOLDERS[-1].path.is_dir():  # the machine's cleaning may have taken it
        _FOLDERS.append(NodeFolder("farm"))
    return _FOLDERS[-1].path


def _why_not_started(process: WorkerProcess) -> str | None:
    """Return why no worker process starts here; None if it runs."""
    try:
        process.start()
    except WorkerError as error:
        return one_line(str(error))
    return None
