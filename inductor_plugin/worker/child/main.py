"""Entry file of every worker process: apply the parent's settings, then run its jobs.

Started as ``python main.py <connection> <lifeline> <parent's pid> <cores>`` by `process`. Only the
standard library is imported until the parent's search path has arrived.
"""

from __future__ import annotations

import sys

if sys.path and sys.path[0] == __file__.rpartition("/")[0]:
    del sys.path[
        0
    ]  # the package's own folder: its operands.py and others would hide modules of that name

import ctypes
import faulthandler
import importlib
import os
import pickle
import resource
import select
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_OUTPUT_LIMIT_BYTES = 1 << 20
_WATCH_S = 0.5
_ORPHAN_S = 3600.0
_PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h; see PR_SET_CHILD_SUBREAPER(2const)."""


def watch(lifeline: int, parent: int) -> None:
    """End this process group when the parent is gone; keep the output file small.

    The pipe closes when the parent dies, unless a fork of the parent has it open too; therefore the
    parent's process number is also checked.
    """
    while True:
        gone, _, _ = select.select([lifeline], [], [], _WATCH_S)
        if gone or os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        if (
            os.fstat(1).st_size > _OUTPUT_LIMIT_BYTES
        ):  # opened for appending: continues at the start
            os.ftruncate(1, 0)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends, so that they can be ended with this worker."""
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def use_cores(numbers: str) -> None:
    """Run on these cores, with all threads to come: a parent that OpenMP has pinned to one core leaves a child no other.

    Args:
        numbers: Their numbers, with commas between them.
    """
    with suppress(
        OSError, AttributeError
    ):  # they are taken away from the parent meanwhile; Linux only
        os.sched_setaffinity(0, {int(number) for number in numbers.split(",")})


def apply_settings(settings: Any) -> None:
    """Apply the parent's settings to this process.

    Args:
        settings: The parent's `WorkerSettings`.
    """
    if settings.nice:
        os.nice(settings.nice)
    if settings.kind == "bench":
        _apply_torch_settings(settings)
    if settings.memory_bytes > 0:
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory_bytes, settings.memory_bytes))


def _apply_torch_settings(settings: Any) -> None:
    import torch  # heavy, and compile workers do not need it

    # Found once the parent's search path is known.
    from inductor_plugin.worker.devices import lookup

    lookup.adopt(settings.device, settings.device_reference)
    # A device that cannot be had says so now, not in a candidate's job; a timer that does not work, too.
    lookup.start(settings.device)
    if settings.device_reference:
        from inductor_plugin.worker import timer  # likewise, and it needs torch

        timer.timer_for(settings.device).synchronize()
    if settings.device.startswith("cuda") and settings.kernel_folder:
        from inductor_plugin.ops.launch import add_kernel_folder  # the library of call sites

        add_kernel_folder(Path(settings.kernel_folder), trusted_keys=settings.trusted_keys)
    if settings.threads > 0:
        torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision(settings.float32_precision)
    matmul = torch.backends.cuda.matmul
    if matmul.allow_tf32 != settings.allow_tf32:
        matmul.allow_tf32 = settings.allow_tf32
    if torch.backends.cudnn.allow_tf32 != settings.cudnn_allow_tf32:
        torch.backends.cudnn.allow_tf32 = settings.cudnn_allow_tf32
    half, bfloat = settings.reduced_precision
    # A pair only where it is needed: not every torch takes one.
    matmul.allow_fp16_reduced_precision_reduction = half[0] if half[1] else half
    matmul.allow_bf16_reduced_precision_reduction = bfloat[0] if bfloat[1] else bfloat
    if settings.switches:
        from inductor_plugin.worker import switches  # found once the parent's search path is known

        switches.apply(settings.switches)
    torch.use_deterministic_algorithms(
        settings.deterministic, warn_only=settings.deterministic_warn_only
    )
    torch.set_grad_enabled(False)


def execute(job: Any, emit: Callable[[Any], None]) -> Any:
    """Run one job and return its result.

    Args:
        job: One of the records in `jobs`.
        emit: Sends an `Event` to the parent.
    """
    from inductor_plugin.worker import jobs  # found once the parent's search path is known

    if isinstance(job, jobs.CallJob):
        return getattr(importlib.import_module(job.module), job.function)(*job.args)
    if isinstance(job, (jobs.CppCompileJob, jobs.TritonCompileJob)):
        from inductor_plugin.worker.child.compile import run  # a benchmark worker does without

        return run(job, emit)
    from inductor_plugin.worker.child import (
        bench,  # imports torch, which a compile worker does without
    )

    return bench.run(job, emit)


def serve(connection: Connection[Any, Any], idle_s: float) -> None:
    """Run jobs until none has come for a while, or the parent has closed the pipe."""
    from inductor_plugin.worker import failure, jobs  # found once the parent's search path is known

    while connection.poll(idle_s):
        job = connection.recv()
        connection.send(jobs.Event("accepted"))
        # A C thread without the GIL: ends an orphan whose candidate hangs with the GIL held.
        faulthandler.dump_traceback_later(_ORPHAN_S, exit=True)
        failed = None
        try:
            answer = pickle.dumps((execute(job, connection.send),))
        except Exception as error:  # noqa: BLE001  the border: what a candidate raises becomes a value here
            reason = failure.one_line("".join(traceback.format_exception_only(error)))
            failed = jobs.JobFailed(failure.status_of(error), reason, traceback.format_exc())
            if failed.status == "raised" and (broken := device_fault()):
                failed = replace(failed, status="sticky_error", reason=f"{reason}; {broken}")
            elif failed.status == "out_of_memory" and (
                shortage := shortage_of(f"{type(error).__name__}: {error}")
            ):
                reason = f"{reason}; {shortage.reason}"
                failed = replace(failed, crowded=shortage.is_crowded, reason=reason)
            answer = pickle.dumps((failed,))
        faulthandler.cancel_dump_traceback_later()
        connection.send_bytes(answer)
        if failed is not None:  # here, where no traceback refers to the job's tensors any more
            recover()
        sys.stdout.flush()


def device_fault() -> str:
    """Return what the device says if it works no more in this process; empty if it works, or is not used.

    A launch's own error says little: CUTLASS reads CUDA's number before the kernel's function can.
    """
    timer: Any = sys.modules.get("inductor_plugin.worker.timer")
    torch: Any = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if timer is not None:
            timer.synchronize()
    except RuntimeError as error:  # since torch 2.9 a class of its own derived from it
        return str(error).strip().partition("\n")[0]
    return ""


def shortage_of(text: str) -> Any:
    """Return the `Shortage` of a device's memory that an error reports; None if it reports none."""
    memory = sys.modules.get("inductor_plugin.worker.child.memory")
    return memory.shortage(text) if memory is not None else None


def recover() -> None:
    """Free the memory of a failed job. The parent ends a worker whose device is broken, which frees nothing any more."""
    bench = sys.modules.get("inductor_plugin.worker.child.bench")
    if bench is not None:
        with suppress(RuntimeError):  # of CUDA: the device is broken
            bench.release()


def main() -> None:
    """Serve the parent until it closes the pipe."""
    handles = [int(text) for text in sys.argv[1:3]]
    for handle in handles:
        os.set_inheritable(handle, False)  # noqa: FBT003
    faulthandler.enable()
    adopt_orphans()
    use_cores(sys.argv[4])
    threading.Thread(target=watch, args=(handles[1], int(sys.argv[3])), daemon=True).start()
    connection: Connection[Any, Any] = Connection(handles[0])
    try:
        sys.path[:] = connection.recv()
        settings = connection.recv()
        apply_settings(settings)
        connection.send("ready")
        serve(connection, settings.idle_s)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has closed the pipe


if __name__ == "__main__":
    main()
    os._exit(0)  # a candidate's threads and exit handlers may hang
