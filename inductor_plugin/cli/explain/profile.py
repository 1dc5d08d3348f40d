"""``inductor-plugin explain --profile FILE``: of which records the kernels in a trace of ``torch.profiler`` are."""

from __future__ import annotations

import gzip
import json
import zlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inductor_plugin.cache import report
from inductor_plugin.cli.verb import open_cache, say
from inductor_plugin.errors import CacheError, expanded
from inductor_plugin.tuning.report.profile import profiled

_MOST_BYTES = 2**30
"""Size of a trace that is read; as JSON in memory it takes some times as much."""
_NONE = (
    "it has no range of a chosen kernel; profile calls of a model that was compiled with this plugin (code of cpp_wrapper and AOTInductor "
    "has ranges if TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE was 1 when it was compiled)"
)


def explain_profile(arguments: Namespace) -> int:
    """Say which kernels of a trace are of which records."""
    file: Path = expanded(arguments.profile, "--profile", CacheError)
    store = open_cache(arguments)
    try:
        kernels = profiled(_content(file), store.iter_records())
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise CacheError(
            f"{file} is no trace of torch.profiler: {error}; write it with export_chrome_trace"
        ) from error
    fields = {"file": str(file), "kernels": [asdict(kernel) for kernel in kernels]}
    say(arguments, fields, _text(fields))
    return 0


def _content(file: Path) -> Any:
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes; profile fewer steps")
    return json.loads(data)


def _text(fields: Mapping[str, Any]) -> str:
    fields = report.shown(fields)
    if not fields["kernels"]:
        return f"{fields['file']}: {_NONE}"
    return "\n".join(line for kernel in fields["kernels"] for line in _lines(kernel))


def _lines(kernel: Mapping[str, Any]) -> list[str]:
    calls = f"{kernel['calls']} {'call' if kernel['calls'] == 1 else 'calls'}"
    lines = [
        f"{kernel['problem']}   {kernel['record']}",
        f"  {kernel['candidate']}: {calls}, {kernel['host_ms']:.4g} ms on the host",
    ]
    lines += [f"  {ms:.4g} ms on the GPU: {name}" for name, ms in kernel["device_ms"].items()]
    if kernel["runs"] is False:
        lines.append("  the cache has another decision by now")
    elif kernel["reason"] is not None:
        lines.append(f"  {kernel['reason']}")
    else:
        lines.append("  this cache has no decision of it")
    return lines
