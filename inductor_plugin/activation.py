"""Switching the plugin on: per compile, for stock ``backend="inductor"``, or for the process."""

from __future__ import annotations

import functools
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

    Where this torch does not have the plugin's hooks, Inductor's own options are returned as they
    are, after one warning.

    Args:
        chosen: The plugin's own options and Inductor's, by name. ``max_autotune`` is on unless it
            is given.

    Raises:
        OptionError: An option that neither knows, or a bad value.
    """
    ours, others = split(chosen)
    config = Config.load(ours)
    hooks = _hooks()
    return dict(others) if hooks is None else hooks.compile_options(None, config, others)


def compile_graph(
    model: Any, example_inputs: Any, mode: str | None, chosen: Mapping[str, object]
) -> Any:
    """Compile one graph under the plugin: what the ``inductor_plugin`` backend does.

    Raises:
        OptionError: An option that neither knows, or a bad value.
    """
    ours, others = split(chosen)
    config = Config.load(ours)
    hooks = _hooks()
    if hooks is not None:
        return hooks.compile_graph(model, example_inputs, mode, config, others)
    import torch  # noqa: PLC0415  loaded long ago where a graph is compiled

    stock: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage]
    return stock(mode, dict(others), None)(model, example_inputs)


def enable(**chosen: object) -> None:
    """Put every `torch.compile` with the Inductor backend in this process under the plugin.

    A compile that names ``max_autotune`` itself keeps its value; otherwise it is on. Calling it
    again replaces the options.

    Raises:
        OptionError: An option that is not known, or a bad value.
    """
    ours, others = split(chosen)
    config = Config.load(ours)
    hooks = _hooks()
    if hooks is not None:
        with _LOCK:
            hooks.wrap_backend(config, others, _STOCK)


def disable() -> None:
    """Leave torch as it was: undo `enable`, remove the hooks, end the workers."""
    if "inductor_plugin.lowering" not in sys.modules:
        return
    hooks = _hooks()
    if hooks is not None:
        with _LOCK:
            hooks.unwrap_backend(_STOCK)


def _hooks() -> Any:
    """Return the module that reaches into Inductor; None, after one warning, where it cannot.

    Imported late because `import inductor_plugin` must not load torch (2.5 s).
    """
    try:
        from inductor_plugin import lowering  # noqa: PLC0415
    except (ImportError, AttributeError) as error:  # a torch newer than tested moved something
        _step_aside(f"{type(error).__name__}: {error}")
        return None
    reason = lowering.unsupported()
    if reason is not None:
        _step_aside(reason)
        return None
    return lowering


@functools.cache
def _step_aside(reason: str) -> None:
    warnings.warn(
        f"inductor-plugin steps aside, stock Inductor is used: {reason}",
        RuntimeWarning,
        stacklevel=4,
    )


def enable_deferred() -> None:
    """Enable as soon as Inductor is first used; called at the end of ``import torch``.

    Importing `torch._inductor` there would cost every process seconds, also those that never
    compile. A bad option is an error at the first compile, not at the import.
    """
    import importlib.abc  # noqa: PLC0415  only when switched on
    import importlib.util  # noqa: PLC0415  the same

    name = "torch._inductor.compile_fx"
    if name in sys.modules:
        enable()
        return

    class Finder(importlib.abc.MetaPathFinder):
        """Calls `enable` after the module is loaded, once."""

        def find_spec(self, fullname: str, _path: Any, _target: Any = None, /) -> Any:
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
