"""The single hook into Inductor's selection: `AlgorithmSelectorCache.__call__`.

Every autotuned call of every operator reaches it in torch 2.11-2.15 (mm.py, bmm.py, conv.py,
mkldnn_lowerings.py, flex ...), with its final list of choices. The existing selector keeps its
state (the user's preprocessing functions and feedback savers); only its class is replaced, and
restored by `uninstall`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir, select_algorithm
from torch._inductor.utils import is_gpu
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from inductor_plugin.errors import DeviceError, OptionError, warn_once
from inductor_plugin.inductor.candidates.decompose_k import allowed, promising
from inductor_plugin.inductor.candidates.offers import why_not_measurable
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.inductor.facts.scope import active_config, is_reproducible
from inductor_plugin.inductor.graph.deferral import DEFERRABLE
from inductor_plugin.inductor.graph.pending import PendingChoice
from inductor_plugin.inductor.graph.pinning import untimed
from inductor_plugin.inductor.graph.session import Session, session_of
from inductor_plugin.problem.attention import DIRECTIONS
from inductor_plugin.worker.devices.lookup import give_up, uuid_of, why_not_tuned
from inductor_plugin.worker.turn import turn

logger = logging.getLogger(__name__)

_STOCK_ONLY = ("best_config_future", "is_collective", "benchmark_with_cudagraphs")


class PluginSelector(select_algorithm.AlgorithmSelectorCache):
    """Inductor's selector, with the plugin's selection inside the plugin's scope."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - torch's versions differ
        self,
        name: str,
        choices: list[Any],
        input_nodes: Sequence[Any],
        layout: ir.Layout,
        input_gen_fns: Mapping[int, Callable[[Any], torch.Tensor]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the node of the chosen kernel, or a node whose kernel is decided later."""
        untyped: Any = super()

        def stock(choices: list[Any]) -> Any:
            return untyped.__call__(name, choices, input_nodes, layout, input_gen_fns, **kwargs)

        config = active_config()
        if config is None:
            return stock(choices)
        choices, unwanted = allowed(choices, config)
        if _steps_aside(name, choices, layout, kwargs):
            return stock(untimed(choices) if is_reproducible(config) else choices)
        for preprocess in self.preprocessing_fns:
            choices = preprocess(choices)
        offered = choices
        try:
            session = session_of(V.graph, config)
            call = session.call(name, choices, input_nodes, layout, input_gen_fns)
            choices, rejected = session.with_templates(call, choices)
            choices, hopeless = promising(choices, call.problem)
            rejected = {**_refused(choices), **unwanted, **hopeless, **rejected}
            if len(choices) < 2:
                session.record_only_choice(call, choices, rejected)
                return self._only(name, choices, kwargs)
            pending = session.submit(call, choices, rejected)
            return _node(session, pending, choices, kwargs)
        except (OptionError, select_algorithm.NoValidChoicesError):
            raise
        except DeviceError as error:
            give_up(device_text(layout.device), error)
            return stock(untimed(offered) if is_reproducible(config) else offered)
        except Exception:  # the border where Inductor calls us: its own choices are used
            if name in DIRECTIONS:
                raise  # not a call of Inductor's: the attention lowering then falls back to it
            logger.exception(
                "inductor-plugin: could not tune %s; Inductor's own selection is used", name
            )
            return stock(untimed(offered) if is_reproducible(config) else offered)

    @classmethod
    def benchmark_in_current_process(cls, *args: Any, **kwargs: Any) -> Any:
        """Return what Inductor measures here, while no worker measures on the same GPU; arguments as Inductor's."""
        measure: Any = super().benchmark_in_current_process
        return _alone(measure, args, kwargs)

    @classmethod
    def benchmark_in_sub_process(cls, *args: Any, **kwargs: Any) -> Any:
        """Return what Inductor measures in its own processes, as `benchmark_in_current_process` does."""
        measure: Any = super().benchmark_in_sub_process
        return _alone(measure, args, kwargs)

    def _only(self, name: str, choices: list[Any], kwargs: dict[str, Any]) -> Any:
        if not choices:
            raise self.create_no_valid_choices(name, "No choices exist for backend.")
        return compat.selected(choices[0].output_node(), choices[0], kwargs)


def _alone(measure: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function measures for Inductor; in the plugin's scope when it is this process's turn on the GPU.

    Each process that measures disturbs the other. Inductor has no mark for a time that was disturbed, so the log has it.
    """
    device = next((v.device for v in (*args, *kwargs.values()) if isinstance(v, ir.Layout)), None)
    if active_config() is None or device is None or device.type == "cpu":
        return measure(*args, **kwargs)
    with turn(uuid_of(device_text(device))) as mine:
        measured = measure(*args, **kwargs)
        if not mine:
            logger.info("Inductor's selection was measured beside another process on the GPU")
    return measured


def install() -> None:
    """Replace Inductor's selector by the plugin's, which changes nothing outside the plugin's scope."""
    selector = select_algorithm.get_algorithm_selector_cache()
    if type(selector) is select_algorithm.AlgorithmSelectorCache:
        selector.__class__ = PluginSelector


def uninstall() -> None:
    """Restore Inductor's own selector."""
    selector: Any = select_algorithm.get_algorithm_selector_cache()
    if installed():
        selector.__class__ = select_algorithm.AlgorithmSelectorCache


def installed() -> bool:
    """Return True if the plugin's selector is in place."""
    return type(select_algorithm.get_algorithm_selector_cache()) is PluginSelector


def _node(
    session: Session, pending: PendingChoice, choices: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Return a node for a pending choice: Inductor's deferred node, ours, or the winner's."""
    call = pending.call
    if _runs_cpp(call.layout):
        if call.op in DEFERRABLE:
            return compat.selected(session.defer(pending, choices), None, kwargs)
    elif _is_finished_by_scheduler(choices, call.layout) and (
        kwargs.get("return_multi_template") and not call.input_gen_fns
    ):
        buffer = ir.MultiTemplateBuffer(
            call.layout, call.nodes, pending.timings, choices, _prologues(choices)
        )
        box: Any = ir.TensorBox.create(buffer)
        session.keep(buffer.get_name(), pending)
        return compat.selected(box, None, kwargs)
    pending.hold()
    winner = pending.winner()
    return compat.selected(winner.output_node(), winner, kwargs)


def _steps_aside(name: str, choices: Sequence[Any], layout: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return True where stock Inductor decides, and log why."""
    reason = _why_not_taken(choices, layout, kwargs)
    if reason is not None:
        logger.debug("stock Inductor decides %s: %s", name, reason)
    return reason is not None


def _why_not_taken(choices: Sequence[Any], layout: Any, kwargs: Mapping[str, Any]) -> str | None:
    if not isinstance(layout, ir.Layout) or isinstance(layout, ir.MultiOutputLayout):
        return "its output is not one tensor"
    reason = why_not_taken(layout.device, kwargs)
    return reason or next(filter(None, map(why_not_measurable, choices)), None)


def why_not_taken(device: torch.device, kwargs: Mapping[str, Any] | None = None) -> str | None:
    """Return why the plugin leaves any call on a device to Inductor, None if it does not.

    Args:
        device: Where the call runs.
        kwargs: The other arguments of Inductor's selector.
    """
    kwargs = kwargs or {}
    if unknown := why_not_tuned(device_text(device)):
        warn_once(logger, unknown)
        return unknown
    tunes = inductor_config.max_autotune or inductor_config.max_autotune_gemm
    pipelined = inductor_config.pipeline_max_autotune_gemm and device.type != "cpu"
    reasons: dict[str, Any] = {
        "max_autotune is off": not tunes,
        "torch._inductor.config.deterministic allows no timing": getattr(
            inductor_config, "deterministic", False
        ),
        **{f"{option} is set": kwargs.get(option) for option in _STOCK_ONLY},
        "min_speedup_threshold is set": kwargs.get("min_speedup_threshold", 1.0) > 1.0,
        "multi_kernel_hints is set": compat.uses_multi_kernel_hints(),
        "pipeline_max_autotune_gemm is on": pipelined,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _refused(choices: Sequence[Any]) -> dict[str, str]:
    """Return the candidates that were dropped before, and why."""
    return {
        name: reason
        for choice in choices
        for name, reason in getattr(choice, "rejected", {}).items()
    }


def _runs_cpp(layout: ir.Layout) -> bool:
    """Return True where Inductor generates C++, for which it cannot defer the selection."""
    return layout.device.type == "cpu" and inductor_config.cpu_backend != "triton"


def _is_finished_by_scheduler(choices: Sequence[Any], layout: ir.Layout) -> bool:
    """Return True where Inductor's scheduler can take the selection over: it fuses into Triton kernels alone.

    A scheduler of another package need not know of it.
    """
    triton: Any = select_algorithm.TritonTemplateCaller
    return is_gpu(layout.device.type) or any(isinstance(choice, triton) for choice in choices)


def _prologues(choices: Sequence[Any]) -> Any:
    """Return the inputs whose prologues any choice can fuse, as stock collects them."""
    inputs = OrderedSet[str]()
    triton: Any = select_algorithm.TritonTemplateCaller
    for choice in choices:
        if isinstance(choice, triton):
            inputs |= choice.allowed_prologue_inps
    return inputs
