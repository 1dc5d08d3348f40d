"""Switching the plugin on: per compile, for stock ``backend="inductor"``, or for the process."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

from inductor_plugin.config import Config, split
from inductor_plugin.errors import OptionError

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
_STOCK: dict[str, Any] = {}


def options(**chosen: object) -> dict[str, Any]:
    """Return options for ``torch.compile(model, options=...)`` with the stock backend.

    Args:
        chosen: The plugin's own options and Inductor's, by name. ``max_autotune`` is on unless it
            is given.

    Raises:
        OptionError: An option that neither knows, or a bad value.
    """
    return inductor_options(None, chosen)


def inductor_options(mode: str | None, chosen: Mapping[str, object]) -> dict[str, Any]:
    """Return Inductor's configuration for a compile under the plugin.

    Without a supported torch the user's own Inductor options are returned as they are, after one
    warning.
    """
    ours, others = split(chosen)
    # Imported here: `import inductor_plugin` must not load torch (2.5 s).
    from inductor_plugin import lowering  # noqa: PLC0415

    return lowering.compile_options(mode, Config.load(ours), others)


def enable(**chosen: object) -> None:
    """Put every `torch.compile` with the Inductor backend in this process under the plugin.

    A compile that names ``max_autotune`` itself keeps its value; otherwise it is on. Calling it
    again replaces the options.

    Raises:
        OptionError: An option that is not known, or a bad value.
    """
    from inductor_plugin import lowering  # noqa: PLC0415  loads torch._inductor

    ours, others = split(chosen)
    config = Config.load(ours)
    with _LOCK:
        lowering.wrap_backend(config, others, _STOCK)


def disable() -> None:
    """Leave torch as it was: undo `enable`, remove the hooks, end the workers."""
    if "torch._inductor" not in sys.modules:
        return
    from inductor_plugin import lowering  # noqa: PLC0415  loads torch._inductor

    with _LOCK:
        lowering.unwrap_backend(_STOCK)


def enable_deferred() -> None:
    """Enable as soon as Inductor is first used; called at the end of ``import torch``.

    Importing `torch._inductor` there would cost every process seconds, also those that never
    compile. A bad option is an error at the first compile, not at the import.
    """
    import importlib.abc  # noqa: PLC0415  only when switched on

    name = "torch._inductor.compile_fx"
    if name in sys.modules:
        enable()
        return

    class Finder(importlib.abc.MetaPathFinder):
        """Calls `enable` after the module is loaded, once."""

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            """Return the real spec of the module, with a loader that enables afterwards."""
            if fullname != name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(fullname)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    run(module)
                    _enable_or_warn()

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, Finder())


def _enable_or_warn() -> None:
    try:
        enable()
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001  the border: never break the user's import
        warnings.warn(f"inductor-plugin is off: {error}", RuntimeWarning, stacklevel=2)
