"""The ``torch.compile(model, backend="inductor_plugin")`` backend.

The name is an entry point; importing this module makes it known where none is installed, as in a checkout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo.backends import registry

from inductor_plugin.activation import compile_graph
from inductor_plugin.inductor.artifacts import artifact


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
        options: The plugin's options and Inductor's, by name. ``max_autotune`` is on unless it is passed, or
            a patch of ``torch._inductor.config`` around the compile names it.

    Raises:
        OptionError: An unknown option, or a bad value.
    """
    return compile_graph(gm, example_inputs, mode, options or {})


# Dynamo's import imports this (`autoload`), and a process that loads artifacts has imported Dynamo.
artifact.register()
# Where torch has found the entry point it imports this for it, and registers what it gets.
if "inductor_plugin" not in registry._BACKENDS:  # pyright: ignore[reportPrivateUsage]
    registry.register_backend(compiler_fn=inductor_plugin, name="inductor_plugin")
