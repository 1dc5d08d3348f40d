"""What runs on a node of the farm: one job in a worker process of its own, as in the local pool."""

from __future__ import annotations

import math
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from inductor_plugin.worker.compile_pool import compile_all
from inductor_plugin.worker.farm.parcel import Delivery, Parcel, addressed, packed, refusal
from inductor_plugin.worker.jobs import WorkerSettings
from inductor_plugin.worker.process import WorkerProcess

_PROCESSES: dict[WorkerSettings, WorkerProcess] = {}
"""The worker of this process: it has imported torch for the next Triton kernel. It ends when it is idle, or with this process."""


def compile_parcel(parcel: Parcel, settings: WorkerSettings, limit_s: float) -> Delivery:
    """Compile a job here.

    Args:
        parcel: The job.
        settings: Of the worker process.
        limit_s: Seconds from now after which its kernels become ``skipped``; infinite for no limit.
    """
    started = time.monotonic()
    reason = refusal(parcel)
    if reason:
        return Delivery((), {}, platform.node(), reason)
    if settings not in _PROCESSES:
        _PROCESSES[settings] = WorkerProcess(settings, "compile worker")
    with tempfile.TemporaryDirectory(prefix="inductor-plugin-farm-") as name:
        job = addressed(parcel.job, Path(name))
        until = math.inf if limit_s == math.inf else started + limit_s
        compiled = compile_all(_PROCESSES[settings], job, until)
        delivery = packed(job, compiled, Path(name))
    return replace(delivery, elapsed_s=time.monotonic() - started)
