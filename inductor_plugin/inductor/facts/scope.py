"""The plugin's configuration of the compile in progress.

The configuration is attached to ``post_grad_custom_post_pass``, as a pass that does not change the
graph. Inductor's ``config.patch`` then scopes it per compile, propagates it to backward compiles and
other threads, and puts its ``uuid`` into the FX-graph cache key. A global or a thread-local of ours
would do none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

from inductor_plugin.config import Config
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.pins.recording import active as active_recordings
from inductor_plugin.version import __version__
from inductor_plugin.worker import switches

CARRIER = "post_grad_custom_post_pass"
_GENERATION = 3
"""Of the graphs in Inductor's cache; those of the first may hold repacked weights of another model, those of the second do
not carry their decisions, to which the ranks of a job have to agree."""

_TIME_LIMITS = {
    "compile_timeout_s": "precompilation_timeout_seconds",
    "bench_timeout_s": "max_autotune_subproc_result_timeout_seconds",
}
"""Options of ours, and Inductor's of the same meaning: the lower one holds, unless the user sets ours."""
_CACHES_OFF = "force_disable_caches"
_NONE: Mapping[str, Any] = MappingProxyType({})


class ConfigCarrier(CustomGraphPass):
    """Carries a `Config` through Inductor; runs the user's own passes, which it replaces."""

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
            on_graph: Called with each graph that is compiled (not loaded from a cache).
            active: Whether the plugin is enabled; after `disable`, earlier options have no effect.
        """
        self._stated = config
        self._inner = tuple(inner)
        self._on_graph = on_graph
        self._active = active
        self._switched: tuple[dict[str, Any], Config] | None = None

    @property
    def config(self) -> Config:
        """The options, as Inductor's own switches decide now what the user leaves to them.

        What `inductor_plugin.options` returns may be older than the patch in which a compile begins. The answer is kept
        until a switch changes, since lowering asks for it at each product and fusion.
        """
        now, last = inductor_switches(), self._switched
        if last is None or last[0] != now:
            last = self._switched = now, as_switched(self._stated, now)
        return last[1]

    @property
    def inner(self) -> tuple[Any, ...]:
        """The user's passes."""
        return self._inner

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Run the user's passes; change nothing else."""
        for user_pass in self._inner:
            user_pass(graph)
        if self._active():
            for recording in active_recordings():
                recording.count()
            if self._on_graph is not None:
                self._on_graph(self.config, graph)

    def uuid(self) -> Any:
        """Return the part of the FX-graph cache key; None (not cacheable) if a user's pass has none.

        None as well while decisions are recorded: a graph out of Inductor's cache is not lowered, so what
        was decided in it would not be recorded. AOTAutograd's cache asks the same question.
        """
        if active_recordings() and self._active():
            return None
        uuids: list[Any] = []
        for user_pass in self._inner:
            uuid = user_pass.uuid() if isinstance(user_pass, CustomGraphPass) else None
            if uuid is None:
                return None
            uuids.append(uuid)
        if not self._active():
            return ("inductor_plugin", "disabled", tuple(uuids))
        templates = default_registry().identity()
        code = (__version__, _GENERATION, templates, self.config.code_key())
        return ("inductor_plugin", *code, tuple(uuids), *_of_rank(self.config), *_of_switches())

    def __eq__(self, other: object) -> bool:
        """Compare the parts of the cache key, so that equal options do not recompile."""
        return isinstance(other, ConfigCarrier) and (self._stated, self._inner) == (
            other._stated,
            other._inner,
        )

    def __hash__(self) -> int:
        """Hash by the configuration."""
        return hash(self._stated.code_key())

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfigCarrier:
        """Return the same object: AOTInductor deep-copies its configuration."""
        return self


def active_config() -> Config | None:
    """Return the configuration of the compile in progress; None outside the plugin's scope."""
    for graph_pass in passes_in(getattr(inductor_config, CARRIER)):
        if isinstance(graph_pass, ConfigCarrier):
            return graph_pass.config
    return None


def inductor_switches(options: Mapping[str, Any] = _NONE) -> dict[str, Any]:
    """Return Inductor's own switches of caches and time limits, by name; None for those that this torch lacks.

    Args:
        options: Inductor's options of a compile that begins; within it they are in force.
    """
    return {
        name: options[name] if name in options else getattr(inductor_config, name, None)
        for name in (_CACHES_OFF, *_TIME_LIMITS.values())
    }


def as_switched(config: Config, now: Mapping[str, Any]) -> Config:
    """Return the options as Inductor's own switches decide those that the user leaves to us: caches, time limits.

    Args:
        config: The options.
        now: The switches, as `inductor_switches` returns them.
    """
    lower = {
        ours: float(limit_s)
        for ours, theirs in _TIME_LIMITS.items()
        if ours not in config.stated and 0 < (limit_s := now[theirs] or 0) < getattr(config, ours)
    }
    return replace(config, **lower).with_cache(disabled=bool(now[_CACHES_OFF]))


def host_counts() -> bool:
    """Return whether the host launches what runs, as the benchmark worker does.

    A CUDA graph launches alone; a C++ wrapper launches library kernels in less time, operators in more.
    """
    return not inductor_config.triton.cudagraphs and not inductor_config.cpp_wrapper


class UserPasses(CustomGraphPass):
    """The user's passes without the plugin's configuration: what is compiled with them alone is Inductor's."""

    def __init__(self, inner: Sequence[Any]) -> None:
        """Run ``inner`` in order."""
        self._inner = tuple(inner)

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Run them."""
        for user_pass in self._inner:
            user_pass(graph)

    def uuid(self) -> Any:
        """Return None: the graph is not to be cached."""
        return None


def without_plugin() -> dict[str, Any]:
    """Return the patch of Inductor's options in which the compile in progress is not the plugin's."""
    carriers = [
        each
        for each in passes_in(getattr(inductor_config, CARRIER))
        if isinstance(each, ConfigCarrier)
    ]
    inner = [user_pass for carrier in carriers for user_pass in carrier.inner]
    return {CARRIER: UserPasses(inner) if inner else None}


def passes_in(value: Any) -> tuple[Any, ...]:
    """Return the passes in a configuration value: none, one, or several."""
    if value is None:
        return ()
    several: Any = value  # narrowing by type would leave its elements unknown
    return tuple(several) if isinstance(value, (list, tuple)) else (value,)


def user_passes(value: Any) -> tuple[Any, ...]:
    """Return the user's post-grad passes in a configuration value of any accepted form."""
    return tuple(p for p in passes_in(value) if not isinstance(p, ConfigCarrier))


def is_reproducible(config: Config) -> bool:
    """Return True where nothing may be decided that others cannot repeat: a compile is recorded, decided by pins, or of a rank.

    What Inductor measures itself (choices of its own kinds, prologues) it keeps for itself. See `inductor.reductions`, too.
    """
    return config.policy == "pinned" or bool(active_recordings()) or _is_of_rank(config)


def _is_of_rank(config: Config) -> bool:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from inductor_plugin.tuning.ranks.job import current  # noqa: PLC0415  of jobs alone

    return current(config) is not None


def _of_rank(config: Config) -> tuple[str, ...]:
    """Return what the cache key of a rank has besides: its reductions have one tile, not the one that a process finds fastest."""
    return ("of a rank",) if _is_of_rank(config) else ()


def _of_switches() -> tuple[tuple[str, object], ...]:
    """Return torch's switches of library kernels that the user has changed: decisions rest on them, and Inductor's own key lacks them.

    Without them a graph with fp16 accumulation would be taken after the user has switched that off. Reading some of them may
    set up a GPU: none are read in a process that uses none.
    """
    return switches.differing() if torch.cuda.is_initialized() else ()
