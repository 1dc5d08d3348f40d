"""The ``torch.compile(model, backend="inductor_plugin")`` backend (entry point)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def inductor_plugin(
    gm: Any,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile a graph with Inductor, its kernels chosen by the plugin.

    Args:
        gm: The graph module Dynamo captured.
        example_inputs: Its inputs (fake tensors).
        mode: As for ``torch.compile``.
        options: The plugin's options and Inductor's, by name. ``max_autotune`` is on unless given.

    Raises:
        OptionError: An option that neither knows, or a bad value.
    """
    from inductor_plugin import lowering  # noqa: PLC0415  loads torch._inductor
    from inductor_plugin.config import Config, split  # noqa: PLC0415

    ours, others = split(options or {})
    return lowering.compile_graph(gm, example_inputs, mode, Config.load(ours), others)
