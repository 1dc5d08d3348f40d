"""Entry point that `import torch` calls in every process where the plugin is installed.

It must be fast when the plugin is not enabled, and a failure here must not break `import torch`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

_BACKENDS = "torch._dynamo.backends.registry"
_INDUCTOR = "torch._inductor.compile_fx"
_VARIABLES = "INDUCTOR_PLUGIN_"


def autoload() -> None:
    """Make the backend known, and enable the plugin if ``INDUCTOR_PLUGIN_ENABLE`` is set. Never raises.

    Importing Dynamo or Inductor here would cost every process seconds, even those that never compile;
    so both steps wait until torch imports them.
    """
    try:
        after_import(_BACKENDS, _register)
        # Importing the options takes several milliseconds, and most processes do not need them.
        if any(variable.startswith(_VARIABLES) for variable in os.environ):
            _enable()
    except Exception as error:  # noqa: BLE001 torch would turn it into a failed `import torch`
        logging.getLogger(__name__).warning(
            "inductor-plugin: it stays off: %s: %s; unset INDUCTOR_PLUGIN_ENABLE to silence this",
            type(error).__name__,
            error,
        )


def after_import(name: str, act: Callable[[Any], None]) -> None:
    """Call a function with a module once the module is executed: at once if it is there already."""
    module = sys.modules.get(name)
    if module is not None:
        act(module)
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """Calls a function when a module has been executed, not when it is only searched for."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Return the real spec of the module, with a loader that calls the function afterwards."""
        if fullname != self._name:
            return None
        for finder in self._later():
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader.exec_module = self._followed(spec.loader.exec_module)
                return spec
        return None

    def _later(self) -> list[Any]:
        """Return the finders that come after this one."""
        finders: list[Any] = list(sys.meta_path)
        return finders[finders.index(self) + 1 :] if self in finders else finders

    def _followed(self, execute: Callable[[Any], None]) -> Callable[[Any], None]:
        def exec_module(module: Any) -> None:
            execute(module)
            # Only after success: an import that fails may be tried again.
            if self in sys.meta_path:
                with suppress(ValueError):  # another thread was faster
                    sys.meta_path.remove(self)
                self._act(module)

        return exec_module


def _register(_registry: Any) -> None:
    """Register the backend before anyone can look it up.

    torch loads an entry point's backend at its first lookup, without a lock: two threads that compile
    first both register it, and the second one gets an AssertionError (torch 2.11 to 2.15).
    """
    with suppress(Exception):  # the border: the entry point is still there
        importlib.import_module("inductor_plugin.backend")  # 5 ms, where Dynamo takes a second


def _enable() -> None:
    from inductor_plugin.config import enabled_by_environment, warn_of_unknown_variables  # noqa: PLC0415  5 ms

    warn_of_unknown_variables()
    if enabled_by_environment():
        from inductor_plugin.activation import accept_options, enable_later  # noqa: PLC0415  mostly not needed

        accept_options({})
        after_import(_INDUCTOR, enable_later())
