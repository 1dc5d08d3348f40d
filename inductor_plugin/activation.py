"""Enabling the plugin: per compile, for stock ``backend="inductor"``, or for the process."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from inductor_plugin.config import Config, split
from inductor_plugin.errors import NAME, OptionError, PinError, expanded, warn_once

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
_STOCK: dict[str, Any] = {}
_CALLS = {"disable": 0}
"""How often `disable` was called: what waited for Inductor then is out of date."""
_COMPILE_FX = "torch._inductor.compile_fx"


def options(**chosen: object) -> dict[str, Any]:
    """Return options for ``torch.compile(model, options=...)`` with the stock backend.

    If this torch does not have the hooks the plugin needs, Inductor's own options are returned
    unchanged, after one warning.

    Args:
        chosen: The plugin's own options and Inductor's, by name. ``max_autotune`` is on unless it
            is passed, or a patch of ``torch._inductor.config`` around this call names it.

    Raises:
        OptionError: An unknown option, or a bad value.
    """
    config, others = _loaded(chosen)
    hooks = _hooks()
    return dict(others) if hooks is None else hooks.compile_options(None, config, others)


def compile_graph(
    model: Any, example_inputs: Any, mode: str | None, chosen: Mapping[str, object]
) -> Any:
    """Compile one graph with the plugin; implements the ``inductor_plugin`` backend.

    Raises:
        OptionError: An unknown option, or a bad value.
    """
    config, others = _loaded(chosen)
    hooks = _hooks()
    if hooks is not None:
        return hooks.compile_graph(model, example_inputs, mode, config, others)
    import torch  # noqa: PLC0415  already loaded where a graph is compiled

    stock: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage]
    return stock(mode, dict(others), None)(model, example_inputs)


def enable(**chosen: object) -> None:
    """Use the plugin for every `torch.compile` with the Inductor backend in this process.

    A compile that sets ``max_autotune``, or has a patch of ``torch._inductor.config`` around it that does, keeps its value;
    otherwise it is on. Calling this function again replaces the options.

    Raises:
        OptionError: An unknown option, or a bad value.
    """
    config, others = _loaded(chosen)
    hooks = _hooks()
    if hooks is not None:
        with _LOCK:
            hooks.wrap_backend(config, others, _STOCK)
        # After what refuses them, so that those of an earlier call stay.
        accept_options(chosen)


def accept_options(chosen: Mapping[str, object]) -> None:
    """Let ``torch.compile(model, options=...)`` take the plugin's options, where the plugin is on for the process.

    torch checks the names of options before it compiles, and ends with a list of Inductor's.

    Args:
        chosen: Options that such a compile does not have to repeat.
    """
    import torch  # noqa: PLC0415  loaded already: this is called by its import, or by a compile

    wrapper: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    with _LOCK:
        stock = _STOCK.setdefault("apply_options", getattr(wrapper, "apply_options", None))
    if stock is None:
        return

    @functools.wraps(stock)
    def apply_options(wrapped: Any, given: Mapping[str, object] | None) -> None:
        ours = split(given or {})[0]
        stock(wrapped, options(**{**chosen, **(given or {})}) if ours else given)

    wrapper.apply_options = apply_options


@contextmanager
def observe(callback: Callable[[Sequence[Any]], None]) -> Generator[None]:
    """Call a function with the decisions of each graph that is compiled in the block.

    If this torch does not have the hooks the plugin needs, it is never called.

    Args:
        callback: Called with the tickets of a graph (`tuning.ticket.TuningTicket`): ``digest`` and
            ``problem`` identify the call, ``verdict`` is the decision; None if there is none.
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


@contextmanager
def record(file: str | os.PathLike[str]) -> Generator[Any]:
    """Write every decision of the graphs that are compiled in the block to a file, for ``policy=pinned``.

    Graphs are compiled, even if they are in Inductor's caches; the gradient of a graph is compiled with it, so that
    the file has both, whether or not the block computes it. All threads of the process count. In a recorded compile
    nothing is left to measurements of Inductor's own, which no pin could repeat. The file is written when the block
    ends without an exception, and replaces one that is there. Ranks of a ``torch.distributed`` job that name the same
    file write it together: it has what any of them has compiled. A rank that cannot add to it, since the job's store does
    not answer, or others were writing for too long, writes a file of its own beside it (``pins.rank3.json``), with a warning.

    Args:
        file: The file, in an existing folder.

    Raises:
        OptionError: There is no such folder, or the path is no plain file.
        PinError: No graph was compiled in the block, or nothing can be recorded here.
    """
    path = expanded(os.fspath(file), "the file to record to", OptionError)
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise OptionError(f"cannot record to {path}: name a plain file in an existing folder")
    hooks = _hooks()
    if hooks is None:
        raise PinError(f"cannot record to {path}: this torch lacks the hooks of the plugin")
    from inductor_plugin.tuning.ranks.job import joined, rank_here  # noqa: PLC0415  loads torch, as `_hooks`
    from inductor_plugin.tuning.ranks.recorded import begin, write_recorded  # noqa: PLC0415

    begun = begin(path, joined())
    try:
        with hooks.recorded() as recording:
            yield recording
    finally:
        begun = begun.in_job(joined())
    if not recording.graphs:
        raise PinError(
            f"nothing is recorded in {path}: no graph was compiled with the plugin in the block; call the model there "
            "for the first time, or torch._dynamo.reset() before it"
        )
    write_recorded(begun, recording.file(), rank_here())


def disable() -> None:
    """Undo `enable`: remove all hooks from torch and end the workers; ``INDUCTOR_PLUGIN_ENABLE`` enables nothing any more."""
    with _LOCK:
        _CALLS["disable"] += 1
        apply_options = _STOCK.pop("apply_options", None)
        if apply_options is not None:
            wrapper: Any = sys.modules["torch"]._TorchCompileInductorWrapper
            wrapper.apply_options = apply_options
        stock, module = _STOCK.pop("compile_fx", None), sys.modules.get(_COMPILE_FX)
        if stock is not None and module is not None:
            vars(module)["compile_fx"] = stock
    if "inductor_plugin.inductor.hooks" not in sys.modules:
        return
    hooks = _hooks()
    if hooks is not None:
        with _LOCK:
            hooks.unwrap_backend(_STOCK)


def _loaded(chosen: Mapping[str, object]) -> tuple[Config, Mapping[str, object]]:
    """Return the plugin's options, and Inductor's unchanged."""
    ours, others = split(chosen)
    return Config.load(ours), others


def _hooks() -> Any:
    """Return the module that hooks into Inductor; None, after one warning, if it cannot.

    Imported late because `import inductor_plugin` must not load torch (2.5 s).
    """
    try:
        from inductor_plugin.inductor import hooks  # noqa: PLC0415
    except (ImportError, AttributeError) as error:  # a torch newer than tested moved something
        _step_aside(f"{type(error).__name__}: {error}")
        return None
    reason = hooks.why_not_supported()
    if reason is not None:
        _step_aside(reason)
        return None
    return hooks


@functools.cache
def _step_aside(reason: str) -> None:
    warnings.warn(
        f"{NAME}it steps aside, stock Inductor is used: {reason}", RuntimeWarning, stacklevel=4
    )


def enable_later() -> Callable[[Any], None]:
    """Return what calls `enable_at_first_compile` with Inductor's module, unless `disable` was called in between."""
    before = _CALLS["disable"]

    def act(module: Any) -> None:
        if _CALLS["disable"] == before:
            enable_at_first_compile(module)

    return act


def enable_at_first_compile(module: Any) -> None:
    """Enable the plugin at the first compile; called when Inductor's module has been executed.

    Not during that import: what imports Inductor may be a module of the plugin, which its hooks need
    and which is then half executed. A bad option is an error of every compile, not of an import.

    Args:
        module: ``torch._inductor.compile_fx``.
    """
    with _LOCK:
        stock = _STOCK.setdefault("compile_fx", module.compile_fx)

    @functools.wraps(stock)
    def compile_fx(*args: Any, **kwargs: Any) -> Any:
        # Code that has imported this function by its name calls it even after it was replaced.
        if module.compile_fx is compile_fx:
            _enable_or_warn()  # raises while an option is wrong, otherwise replaces this function
        current = module.compile_fx
        return (stock if current is compile_fx else current)(*args, **kwargs)

    module.compile_fx = compile_fx


def _enable_or_warn() -> None:
    try:
        enable()
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001  the border: never break the user's compile
        warn_once(logger, f"it is off: {type(error).__name__}: {error}; stock Inductor is used")
