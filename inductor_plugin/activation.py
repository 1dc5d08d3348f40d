"""Switching the plugin on: per compile, for stock ``backend="inductor"``, or for the process."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from inductor_plugin.config import Config, split
from inductor_plugin.errors import OptionError

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
_STOCK: dict[str, Any] = {}
_COMPILE_FX = "torch._inductor.compile_fx"


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


@contextmanager
def observe(callback: Callable[[Sequence[Any]], None]) -> Generator[None]:
    """Let a function see what is decided of each graph that is compiled in the block.

    Where this torch does not have the plugin's hooks, nothing is decided and nothing is seen.

    Args:
        callback: Takes the tickets of a graph (`tuning.selection.Ticket`): ``digest`` and ``problem``
            say what was asked, ``verdict`` what runs; None where nothing was decided.
    """
    if _hooks() is None:
        yield
        return
    from inductor_plugin.inductor.graph import session  # noqa: PLC0415  loads torch, as `_hooks`

    session.OBSERVERS.append(callback)
    try:
        yield
    finally:
        session.OBSERVERS.remove(callback)


def disable() -> None:
    """Leave torch as it was: undo `enable`, remove the hooks, end the workers."""
    _disarm()
    with _LOCK:
        stock, module = _STOCK.pop("compile_fx", None), sys.modules.get(_COMPILE_FX)
        if stock is not None and module is not None:
            vars(module)["compile_fx"] = stock
    if "inductor_plugin.inductor.hooks" not in sys.modules:
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
        from inductor_plugin.inductor import hooks as lowering  # noqa: PLC0415
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
    compile. A bad option is an error at every compile, not at the import.
    """
    module = sys.modules.get(_COMPILE_FX)
    if module is not None:
        _enable_or_refuse(module)
        return
    _disarm()
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Enables the plugin when Inductor's module is executed; to look for it changes nothing."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """Return the real spec of the module, with a loader that enables afterwards."""
        if fullname != _COMPILE_FX:
            return None
        for finder in self._later():
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader.exec_module = self._enabling(spec.loader.exec_module)
                return spec
        return None

    def _later(self) -> list[Any]:
        """Return the finders that are asked after this one."""
        finders: list[Any] = list(sys.meta_path)
        return finders[finders.index(self) + 1 :] if self in finders else finders

    def _enabling(self, execute: Callable[[Any], None]) -> Callable[[Any], None]:
        def exec_module(module: Any) -> None:
            execute(module)
            # Not before: an import that fails may be tried again.
            if self in sys.meta_path:
                _disarm()
                _enable_or_refuse(module)

        return exec_module


def _disarm() -> None:
    for finder in [one for one in sys.meta_path if isinstance(one, _Finder)]:
        with suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(finder)


def _enable_or_refuse(module: Any) -> None:
    """Enable, or let every compile say why not; never break the import of Inductor."""
    try:
        _enable_or_warn()
    except OptionError:
        _refuse(module)


def _enable_or_warn() -> None:
    try:
        enable()
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001  the border: never break the user's import
        warnings.warn(f"inductor-plugin is off: {error}", RuntimeWarning, stacklevel=2)


def _refuse(module: Any) -> None:
    """Let every compile raise the OptionError, until the option is corrected."""
    with _LOCK:
        stock = _STOCK.setdefault("compile_fx", module.compile_fx)

    @functools.wraps(stock)
    def compile_fx(*args: Any, **kwargs: Any) -> Any:
        _enable_or_warn()  # raises while the option is wrong, and then takes this function's place
        current = module.compile_fx
        return (stock if current is compile_fx else current)(*args, **kwargs)

    module.compile_fx = compile_fx
