"""The variables of this process: the only module that reads and sets them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from inductor_plugin.config.value import switch, unknown_names
from inductor_plugin.errors import OptionError, expanded, warn_once

logger = logging.getLogger(__name__)

PREFIX = "INDUCTOR_PLUGIN_"
ENABLE_VARIABLE = PREFIX + "ENABLE"
_OWN = "inductor_plugin"
"""The folder of caches below those of other programs."""
OPENMP_PINS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which OpenMP pins threads to cores."""
_OPENMP = (*OPENMP_PINS, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that change how fast OpenMP's threads compute, but for their number."""


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the default cache directory, by environment variables, those of this process by default.

    Raises:
        OptionError: It is below the folder of a user who is not known here.
    """
    variables = os.environ if environ is None else environ
    if named := variables.get(variable := PREFIX + "CACHE_DIR"):
        return expanded(named, f"variable {variable}", OptionError)
    remedy = f"set HOME, or {variable} to a folder of your own"
    if base := variables.get("XDG_CACHE_HOME"):
        return expanded(base, "variable XDG_CACHE_HOME", OptionError, remedy) / _OWN
    return expanded(f"~/.cache/{_OWN}", "the default cache directory", OptionError, remedy)


def default_cache_read() -> str:
    """Return the option ``cache_read`` as the variables have it, with any ``~``; empty if they do not."""
    return os.environ.get(PREFIX + "CACHE_READ", "")


def default_trusted_keys() -> str:
    """Return the option ``trusted_keys`` as the variables have it, not checked; empty if they do not."""
    return os.environ.get(PREFIX + "TRUSTED_KEYS", "")


def enabled_by_environment(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether ``INDUCTOR_PLUGIN_ENABLE`` switches the plugin on.

    Raises:
        OptionError: The variable is neither empty nor a switch.
    """
    text = (os.environ if environ is None else environ).get(ENABLE_VARIABLE, "")
    return bool(text) and switch(text, f"variable {ENABLE_VARIABLE}")


def launched_rank(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the rank that torchrun, or a launcher like it, has given this process; None if it has no other ranks beside it."""
    variables = os.environ if environ is None else environ
    try:
        rank, world = int(variables.get("RANK", "")), int(variables.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    return rank if 0 <= rank < world and world > 1 else None


def local_ranks(environ: Mapping[str, str] | None = None) -> int:
    """Return how many processes torchrun, or a launcher like it, has started on this machine; 1 without one."""
    count = (os.environ if environ is None else environ).get("LOCAL_WORLD_SIZE", "")
    return int(count) if count.isdecimal() and int(count) else 1


def openmp_settings(environ: Mapping[str, str] | None = None) -> str:
    """Return what is set of OpenMP's variables that change how fast its threads compute; empty if nothing is.

    Not which cores: instances that share a machine have different ones, and the same times.
    """
    variables = os.environ if environ is None else environ
    texts = {name: variables.get(name, "").strip().lower() for name in _OPENMP}
    if texts["OMP_PROC_BIND"] == "false":  # then no other pins
        texts |= dict.fromkeys(OPENMP_PINS, "")
    for name in OPENMP_PINS:
        if texts[name]:
            texts[name] = ",".join(re.findall(r"[a-z_]+", texts[name])) or "numbers"
    return " ".join(f"{name}={text}" for name, text in texts.items() if text)


def openmp_pins() -> bool:
    """Return whether a variable may let OpenMP pin threads to cores."""
    return any(os.environ.get(name) for name in OPENMP_PINS)


def process_environment() -> dict[str, str]:
    """Return a copy of this process's variables."""
    return dict(os.environ)


def set_environment(variables: Mapping[str, str]) -> None:
    """Make this process's variables exactly these: those of `process_environment`, or some more or less."""
    for name in [variable for variable in os.environ if variable not in variables]:
        del os.environ[name]
    os.environ.update(variables)


@contextmanager
def default_variable(name: str, value: str) -> Generator[None]:
    """Set a variable that is not set while the block runs: for a library that reads it there."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)


def unknown(options: Iterable[str], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return one sentence for each variable with the plugin's prefix that is of none of these options."""
    names = [ENABLE_VARIABLE, *(PREFIX + name.upper() for name in options)]
    return unknown_names(os.environ if environ is None else environ, PREFIX, names)


def warn_of_unknown(options: Iterable[str], environ: Mapping[str, str] | None = None) -> None:
    """Warn of variables with the plugin's prefix that are of none of these options, once a process.

    They may be for another version. ``INDUCTOR_PLUGIN_ENABLE=0`` (in the plugin's workers, too) silences this.
    """
    variables = os.environ if environ is None else environ
    if variables.get(ENABLE_VARIABLE) != "0":
        for sentence in unknown(options, variables):
            warn_once(logger, sentence)
