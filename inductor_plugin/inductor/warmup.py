"""Starts the benchmark worker, and workers that compile Triton kernels, before the first call is lowered."""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch

from inductor_plugin.config import Config
from inductor_plugin.errors import DeviceError, InductorPluginError, warn_once
from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.inductor.facts.toolchain import NO_COMPILER, compiler_version
from inductor_plugin.problem.product import ROLES
from inductor_plugin.tuning.runtime import RUNTIME, DeviceContext
from inductor_plugin.worker.devices.lookup import give_up, why_not_tuned

logger = logging.getLogger(__name__)

_TUNED = frozenset(
    {"convolution", "_linear_pointwise", "_mkl_linear", "_scaled_grouped_mm"}
    | {f"{prefix}{op}" for op in ROLES for prefix in ("", "_")}  # ATen's name begins with _ or not
)
"""Names of ATen's operators that are tuned."""


def warm_up(config: Config, graph: torch.fx.Graph) -> None:
    """Start the workers for a graph; called when the graph is not in a cache.

    A benchmark worker takes 2.5 s to import torch, and one that compiles Triton kernels longer. They are started here, in
    parallel with the probe and the lowering, if this environment has no record yet; otherwise most likely nothing is measured.
    """
    devices = {device for node in graph.nodes for device in _tuned_device(node)}
    if any(device.type == "cpu" for device in devices) and compiler_version() == NO_COMPILER:
        # Inductor's own error comes with the operands of the first product: pages.
        warn_once(
            logger,
            "there is no C++ compiler, which Inductor needs on a CPU; "
            "`inductor-plugin doctor` says what to do",
        )
    if config.policy == "tune":
        for device in devices:
            if why_not_tuned(device_text(device)) is None:
                _start_worker(config, device)


def _start_worker(config: Config, device: torch.device) -> None:
    text = device_text(device)
    software = {"cpp": compiler_version()} if text == "cpu" else {}
    try:
        context = RUNTIME.context(config, text, software)
    except DeviceError as error:
        give_up(text, error)
        return
    if not context.store.has_records(context.environment):
        threading.Thread(target=_prewarm, args=(context,), daemon=True).start()


def _prewarm(context: DeviceContext) -> None:
    try:
        context.prewarm()
    except (InductorPluginError, RuntimeError, OSError) as error:  # the first job says so
        logger.debug("no head start: %s", error)


def _tuned_device(node: Any) -> list[torch.device]:
    """Return the device of a node's call if the call is tuned, otherwise an empty list.

    Nodes created by freezing have no value, and call an operator packet: those are MKL's and
    oneDNN's packed products, which run on the CPU alone.
    """
    packet = getattr(node.target, "overloadpacket", node.target)
    if node.op != "call_function" or getattr(packet, "__name__", "") not in _TUNED:
        return []
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return devices[:1] or [torch.device("cpu")]
