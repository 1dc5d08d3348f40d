"""What torch shows of compiles (``TORCH_LOGS``, ``TORCH_TRACE``, ``TORCH_COMPILE_DEBUG``): the graph that runs, not those that it is compared with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.codecache import get_path, output_code_log
from torch._inductor.debug import DebugContext
from torch._inductor.virtualized import V
from torch._logging import trace_structured  # pyright: ignore[reportPrivateImportUsage]

_TRACE = "torch.__trace"
"""Torch's logger of ``TORCH_TRACE``."""
_GRAPHS = ("artifact", "graph_dump", "inductor_")
"""Beginnings of the names of its lines that show a graph or its code. Others have to stay: later lines refer to the strings
of ``str`` by number."""


class _OfOtherThreads(logging.Filter):
    """Drops what this thread logs of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if threading.get_ident() != self._thread:
            return True
        line = getattr(record, "metadata", None)  # of the trace alone
        return line is not None and not any(name.startswith(_GRAPHS) for name in line)


@contextmanager
def hidden() -> Generator[None]:
    """Let this thread compile in the block without artifacts of Inductor's in logs and the trace, and without files of its debug folder."""
    others = _OfOtherThreads()
    options: Any = inductor_config  # typed partly
    with ExitStack() as stack:
        for logger in map(logging.getLogger, [*_artifact_loggers(), _TRACE]):
            logger.addFilter(others)
            stack.callback(logger.removeFilter, others)
        stack.enter_context(V.set_debug_handler(DebugContext()))  # it has no folder: not entered
        stack.enter_context(options.patch({"trace.enabled": False}))
        yield


def show(compiled: Any, *, instead_of: Any) -> None:
    """Show the code of a graph that was compiled hidden and runs, as Inductor shows that of a graph out of its cache.

    Args:
        compiled: The graph that runs.
        instead_of: The graph that was shown when it was compiled; nothing is shown if it is the same.
    """
    if compiled is instead_of:
        return
    code, path = compiled.source_code, get_path(compiled.cache_key, "py")[2]
    output_code_log.debug("Output code, which runs instead of the code before it: \n%s", code)
    output_code_log.debug("Output code written to: %s", path)
    debug: Any = V.debug  # what it writes are attributes that it looks up
    debug.output_code(path)
    debug.copy(str(Path(path).with_suffix(".debug")))
    trace_structured(
        "inductor_output_code",
        lambda: {"filename": path, "file_path": str(Path(path).absolute())},
        payload_fn=lambda: code,
    )


def _artifact_loggers() -> list[str]:
    """Return the names of the loggers of Inductor's artifacts: generated code, fusions, schedules, hints."""
    names = [*logging.root.manager.loggerDict]
    return [name for name in names if name.startswith("torch._inductor.") and ".__" in name]
