"""What Ray is given while it connects: the arguments for an option, a variable, and what it shall not say. Ray is not imported."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from inductor_plugin.config.variables import default_variable
from inductor_plugin.worker.affinity import own_cores

LOCAL = "ray:local"
"""The option that starts a cluster on this machine."""
_PATIENCE, _PATIENCE_S = "RAY_gcs_rpc_server_reconnect_timeout_s", str(30 * 24 * 3600)
"""Seconds without a head after which Ray ends a process that has joined its cluster, whatever that process does; 60 by default."""


def patient(farm: str) -> AbstractContextManager[None]:
    """Return a block in which Ray reads, once, that it shall not end a process that joins a cluster whose head is lost later."""
    # A client is not ended, and what is started on this machine is to end with it.
    if farm.startswith("ray://") or farm == LOCAL:
        return nullcontext()
    return default_variable(_PATIENCE, _PATIENCE_S)


@contextmanager
def quiet() -> Generator[None]:
    """Leave out what Ray says where another thread than the main one connects: that it does not replace the handler of SIGTERM."""
    ray = logging.getLogger("ray._private.worker")
    ray.addFilter(_is_said)
    try:
        yield
    finally:
        ray.removeFilter(_is_said)


def _is_said(record: logging.LogRecord) -> bool:
    return "SIGTERM handler" not in record.getMessage()


def arguments(farm: str) -> dict[str, Any]:
    """Return the arguments of ``ray.init`` for an option."""
    common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if farm == LOCAL:
        cores = len(own_cores())
        return {**common, "address": "local", "num_cpus": cores, "include_dashboard": False}
    if farm.startswith("ray://"):
        return {**common, "address": farm}
    return {**common, "address": farm.removeprefix("ray:")}
