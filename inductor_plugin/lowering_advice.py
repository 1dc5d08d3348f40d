"""One warning where CUTLASS kernels are wanted and none can be had: what to install."""

from __future__ import annotations

import logging
import threading

from inductor_plugin.config import Config
from inductor_plugin.cuda_toolkit import NoToolkit, package_folders
from inductor_plugin.lowering_cuda import find_toolkit
from inductor_plugin.templates.cutlass_source import generator_reason

logger = logging.getLogger(__name__)

_SAID: set[str] = set()
_GUARD = threading.Lock()


def obstacle(nvcc: str) -> str | None:
    """Return why no CUTLASS kernel can be built here and what to install, None if they can.

    Args:
        nvcc: The option of this name.
    """
    toolkit = find_toolkit(nvcc)
    return generator_reason() or (toolkit.reason if isinstance(toolkit, NoToolkit) else None)


def warn_without_cutlass(config: Config, *, some: bool = False) -> None:
    """Say what keeps CUTLASS kernels away: once a process and reason, to who wants them.

    Who names CUTLASS in ``gemm_backends`` or has nvidia-cutlass installed wants them. All others
    read it in `inductor-plugin doctor`.

    Args:
        config: The options.
        some: True if some kernels came in a pack, and others could not be built.
    """
    wanted = "CUTLASS" in config.gemm_backends.split(",") or package_folders("cutlass_library")
    reason = obstacle(config.nvcc) if wanted else None
    if reason is None:
        return
    with _GUARD:
        said = reason in _SAID
        _SAID.add(reason)
    if not said:
        what = "the CUTLASS kernels that no pack has" if some else "CUTLASS kernels"
        logger.warning("the compile goes on without %s: %s", what, reason)
