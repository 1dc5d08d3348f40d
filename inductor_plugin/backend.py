"""The ``torch.compile(model, backend="inductor_plugin")`` backend (entry point)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inductor_plugin.activation import compile_graph


def inductor_plugin(
    gm: Any,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile a graph with Inductor, with kernels chosen by the plugin.

    Args:
        gm: The graph module Dynamo captured.
        example_inputs: Its inputs (fake tensors).
        mode: As for ``torch.compile``.
        options: The plugin's options and Inductor's, by name. ``max_autotune`` is on unless passed.

    Raises:
        OptionError: An unknown option, or a bad value.
    """
    return compile_graph(gm, example_inputs, mode, options or {})
