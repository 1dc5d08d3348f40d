"""Every error of the package.

InductorPluginError
├── OptionError            an unknown option or a bad value
├── RegistrationError      a template name taken, or not known
├── TargetError            a GPU that is not known
├── PackError              kernels compiled ahead of time that are none, or do not load
├── OutputError            a chosen kernel that wrote NaN or Inf, where ``check_outputs`` looks
├── KernelError            a compiled kernel that cannot be loaded, or refuses a call
│   └── CallRefusedError   it does not take the operands, and nothing was launched
├── CacheError             the cache as a whole cannot be used or asked
│   ├── CacheRefusedError  a directory that someone else owns or may write
│   └── ArchiveError       an export file that is damaged or unsafe
└── WorkerError            a worker process
    ├── WorkerTimeoutError it took too long and was ended
    └── WorkerDiedError    it died (crash, kill, out of memory)
"""

from __future__ import annotations


class InductorPluginError(Exception):
    """Base of every error this package raises on purpose."""


class OptionError(InductorPluginError, ValueError):
    """An option that does not exist, or a value it cannot have."""


class RegistrationError(InductorPluginError, ValueError):
    """A template name that is taken, or one that is not registered."""


class TargetError(InductorPluginError, ValueError):
    """A GPU of which too little is known to compile or rank for it."""


class PackError(InductorPluginError):
    """A pack of kernels compiled ahead of time that is empty, or whose kernels do not load."""


class OutputError(InductorPluginError):
    """A chosen kernel wrote NaN or Inf though its inputs are finite."""


class KernelError(InductorPluginError):
    """A compiled kernel that cannot be loaded, or that refuses a call."""


class CallRefusedError(KernelError):
    """A compiled kernel does not take a call's operands; nothing was launched, another kernel may."""


class CacheError(InductorPluginError):
    """The cache cannot do what was asked."""


class CacheRefusedError(CacheError):
    """The directory is owned or writable by someone else, so its kernels cannot be trusted."""


class ArchiveError(CacheError):
    """An export file that is damaged, of another format, or that would write outside the cache."""


class WorkerError(InductorPluginError):
    """Something went wrong with a worker process."""


class WorkerTimeoutError(WorkerError):
    """A worker took longer than its limit and was ended."""


class WorkerDiedError(WorkerError):
    """A worker died: it crashed, was killed, or ran out of memory."""
