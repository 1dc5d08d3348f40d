"""Which configuration governs the compile that runs now.

The configuration rides on ``post_grad_custom_post_pass``: a pass that does nothing to the graph.
Inductor's own ``config.patch`` then scopes it per compile, carries it into backward compiles and
other threads, and puts its ``uuid`` into the FX-graph cache key. Settings kept in a global or a
thread-local of ours would miss all four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

from inductor_plugin.config import Config
from inductor_plugin.registry import default_registry
from inductor_plugin.version import __version__

CARRIER = "post_grad_custom_post_pass"


class ConfigCarrier(CustomGraphPass):
    """Carries a `Config` through Inductor; runs the user's own passes that it took the place of."""

    def __init__(
        self,
        config: Config,
        inner: Sequence[Any] = (),
        on_graph: Callable[[Config, torch.fx.Graph], None] | None = None,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """Carry ``config``.

        Args:
            config: The configuration.
            inner: The user's post-grad passes, run in their order.
            on_graph: Called with each graph that is really compiled (not found in a cache).
            active: Whether the plugin is in place; after `disable` options made before do nothing.
        """
        self.config = config
        self._inner = tuple(inner)
        self._on_graph = on_graph
        self._active = active

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Leave the graph as it is, after the user's passes."""
        for one in self._inner:
            one(graph)
        if self._on_graph is not None and self._active():
            self._on_graph(self.config, graph)

    def uuid(self) -> Any:
        """Return what enters the FX-graph cache key; None (not cacheable) if a user's pass has none."""
        uuids: list[Any] = []
        for one in self._inner:
            inner = one.uuid() if isinstance(one, CustomGraphPass) else None
            if inner is None:
                return None
            uuids.append(inner)
        if not self._active():
            return ("inductor_plugin", "disabled", tuple(uuids))
        templates = default_registry().identity()
        return ("inductor_plugin", __version__, templates, self.config.code_key(), tuple(uuids))

    def __eq__(self, other: object) -> bool:
        """Compare by what enters the cache key, so that equal options do not recompile."""
        return isinstance(other, ConfigCarrier) and (self.config, self._inner) == (
            other.config,
            other._inner,
        )

    def __hash__(self) -> int:
        """Hash by the configuration."""
        return hash(self.config.code_key())

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfigCarrier:
        """Stay one object: AOTInductor deep-copies its configuration."""
        return self


def active_config() -> Config | None:
    """Return the configuration of the compile that runs now; None outside the plugin's scope."""
    for one in passes_in(getattr(inductor_config, CARRIER)):
        if isinstance(one, ConfigCarrier):
            return one.config
    return None


def passes_in(value: Any) -> tuple[Any, ...]:
    """Return the passes in a configuration value: none, one, or several."""
    if value is None:
        return ()
    several: Any = value  # narrowing by type would leave its elements unknown
    return tuple(several) if isinstance(value, (list, tuple)) else (value,)


def user_passes(value: Any) -> tuple[Any, ...]:
    """Return the user's post-grad passes out of a configuration value of any accepted form."""
    return tuple(one for one in passes_in(value) if not isinstance(one, ConfigCarrier))
