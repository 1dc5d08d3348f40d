"""Every error of the package, and its warnings: each names the plugin, and comes once a process.

InductorPluginError
├── OptionError            an unknown option or an invalid value
├── RegistrationError      a template name that is taken or not registered
├── TargetError            an unknown GPU
├── DeviceError            a package that describes its device wrongly
├── PinError               a problem without a pin (option ``strict``), or a recording of nothing
├── RankError              ranks that cannot be compared
├── PackError              a pack of precompiled kernels that is empty or does not load
├── OperandError           operands of a call that do not fit each other; nothing was launched
├── OutputError            a chosen kernel that wrote NaN or Inf (option ``check_outputs``)
├── KernelError            a compiled kernel that cannot be loaded, or refuses a call
│   └── CallRefusedError   the kernel does not take the operands; nothing was launched
├── CacheError             the cache cannot do what was requested
│   ├── CacheRefusedError  a directory that another user owns or may write to
│   ├── ArchiveError       an export file that is damaged or unsafe
│   └── TrustError         native code that nobody who is trusted vouches for, or a key that cannot be used
└── WorkerError            a worker process
    ├── WorkerTimeoutError exceeded its time limit and was killed
    └── WorkerDiedError    died (crash, kill, out of memory)
"""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

_STICKY = frozenset((226, 700, 702, 709, 710, *range(714, 720), 721, 810, 911, 999))
"""cudaError_t that leave a process in an inconsistent state, by driver_types.h of CUDA 13.0, and the unknown error."""


class InductorPluginError(Exception):
    """Base of every error this package raises on purpose."""


class OptionError(InductorPluginError, ValueError):
    """An unknown option, or an invalid value."""


class RegistrationError(InductorPluginError, ValueError):
    """A template name that is taken, or one that is not registered."""


class TargetError(InductorPluginError, ValueError):
    """A GPU that the plugin lacks facts of, to compile or rank kernels for it."""


class DeviceError(InductorPluginError):
    """A package describes its device wrongly: what it registered does not load, or raises. Inductor alone serves the device."""


class PinError(InductorPluginError):
    """A problem that the pin file does not decide here, with ``strict``, or a recording without any compile."""


class RankError(InductorPluginError):
    """Ranks cannot be compared: there is no job, or its store is lost."""


class PackError(InductorPluginError):
    """A pack of kernels compiled ahead of time that is empty, or whose kernels do not load."""


class OutputError(InductorPluginError):
    """A chosen kernel wrote NaN or Inf though its inputs are finite."""


class OperandError(InductorPluginError, RuntimeError):
    """Operands that do not fit each other, as torch's own operator would say too; nothing was launched."""


class KernelError(InductorPluginError):
    """A compiled kernel that cannot be loaded, or that refuses a call.

    Attributes:
        cuda_error: CUDA's error number of a kernel that did not start; None for other faults. 0 where CUTLASS has read it.
    """

    def __init__(self, text: str, cuda_error: int | None = None) -> None:
        """Keep what happened, and CUDA's error number."""
        super().__init__(text)
        self.cuda_error = cuda_error

    @property
    def is_sticky(self) -> bool:
        """Whether no later call of CUDA works in this process."""
        return self.cuda_error in _STICKY


class CallRefusedError(KernelError):
    """A compiled kernel does not take a call's operands; nothing was launched, another kernel may run it."""


class CacheError(InductorPluginError):
    """The cache cannot do what was requested."""


class CacheRefusedError(CacheError):
    """The directory is owned or writable by another user, so its kernels cannot be trusted."""


class ArchiveError(CacheError):
    """An export file that is damaged, of another format, or that would write outside the cache."""


class TrustError(CacheError):
    """Native code from outside that no trusted key has signed, or a key that cannot be used."""


class WorkerError(InductorPluginError):
    """Something went wrong with a worker process."""


class WorkerTimeoutError(WorkerError):
    """A worker exceeded its time limit and was killed."""


class WorkerDiedError(WorkerError):
    """A worker died: it crashed, was killed, or ran out of memory."""


def expanded(
    path: Path | str,
    origin: str,
    error: type[InductorPluginError],
    remedy: str = "write the whole path",
) -> Path:
    """Return a path with the folder of a user in the place of ``~``, or of ``~NAME``.

    Args:
        path: As a user has written it.
        origin: The option, variable or argument that it is of, for the error.
        error: What is raised.
        remedy: What to do where the folder is not known.

    Raises:
        InductorPluginError: ``error``, if there is no such user, or none with this process's number and ``HOME`` is not set.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0].removeprefix("~")
        why = (
            f"this machine knows no user {user!r}"
            if user
            else "HOME is not set, and this machine knows no user of this process's number"
        )
        raise error(f"{origin} is {str(path)!r}, but {why}; {remedy}") from None


NAME = "inductor-plugin: "
"""Beginning of every warning, so that a reader of a training's log knows where it comes from."""


def printable(text: str) -> str:
    """Return a text on one line, without characters that a terminal obeys: those are shown by their codes.

    Records and kernels may be someone else's: an escape sequence in one would move the cursor, and a newline would
    forge a line of a report or a log.
    """
    return text if text.isprintable() else "".join(map(_shown_character, text))


_USER = re.compile(r"(?<=://)[^/\s]*@")


def without_user(url: str) -> str:
    """Return a URL, or a text with some, without users and passwords."""
    return _USER.sub("", url)


def _shown_character(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


_GUARD = threading.Lock()
_SAID: set[str] = set()


def warn_once(logger: logging.Logger, text: str, topic: str = "") -> None:
    """Log a warning that names the plugin, on one line, unless this process has given it already.

    Args:
        logger: The logger of the module that warns.
        text: What happened and what to do, without the plugin's name; it may quote what strangers wrote.
        topic: What is warned of once, where texts differ; by default the text.
    """
    with _GUARD:
        if (topic or text) in _SAID:
            return
        _SAID.add(topic or text)
    logger.warning("%s%s", NAME, printable(text), stacklevel=2)
