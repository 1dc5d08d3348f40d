"""Lowers a whole model for a GPU that this machine lacks, and compiles the kernels of all its problems.

The model is built and called with fake tensors, so that neither memory nor a device is needed; the code
that Inductor generates around the kernels is not compiled. Use it inside `as_target`. Only forward passes
are supported: torch's autograd engine asks the driver for the device.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch._dynamo
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from inductor_plugin.aot import models
from inductor_plugin.aot.fake_device import replaced
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.graph import session
from inductor_plugin.inductor.hooks import compile_graph
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)

ModelAndInputs = tuple[nn.Module, list[models.Inputs]]

_FLASH_HEAD = 256
"""Largest head dimension of the flash kernels; it must be a multiple of 8."""


@dataclass(frozen=True)
class Lowered:
    """One problem of a model.

    Attributes:
        problem: The problem in one line.
        offered: Names of the candidates.
        kernels: Digests of the kernels in the cache.
        failed: (candidate, reason) of each candidate without a kernel.
        rejected: Templates that refused the problem, and why.
    """

    problem: str
    offered: tuple[str, ...]
    kernels: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    rejected: Mapping[str, str]


def lower_model(
    make: Callable[[], ModelAndInputs], config: Config, *, dynamic: bool = False
) -> list[Lowered]:
    """Compile a model's graphs with each set of inputs, and return its problems, each once.

    Args:
        make: Builds the model and the sets of example inputs; called with fake tensors, and
            again with real ones if that fails.
        config: The options; with ``policy=build`` nothing is measured.
        dynamic: Mark all sizes as dynamic.
    """
    problems: dict[str, Lowered] = {}

    def observe(tickets: Sequence[TuningTicket]) -> None:
        for ticket in tickets:
            problems.setdefault(ticket.digest, _lowered(ticket))

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    model, sets = _make(make, mode)
    with _nothing_compiled(), mode, torch.no_grad():
        session.OBSERVERS.append(observe)
        try:
            _place(model)
            for inputs in sets:
                torch._dynamo.reset()  # pyright: ignore[reportUnknownMemberType]
                backend = functools.partial(_compiled, config)
                compiled: Any = torch.compile(model, backend=backend, dynamic=dynamic or None)
                models.call(compiled, _on_device(inputs))
        finally:
            session.OBSERVERS.remove(observe)
            torch._dynamo.reset()  # pyright: ignore[reportUnknownMemberType]
    return list(problems.values())


def _make(make: Callable[[], ModelAndInputs], mode: FakeTensorMode) -> ModelAndInputs:
    try:
        with mode, replaced(nn.Module, "_apply", _converted({})):
            return make()
    except OptionError:
        raise
    except Exception as error:  # noqa: BLE001  the user's code may need values
        logger.warning(
            "inductor-plugin: the model is made with real tensors, fake ones do not do: %s", error
        )
        return make()


def _converted(parameters: dict[int, tuple[Any, Any]]) -> Callable[..., Any]:
    """Return an ``nn.Module._apply`` that replaces fake parameters, whose data cannot be swapped."""

    def apply(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:  # noqa: FBT001, FBT002
        for child in module.children() if recurse else ():
            apply(child, function)
        for name, old in [*module._parameters.items()]:
            if old is not None:
                fresh = nn.Parameter(function(old.detach()), requires_grad=False)
                # A tied weight stays tied; the old tensor is kept alive so that its id is not reused.
                module._parameters[name] = parameters.setdefault(id(old), (old, fresh))[1]
        for name, old in [*module._buffers.items()]:
            if old is not None:
                module._buffers[name] = function(old)
        return module

    return apply


def _lowered(ticket: TuningTicket) -> Lowered:
    entries = ticket.task.entries if ticket.task is not None else []
    kernels = [digest for entry in entries if entry.is_built and (digest := _digest(entry))]
    failed = [
        (entry.name, _reason(entry))
        for entry in entries
        if not entry.is_built and not entry.library
    ]
    unscheduled = {offer.candidate_id for offer in ticket.offers} - {
        entry.candidate_id for entry in entries
    }
    failed += [
        (ticket.measured[n].name, ticket.measured[n].reason)
        for n in unscheduled & set(ticket.measured)
    ]
    return Lowered(
        ticket.problem.describe(),
        tuple(offer.name for offer in ticket.offers),
        tuple(sorted(set(kernels))),
        tuple(failed),
        dict(ticket.rejected),
    )


def _digest(entry: TaskCandidate) -> str:
    build: Any = entry.build
    key = getattr(build, "kernel", None) or getattr(build, "key", None)
    return getattr(key, "digest", "")


def _reason(entry: TaskCandidate) -> str:
    return entry.outcome.reason if entry.outcome is not None else "not reached"


def _compiled(config: Config, graph: Any, inputs: Any) -> Callable[..., Any]:
    """Compile a graph, and return the graph itself, which runs on fake tensors."""
    _choose_attention(graph)
    compile_graph(graph, inputs, None, config, {})
    return graph.forward


def _choose_attention(graph: Any) -> None:
    """Replace attention by the kernel the dispatcher would choose on the device.

    The flash kernels represent cuDNN's too: the products around them are the same.
    """
    for node in graph.graph.nodes:
        if node.target is torch.nn.functional.scaled_dot_product_attention:
            node.target = _attention
    graph.recompile()


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002  torch's signature
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    head = query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if attn_mask is None and half and head <= _FLASH_HEAD and head % 8 == 0:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _place(model: nn.Module) -> None:
    """Replace all parameters and buffers by fake tensors on the device; tied weights stay tied."""
    parameters: dict[int, Any] = {}
    for module in model.modules():
        inner: Any = module  # its dictionaries are protected
        for name, old in [*inner._parameters.items()]:
            if old is not None:
                fresh = parameters.setdefault(
                    id(old), nn.Parameter(_twin(old), requires_grad=False)
                )
                inner._parameters[name] = fresh
        for name, old in [*inner._buffers.items()]:
            if old is not None:
                inner._buffers[name] = _twin(old)


def _twin(old: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one, on the device."""
    return torch.empty_strided(old.size(), old.stride(), dtype=old.dtype, device="cuda")


def _on_device(value: Any) -> Any:
    """Return inputs with all tensors replaced by fake tensors on the device."""
    if isinstance(value, torch.Tensor):
        return _twin(value)
    if isinstance(value, dict):
        named = cast("dict[Any, Any]", value)
        return {name: _on_device(part) for name, part in named.items()}
    if type(value) in (tuple, list):
        return type(value)(_on_device(part) for part in value)
    return value


@contextmanager
def _nothing_compiled() -> Generator[None, None, None]:
    """Skip compiling the code that Inductor generates around the chosen kernels."""
    compiler = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    with ExitStack() as stack:
        for name in ("triton", "cpp_pybinding"):
            stack.enter_context(replaced(compiler, name, _nothing))
        yield


def _nothing(*_: Any, **__: Any) -> None:
    return None
