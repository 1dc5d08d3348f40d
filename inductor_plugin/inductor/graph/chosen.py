"""Which candidate each kernel of the generated code is: follows the choices of a graph into its code.

What is written around a kernel is written while the scheduler emits its call, and is not a node of the graph: a node that
reads the product would prevent the fusion of an epilogue. So the same kernels run as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from inductor_plugin.tuning.ticket import TuningTicket

_KEY_DIGITS = 12
"""Digits of a digest in a key; `inductor-plugin ls` shows no more."""


@dataclass(frozen=True)
class Chosen:
    """A candidate whose kernel may run.

    Attributes:
        candidate: Its identity in records.
        kernel: The kernel's name, as in tables.
        problem: The problem in one line.
        key: Start of the environment's and the problem's digest, which identifies the record.
    """

    candidate: str
    kernel: str
    problem: str
    key: str


class CallWriter(Protocol):
    """Writes something around the call of each chosen kernel."""

    def before(self, scheduler: Any, nodes: Sequence[Any], chosen: Chosen) -> Callable[[], None]:
        """Write what comes before a call, and return the function that writes what comes after it.

        Args:
            scheduler: The graph's scheduler.
            nodes: The nodes that the kernel computes.
            chosen: The kernel's candidate.
        """
        ...


class ChosenKernels:
    """Tracks the candidates of one graph into its generated code."""

    def __init__(self, writers: Sequence[CallWriter]) -> None:
        """Have ``writers`` write around each chosen kernel."""
        self._writers = tuple(writers)
        # The objects are kept alive, so that their ids are not reused.
        self._by_operation: dict[int, tuple[object, Chosen]] = {}
        self._by_render: dict[int, tuple[object, Chosen]] = {}

    def follow(self, choices: Mapping[str, Any], ticket: TuningTicket, environment: str) -> None:
        """Track the nodes that the choices of a call become.

        Args:
            choices: Inductor's choices by candidate.
            ticket: The call's problem and candidates.
            environment: Digest of the environment its record belongs to.
        """
        for name, choice in choices.items():
            chosen = _named(ticket, name, environment)
            if chosen is None:
                continue
            # A Triton kernel is put into the multi-template buffer, and creates no node itself.
            render = getattr(choice, "make_kernel_render", None)
            if render is not None:
                self._by_render[id(render)] = (render, chosen)
            choice.output_node = self._tracking(choice.output_node, chosen)

    def settle(self, product: Any, ticket: TuningTicket, name: str, environment: str) -> None:
        """Record the kernel that computes a product and its fused epilogue.

        Args:
            product: The product's buffer.
            ticket: The fusion's problem and candidates.
            name: The candidate.
            environment: As in `follow`.
        """
        chosen = _named(ticket, name, environment)
        if chosen is not None:
            self._by_operation[id(product)] = (product, chosen)

    def watch(self, graph: GraphLowering) -> None:
        """Write while the scheduler of ``graph``, which exists by now, emits the calls."""
        if not self._writers:
            return
        watched: Any = graph  # the scheduler is untyped
        scheduler = watched.scheduler
        pending: list[Callable[[], None]] = []

        def emit_pending() -> None:
            while pending:
                pending.pop()()

        def around(nodes: Sequence[Any], call: Callable[[], Any]) -> Any:
            pending.extend(self._before(scheduler, nodes))
            result = call()
            emit_pending()
            return result

        free, extern, backend_of = (
            scheduler.free_buffers,
            scheduler.codegen_extern_call,
            scheduler.get_backend,
        )

        def free_buffers() -> None:
            emit_pending()  # after the call, and before buffers that are not read again are freed
            free()

        def codegen_extern_call(node: Any) -> Any:
            return around([node], lambda: extern(node))

        def get_backend(device: torch.device | None) -> Any:
            backend = backend_of(device)
            if "codegen_template" not in vars(backend):
                backend.codegen_template = _surrounded(backend.codegen_template, around)
            return backend

        scheduler.free_buffers = free_buffers
        scheduler.codegen_extern_call = codegen_extern_call
        scheduler.get_backend = get_backend

    def _tracking(self, create: Callable[[], Any], chosen: Chosen) -> Callable[[], Any]:
        def output_node() -> Any:
            existing = len(V.graph.operations)
            node = create()
            for operation in V.graph.operations[existing:]:
                if not isinstance(operation, ir.ComputedBuffer):
                    self._by_operation[id(operation)] = (operation, chosen)
            return node

        return output_node

    def _before(self, scheduler: Any, nodes: Sequence[Any]) -> list[Callable[[], None]]:
        """Write what comes before a kernel, and return the functions that write what comes after it."""
        flat = [inner for node in nodes for inner in node.get_nodes()]
        chosen = next(filter(None, (self._chosen(node.node) for node in flat)), None)
        if chosen is None:
            return []
        return [writer.before(scheduler, flat, chosen) for writer in self._writers]

    def _chosen(self, operation: Any) -> Chosen | None:
        render = getattr(operation, "make_kernel_render", None)
        tracked = self._by_operation.get(id(operation)) or self._by_render.get(id(render))
        return tracked[1] if tracked else None


def _named(ticket: TuningTicket, name: str, environment: str) -> Chosen | None:
    """Return a candidate as errors and ranges name it, None for a candidate that was not offered."""
    offer = next((offer for offer in ticket.offers if offer.candidate_id == name), None)
    if offer is None:
        return None
    description = f" ({offer.description})" if offer.description else ""
    key = f"{environment[:_KEY_DIGITS]}/{ticket.digest[:_KEY_DIGITS]}"
    return Chosen(name, f"{offer.name}{description}", ticket.problem.describe(), key)


def _surrounded(
    template: Callable[..., Any], around: Callable[[Sequence[Any], Callable[[], Any]], Any]
) -> Callable[..., Any]:
    """Return a backend's `codegen_template` that writes around its code."""

    def codegen_template(
        node: Any, epilogue: Sequence[Any], prologue: Sequence[Any], **more: Any
    ) -> Any:
        def emit() -> Any:
            return template(node, epilogue, prologue, **more)

        if more.get("only_gen_src_code"):  # for a benchmark; not part of the generated code
            return emit()
        return around([*prologue, node, *epilogue], emit)

    return codegen_template
