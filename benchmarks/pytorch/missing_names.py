"""A pytest plugin that supplies names which PyTorch's tests import and the installed torch lacks.

Tests of another version than torch's import names that moved or went. Each is replaced by a decorator that changes
nothing, and false; a test that needs more fails, in both arms.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_NAME = re.compile(r"cannot import name '(\w+)' from '(torch[\w.]*)'")
_MODULE = re.compile(r"No module named '(torch\.[\w.]+)'")
_MOST = 60


class MissingModule(ModuleType):
    """Has the place of a module that torch lacks; its names are missing, too."""

    def __init__(self, name: str) -> None:
        """Be a package without files."""
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Missing:
        """Return a name of it."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(name)


class Missing:
    """Has the place of a name that torch lacks."""

    def __init__(self, name: str) -> None:
        """Keep the name."""
        self.__name__ = name

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        """Return what is decorated."""
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __bool__(self) -> bool:
        """Return False: a flag that torch lacks is not set."""
        return False


def supply(module: str) -> list[str]:
    """Import a test module, with what it lacks; returns the names."""
    supplied: list[str] = []
    while len(supplied) < _MOST and (name := _lacking(module)):
        supplied.append(name)
    return supplied


def _lacking(module: str) -> str:
    """Supply the first name that the import of a module lacks, and return it; empty if it lacks none of torch's."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        if match := _MODULE.match(str(error)):
            name = match[1]
            sys.modules[name] = MissingModule(name)
            return name
        if match := _NAME.match(str(error)):
            name, source = match.groups()
            setattr(sys.modules[source], name, Missing(name))
            return f"{source}.{name}"
    except (Exception, pytest.skip.Exception):  # noqa: BLE001  collecting the file says it
        pass
    return ""


def pytest_configure(config: pytest.Config) -> None:
    """Supply what the files of this run lack."""
    files = {Path(argument.partition("::")[0]).stem for argument in config.args}
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    for file in sorted(files):
        if supplied := supply(file):
            sys.stderr.write(f"{file} lacks {', '.join(supplied)}\n")
