"""Two scheduler nodes that may become one kernel, and the state of such pairs in a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch._inductor import ir
from torch._inductor.graph import GraphLowering

from inductor_plugin.cache import Resources
from inductor_plugin.config import Config
from inductor_plugin.cost.limits import Limits, limits_of
from inductor_plugin.cost.registers import Kernel
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.facts.attached import attached
from inductor_plugin.inductor.facts.operands import output_tensor
from inductor_plugin.inductor.facts.problem import problem_of
from inductor_plugin.inductor.facts.scope import host_counts
from inductor_plugin.inductor.fusion.nodes import (
    Generated,
    epilogue_of,
    module_kernel,
    node_of,
    operand_of,
    prologue_of,
)
from inductor_plugin.inductor.graph.pending import PendingChoice
from inductor_plugin.inductor.graph.session import Session, session_of
from inductor_plugin.kernels.call import ModuleKernel, TensorSpec
from inductor_plugin.problem import Problem
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.tuning.ticket import TuningTicket


class FusionState:
    """Facts and decisions about the fusions of one graph."""

    def __init__(self, session: Session) -> None:
        """Begin with nothing fused."""
        self.session = session
        self.settled: dict[str, str] = {}
        """The candidate that a fusion has settled, by the product's buffer."""
        self.submitted: set[str] = set()
        """Epilogue nodes for which a fusion has been submitted."""
        self.epilogues: dict[tuple[str, ...], Epilogue] = {}
        """Epilogues of pairs, by the names of the nodes: Inductor asks in each of up to ten rounds."""

    def settle(self, product: Any, ticket: TuningTicket, candidate: str, kernel: str) -> None:
        """Remember which kernel a fusion has settled for a product.

        Args:
            product: The product's buffer.
            ticket: The ticket of the fusion.
            candidate: The fusion's candidate that won.
            kernel: The product's candidate that it contains.
        """
        self.settled[product.get_name()] = kernel
        context, _ = self.session.context(product.get_device())
        self.session.chosen.settle(product, ticket, candidate, context.environment)

    def resources(self, kernel: str | None, device: Any) -> Resources | None:
        """Return the resources of a cached kernel; None where they are not known."""
        context, _ = self.session.context(device)
        cached = context.store.kernel(kernel) if kernel else None
        return cached.resources if cached else None


def state_of(graph: GraphLowering, config: Config) -> FusionState:
    """Return the fusions of the graph that is being lowered."""
    return attached(graph, "fusions", lambda: FusionState(session_of(graph, config)))


@dataclass(frozen=True)
class Fusion:
    """Two scheduler nodes that Inductor may fuse, one of them a product whose kernel is not decided.

    Attributes:
        scheduler: Inductor's scheduler.
        config: The options.
        state: Decisions about fusions in this graph.
        pending: The product's choices.
        product: The product's buffer.
        first: The node that runs first: the product's, or the fused node that contains it.
        second: The node that runs after it.
        prologue: Whether the product is the second.
    """

    scheduler: Any
    config: Config
    state: FusionState
    pending: PendingChoice
    product: Any
    first: Any
    second: Any
    prologue: bool = False

    @property
    def device(self) -> Any:
        """The device of the product."""
        return self.product.get_device()

    @property
    def limits(self) -> Limits:
        """Limits set by the options."""
        return limits_of(self.config, self.device.type)

    @property
    def settled(self) -> str | None:
        """The candidate that an earlier fusion has settled; None if there is none."""
        return self.state.settled.get(self.product.get_name())

    @functools.cached_property
    def epilogue(self) -> Epilogue:
        """The epilogue that the product would get, or the prologue."""
        if not self.prologue:
            return self.epilogue_with(self.second.get_nodes())
        names = (self.first.get_name(), self.second.get_name(), "prologue")
        if names not in self.state.epilogues:
            read = {node.get_name() for node in self.pending.call.nodes}
            self.state.epilogues[names] = prologue_of(self.scheduler, read, self.first, self.second)
        return self.state.epilogues[names]

    def epilogue_with(self, nodes: Sequence[Any]) -> Epilogue:
        """Return the epilogue of the product if only some nodes were fused with it."""
        names = (self.first.get_name(), *(node.get_name() for node in nodes))
        if names not in self.state.epilogues:
            self.state.epilogues[names] = epilogue_of(
                self.scheduler, self.product, self.first, nodes
            )
        return self.state.epilogues[names]

    @functools.cached_property
    def layout(self) -> ir.Layout:
        """Layout of the output that is compared: the last one written."""
        writes = self.epilogue.writes
        last = writes[-1].buffer if writes else self.second.get_outputs()[0].get_name()
        return node_of(last).get_layout()

    @functools.cached_property
    def call(self) -> AutotuneCall:
        """The product's call, read again; its seeds are used for all operands of the fusion."""
        return self.pending.call.read_again()

    @functools.cached_property
    def written(self) -> dict[str, TensorSpec]:
        """Tensors that the two nodes write, by buffer; the one that is compared comes last."""
        nodes = (*self.first.get_nodes(), *self.second.get_nodes())
        layouts = {o.get_name(): o.node.get_layout() for node in nodes for o in node.get_outputs()}
        last = next(name for name in reversed(layouts) if layouts[name] is self.layout)
        order = [*(name for name in layouts if name != last), last]
        return {name: output_tensor(layouts[name]) for name in order}

    @functools.cached_property
    def problem(self) -> Problem:
        """The product with its epilogue, whose reads are additional operands."""
        nodes = [*self.pending.call.nodes, *map(node_of, self._reads)]
        bare = self.pending.ticket.problem
        whole = problem_of(bare.op, nodes, self.layout, bare.arguments)
        return replace(whole, epilogue=self._signature, epilogue_reads=len(self._reads))

    @property
    def added(self) -> list[str]:
        """Names of the problem's inputs; of a prologue, which adds nothing to the product, those of the product."""
        names = self.pending.call.names
        return names if self.prologue else [*names, *self._reads]

    @property
    def _reads(self) -> list[str]:
        """Buffers that the epilogue reads."""
        return list(self.epilogue.operands)

    @property
    def _signature(self) -> str:
        """The epilogue's signature, with the number of nodes that are fused already."""
        inner = len(self.first.get_nodes()) - 1
        signature = self.epilogue.signature
        return f"{signature}+{inner}" if inner else signature

    @functools.cached_property
    def timings(self) -> Mapping[Any, float]:
        """Milliseconds of the product alone, by choice."""
        return self.product.choice_timings()

    def estimate(self, kernel: Kernel, epilogue: Epilogue, unfused_us: float) -> FusionEstimate:
        """Return the estimate for a kernel with an epilogue before it is compiled."""
        target = self.pending.ticket.problem.target
        return FusionEstimate(
            kernel,
            epilogue,
            target,
            self.limits,
            unfused_us,
            host_counts=host_counts(),
        )

    def prepared(self, generated: Generated) -> tuple[ModuleKernel, list[Any]]:
        """Return a kernel that Inductor generated and its arguments; input tensors as `TensorSpec`."""
        arguments = [
            operand_of(argument, self.call.seeds)
            if isinstance(argument, str) and argument not in self.written
            else argument
            for argument in generated.arguments
        ]
        return module_kernel(generated, self.layout.device), arguments
