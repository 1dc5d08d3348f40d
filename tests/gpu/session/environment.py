"""The first step of a session: the GPU computes, torch knows the backend, and the versions of everything.

    python -m tests.gpu.session.environment --out FILE [--cpu]

Exits with 1 without a GPU that computes: nothing else is worth its time then. With ``--cpu`` a CPU has to compute.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from inductor_plugin.config import default_cache_dir
from tests.gpu.session.report import Report, output_of
from tests.gpu.session.requirements import REQUIREMENTS, version

_QUERY = (
    "name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,clocks.mem,power.limit"
)


def main(arguments: list[str] | None = None) -> int:
    """Write the facts; return 1 if nothing can be measured here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true", help="ask for no GPU")
    chosen = parser.parse_args(arguments)
    device = "cpu" if chosen.cpu else "gpu"
    report = Report(chosen.out)
    report.put("python", f"{platform.python_version()} {sys.executable}")
    report.put("machine", machine())
    report.put("packages", {each.name: version(each.name) for each in REQUIREMENTS})
    report.put(
        "nvidia_smi", output_of(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"])
    )
    report.put("nvcc", output_of(["nvcc", "--version"]).rpartition("\n")[2])
    report.attempt("backend", backend)
    report.attempt(device, cpu if chosen.cpu else gpu)
    figure = report.figures[device]
    print(f"summary: {figure['failed'] if isinstance(figure, dict) else figure}")
    return 1 if report.failed else 0


def machine() -> dict[str, Any]:
    """Return cores, memory and free disk of this machine, in bytes."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    folder = default_cache_dir()
    while not folder.exists():
        folder = folder.parent
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "kernels": str(default_cache_dir()),
        "free_bytes": shutil.disk_usage(folder).free,
    }


def backend() -> str:
    """Return by which way torch knows the backend's name.

    Raises:
        LookupError: It does not know it.
    """
    importlib.import_module("inductor_plugin.backend")
    dynamo: Any = importlib.import_module("torch._dynamo")
    if "inductor_plugin" not in dynamo.list_backends(exclude_tags=()):
        raise LookupError("torch.compile knows no backend inductor_plugin")
    return "known to torch.compile"


def gpu() -> str:
    """Return the GPU that a product has just been computed on.

    Raises:
        RuntimeError: There is none, or it does not compute.
    """
    torch = _multiplied("cuda")
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    return f"{name}, compute capability {capability}, torch {torch.__version__}"


def cpu() -> str:
    """Return what a product has just been computed with.

    Raises:
        RuntimeError: It was wrong.
    """
    torch = _multiplied("cpu")
    return f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _multiplied(device: str) -> Any:
    """Return torch, which has multiplied there."""
    torch: Any = importlib.import_module("torch")
    ones = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
    if float((ones @ ones).float().mean()) != 64.0:
        raise RuntimeError(f"{device} multiplies wrongly")
    return torch


if __name__ == "__main__":
    sys.exit(main())
