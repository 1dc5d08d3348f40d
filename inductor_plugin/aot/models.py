"""Loads a model and its example inputs from ``module:function``, and calls it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from inductor_plugin.errors import OptionError

Inputs: TypeAlias = tuple[Any, ...] | dict[str, Any]
"""Arguments of a model: positional or keyword."""

TINY = "inductor_plugin.aot.decoder:tiny"
SMALL = "inductor_plugin.aot.decoder:small"


def load(spec: str) -> tuple[nn.Module, Inputs]:
    """Call ``module:function`` and return the model and the first set of example inputs.

    Raises:
        OptionError: As `load_sets`.
    """
    model, sets = load_sets(spec)
    return model, sets[0]


def load_sets(spec: str) -> tuple[nn.Module, list[Inputs]]:
    """Call ``module:function`` and return the model and all sets of example inputs.

    The module may also be in the current directory, as with ``python -m``.

    Raises:
        OptionError: There is no such module or function, or it returns something else.
    """
    returned: object = function(spec)()
    pair = cast("tuple[object, ...]", returned) if isinstance(returned, tuple) else ()
    if len(pair) != 2:
        raise OptionError(
            f"model {spec!r} returned {_kind(cast('object', returned))}; return (model, example_inputs)"
        )
    model, inputs = pair
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"model {spec!r} returned {_kind(model)} as the model; return an nn.Module"
        )
    sets = cast("list[object]", inputs if isinstance(inputs, list) else [inputs])
    if not sets or not all(isinstance(inputs_of_call, tuple | dict) for inputs_of_call in sets):
        raise OptionError(
            f"model {spec!r} returned {_kind(cast('object', inputs))} as example inputs; return a tuple of "
            "positional arguments, a dict of keyword arguments, or a list of such sets"
        )
    return model, cast("list[Inputs]", sets)


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """Return the outputs of a model for its example inputs."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a model's outputs, in a fixed order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return tensors(list(cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, tuple | list):
        return [tensor for part in cast("list[Any]", value) for tensor in tensors(part)]
    return []


def moved(value: Any, device: str) -> Any:
    """Return a model's inputs with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        inputs = cast("dict[Any, Any]", value)
        return {name: moved(part, device) for name, part in inputs.items()}
    if type(value) in (tuple, list):
        return type(value)(moved(part, device) for part in value)
    return value


def function(
    spec: str, what: str = "model", returns: str = " and returns (model, example_inputs)"
) -> Callable[[], Any]:
    """Return the function that ``module:function`` names.

    Args:
        spec: The name.
        what: What it is, for messages.
        returns: What it does besides taking no arguments, for messages.

    Raises:
        OptionError: There is no such module or function.
    """
    module_name, separator, name = spec.partition(":")
    if not (module_name and separator and name):
        raise OptionError(f"{what} is {spec!r}; write module:function, for example {TINY}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise OptionError(
            f"{what} {spec!r}: no module {error.name!r} in {here} or among the installed packages; "
            "change to its folder or install it"
        ) from error
    named = getattr(module, name, None)
    if not callable(named):
        has = "no" if named is None else "no callable"
        raise OptionError(
            f"{what} {spec!r}: {module_name} has {has} {name!r}; name a function that takes nothing{returns}"
        )
    return named


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"
