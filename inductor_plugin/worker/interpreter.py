"""The interpreter of a worker process: its flags and its environment variables."""

from __future__ import annotations

import sys

from inductor_plugin.config.variables import OPENMP_PINS, process_environment
from inductor_plugin.worker.jobs import WorkerSettings

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def variables_of(settings: WorkerSettings) -> dict[str, str]:
    """Return the child's environment variables: ours, with the plugin disabled."""
    environment = process_environment() | {"INDUCTOR_PLUGIN_ENABLE": "0"}
    if settings.kind == "compile":
        environment["LC_ALL"] = "C.UTF-8"  # the compiler's messages are parsed
        for name in OPENMP_PINS:  # they would hold all compilers on one core
            environment.pop(name, None)
        # A CUDA context takes 0.5 GB of GPU memory per worker, and code that queries the driver while
        # compiling would not compile on a machine without a GPU.
        environment |= dict.fromkeys(_VISIBLE_DEVICES, "")
    if settings.cache_dir:
        environment["TORCHINDUCTOR_CACHE_DIR"] = settings.cache_dir
    return environment


def isolation() -> list[str]:
    """Return this interpreter's flags that keep a user's environment out of Python, for a child."""
    if sys.flags.isolated:
        return ["-I", "-S"] if sys.flags.no_site else ["-I"]
    flags = {
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
        "-S": sys.flags.no_site,
        "-P": getattr(sys.flags, "safe_path", False),  # from Python 3.11 on
    }
    return [flag for flag, is_set in flags.items() if is_set]
