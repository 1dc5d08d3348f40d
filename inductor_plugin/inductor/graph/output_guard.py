"""``check_outputs``: adds checks of each chosen kernel's outputs to the generated code.

Inductor's own ``nan_asserts`` checks the inputs and outputs of a whole graph, and the outputs of each
pointwise Triton kernel: it names no matrix product, does not check C++ or library calls, and does not
distinguish a NaN that a kernel produces from a NaN in its inputs. This check names the kernel, the
problem and its record, and does not blame a kernel whose inputs contain NaN or Inf.

The check is emitted while the scheduler emits the call, and is not a node of the graph: a node that
reads the product would prevent the fusion of an epilogue. So the same kernels run as without the
check, and where an epilogue is fused, its output is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from inductor_plugin.errors import OptionError
from inductor_plugin.ops import output_check
from inductor_plugin.tuning.selection import TuningTicket

_MODULE = output_check.__name__
_KEY_DIGITS = 12
"""Digits of a digest in a key; `inductor-plugin ls` shows no more."""

NEEDS_PYTHON = (
    "option check_outputs writes Python into the generated code, and cpp_wrapper is on; switch one of "
    "them off"
)


@dataclass(frozen=True)
class Chosen:
    """A candidate whose kernel may run.

    Attributes:
        kernel: The kernel's name, as in tables.
        problem: The problem in one line.
        key: Start of the environment's and the problem's digest, which identifies the record.
    """

    kernel: str
    problem: str
    key: str


class OutputGuard:
    """Tracks the candidates of one graph into its generated code."""

    def __init__(self, graph: GraphLowering, mode: str) -> None:
        """Track the candidates of ``graph``, and check for what ``mode`` names.

        Raises:
            OptionError: The graph is compiled to C++ (``cpp_wrapper``).
        """
        if graph.cpp_wrapper:
            raise OptionError(NEEDS_PYTHON)
        self._mode = mode
        # The objects are kept alive, so that their ids are not reused.
        self._by_operation: dict[int, tuple[object, Chosen]] = {}
        self._by_render: dict[int, tuple[object, Chosen]] = {}
        self._inputs: dict[str, str] = {}

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
        """Emit the checks while the scheduler of ``graph``, which exists by now, emits the calls."""
        watched: Any = graph  # the scheduler is untyped
        scheduler = watched.scheduler
        pending: list[Callable[[], None]] = []

        def emit_pending() -> None:
            while pending:
                pending.pop()()

        def around(nodes: Sequence[Any], call: Callable[[], Any]) -> Any:
            self._before(scheduler, nodes, pending)
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
            existing = {id(operation) for operation in V.graph.operations}
            node = create()
            for operation in V.graph.operations:
                if id(operation) not in existing and not isinstance(operation, ir.ComputedBuffer):
                    self._by_operation[id(operation)] = (operation, chosen)
            return node

        return output_node

    def _chosen(self, operation: Any) -> Chosen | None:
        render = getattr(operation, "make_kernel_render", None)
        tracked = self._by_operation.get(id(operation)) or self._by_render.get(id(render))
        return tracked[1] if tracked else None

    def _before(self, scheduler: Any, nodes: Sequence[Any], pending: list[Any]) -> None:
        """Emit the check of a kernel's inputs, and queue the check of its outputs."""
        flat = [inner for node in nodes for inner in node.get_nodes()]
        chosen = next(filter(None, (self._chosen(node.node) for node in flat)), None)
        if chosen is None:
            return
        wrapper: Any = V.graph.wrapper_code
        producer = _producer(flat[0].node)
        finite = self._inputs.get(producer)
        if finite is None:
            finite = f"finite_{producer}"
            self._inputs[producer] = finite
            wrapper.add_import_once(f"import {_MODULE}")
            read = ", ".join(f"{name}={name}" for name in _read(scheduler, flat))
            wrapper.writeline(f"{finite} = {_MODULE}.{output_check.finite.__name__}({read})")
        pending.append(lambda: self._after(scheduler, flat, finite, chosen))

    def _after(self, scheduler: Any, nodes: Sequence[Any], finite: str, chosen: Chosen) -> None:
        names = [
            name
            for node in nodes
            for name in (
                _real(scheduler, out.get_name())
                for out in node.get_outputs()
                if len(nodes) == 1 or _read_outside(out, nodes)
            )
            if _is_tensor(name)
        ]
        if not names:
            return
        outputs = "".join(f"({name!r}, {name}), " for name in dict.fromkeys(names))
        wrapper: Any = V.graph.wrapper_code
        wrapper.writeline(
            f"{_MODULE}.{output_check.check.__name__}(({outputs}), {finite}, mode={self._mode!r}, "
            f"kernel={chosen.kernel!r}, problem={chosen.problem!r}, key={chosen.key!r})"
        )


def _named(ticket: TuningTicket, name: str, environment: str) -> Chosen | None:
    """Return a candidate as errors name it, None for a candidate that was not offered."""
    offer = next((offer for offer in ticket.offers if offer.candidate_id == name), None)
    if offer is None:
        return None
    description = f" ({offer.description})" if offer.description else ""
    key = f"{environment[:_KEY_DIGITS]}/{ticket.digest[:_KEY_DIGITS]}"
    return Chosen(f"{offer.name}{description}", ticket.problem.describe(), key)


def _surrounded(
    template: Callable[..., Any], around: Callable[[Sequence[Any], Callable[[], Any]], Any]
) -> Callable[..., Any]:
    """Return a backend's `codegen_template` that emits the checks around its code."""

    def codegen_template(
        node: Any, epilogue: Sequence[Any], prologue: Sequence[Any], **more: Any
    ) -> Any:
        def emit() -> Any:
            return template(node, epilogue, prologue, **more)

        if more.get("only_gen_src_code"):  # for a benchmark; not part of the generated code
            return emit()
        return around([*prologue, node, *epilogue], emit)

    return codegen_template


def _producer(operation: Any) -> str:
    """Return the name of a node, or of the multi-output node whose result it is."""
    while isinstance(operation, ir.MultiOutput):
        source: Any = operation.inputs[0]
        operation = source
    return operation.get_name()


def _read(scheduler: Any, nodes: Sequence[Any]) -> list[str]:
    """Return the tensors that nodes, run as one kernel, read."""
    written = {out.get_name() for node in nodes for out in node.get_outputs()}
    read = {dep.name for node in nodes for dep in node.read_writes.reads} - written
    return sorted({real for name in read if _is_tensor(real := _real(scheduler, name))})


def _read_outside(buffer: Any, nodes: Sequence[Any]) -> bool:
    """Return whether a buffer of nodes that run as one kernel is written to memory: other nodes read it.

    torch 2.11 allocates memory for a buffer that is not written, too; its contents are undefined.
    """
    names = {node.get_name() for node in nodes}
    users = [
        user.node.get_nodes() if hasattr(user.node, "get_nodes") else [user.node]
        for user in buffer.users
    ]
    return any(user.get_name() not in names for group in users for user in group)


def _real(scheduler: Any, name: str) -> str:
    """Return the name that generated code uses for a buffer that has been mutated."""
    return scheduler.mutation_real_name.get(name, name)


def _is_tensor(name: str) -> bool:
    """Return whether generated code has a floating-point tensor of this name."""
    if name in V.graph.removed_buffers or name in V.graph.inplaced_to_remove:
        return False
    try:
        dtype: Any = V.graph.get_dtype(name)
    except (
        KeyError,
        AttributeError,
        NotImplementedError,
    ):  # not a tensor: a tuple, a token, a number
        return False
    return isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
