"""``check_outputs``: writes into the generated code a look at what each chosen kernel has written.

Inductor's own ``nan_asserts`` looks at the inputs and outputs of a whole graph, and behind each
pointwise Triton kernel: it names no matrix product, stays silent about what is inside a C++ or library
call, and takes a NaN that came in for one that was made. Here the kernel, the problem and its record
are named, and a kernel that got NaN or Inf is not blamed for it.

The look is written while the scheduler writes the call, and is no node of the graph: a node that reads
the product would keep an epilogue from being fused. So the kernel is the one that would run anyway,
and where an epilogue is fused, what is looked at is what it writes.
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
        kernel: The kernel, as tables name it.
        problem: The problem in one line.
        key: Start of the environment's and the problem's digest: names the record.
    """

    kernel: str
    problem: str
    key: str


class OutputGuard:
    """Follows the candidates of one graph into its code."""

    def __init__(self, graph: GraphLowering, mode: str) -> None:
        """Follow the candidates of ``graph``, and look for what ``mode`` says.

        Raises:
            OptionError: The graph becomes C++.
        """
        if graph.cpp_wrapper:
            raise OptionError(NEEDS_PYTHON)
        self._mode = mode
        # The objects are kept, so that no id is used twice.
        self._made: dict[int, tuple[object, Chosen]] = {}
        self._rendered: dict[int, tuple[object, Chosen]] = {}
        self._inputs: dict[str, str] = {}

    def follow(self, choices: Mapping[str, Any], ticket: TuningTicket, environment: str) -> None:
        """Note which nodes the choices of one call become, if they become any.

        Args:
            choices: Inductor's choices by candidate.
            ticket: The call's problem and candidates.
            environment: Digest of the environment its record belongs to.
        """
        for name, choice in choices.items():
            one = _named(ticket, name, environment)
            if one is None:
                continue
            # A Triton kernel is put into the buffer that stood for all, and makes no node itself.
            render = getattr(choice, "make_kernel_render", None)
            if render is not None:
                self._rendered[id(render)] = (render, one)
            choice.output_node = self._noting(choice.output_node, one)

    def settle(self, product: Any, ticket: TuningTicket, name: str, environment: str) -> None:
        """Note which kernel a product is computed with, together with what is fused behind it.

        Args:
            product: The product's buffer.
            ticket: The fusion's problem and candidates.
            name: The candidate.
            environment: As in `follow`.
        """
        one = _named(ticket, name, environment)
        if one is not None:
            self._made[id(product)] = (product, one)

    def watch(self, graph: GraphLowering) -> None:
        """Write the looks while the scheduler of ``graph``, which stands, writes the calls."""
        watched: Any = graph  # the scheduler is untyped
        scheduler = watched.scheduler
        pending: list[Callable[[], None]] = []

        def written() -> None:
            while pending:
                pending.pop()()

        def around(nodes: Sequence[Any], call: Callable[[], Any]) -> Any:
            self._before(scheduler, nodes, pending)
            result = call()
            written()
            return result

        free, extern, backend_of = (
            scheduler.free_buffers,
            scheduler.codegen_extern_call,
            scheduler.get_backend,
        )

        def free_buffers() -> None:
            written()  # behind the call, and before what nobody reads any more is deleted
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

    def _noting(self, make: Callable[[], Any], one: Chosen) -> Callable[[], Any]:
        def output_node() -> Any:
            known = {id(operation) for operation in V.graph.operations}
            made = make()
            for operation in V.graph.operations:
                if id(operation) not in known and not isinstance(operation, ir.ComputedBuffer):
                    self._made[id(operation)] = (operation, one)
            return made

        return output_node

    def _chosen(self, operation: Any) -> Chosen | None:
        render = getattr(operation, "make_kernel_render", None)
        found = self._made.get(id(operation)) or self._rendered.get(id(render))
        return found[1] if found else None

    def _before(self, scheduler: Any, nodes: Sequence[Any], pending: list[Any]) -> None:
        """Write the look at the inputs of a kernel, and note the one at its outputs."""
        flat = [one for node in nodes for one in node.get_nodes()]
        found = [one for one in map(self._chosen, (node.node for node in flat)) if one is not None]
        if not found:
            return
        wrapper: Any = V.graph.wrapper_code
        producer = _producer(flat[0].node)
        answer = self._inputs.get(producer)
        if answer is None:
            answer = f"finite_{producer}"
            self._inputs[producer] = answer
            wrapper.add_import_once(f"import {_MODULE}")
            read = ", ".join(f"{name}={name}" for name in _read(scheduler, flat))
            wrapper.writeline(f"{answer} = {_MODULE}.{output_check.finite.__name__}({read})")
        pending.append(lambda: self._after(scheduler, flat, answer, found[0]))

    def _after(self, scheduler: Any, nodes: Sequence[Any], answer: str, one: Chosen) -> None:
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
            f"{_MODULE}.{output_check.check.__name__}(({outputs}), {answer}, mode={self._mode!r}, "
            f"kernel={one.kernel!r}, problem={one.problem!r}, key={one.key!r})"
        )


def _named(ticket: TuningTicket, name: str, environment: str) -> Chosen | None:
    """Return a candidate as an error names it, None for one that was not offered."""
    offer = next((one for one in ticket.offers if one.candidate_id == name), None)
    if offer is None:
        return None
    told = f" ({offer.description})" if offer.description else ""
    key = f"{environment[:_KEY_DIGITS]}/{ticket.digest[:_KEY_DIGITS]}"
    return Chosen(f"{offer.name}{told}", ticket.problem.describe(), key)


def _surrounded(
    template: Callable[..., Any], around: Callable[[Sequence[Any], Callable[[], Any]], Any]
) -> Callable[..., Any]:
    """Return a backend's `codegen_template` with the looks around what it writes."""

    def codegen_template(
        node: Any, epilogue: Sequence[Any], prologue: Sequence[Any], **more: Any
    ) -> Any:
        def write() -> Any:
            return template(node, epilogue, prologue, **more)

        if more.get("only_gen_src_code"):  # for a benchmark; nothing of it becomes generated code
            return write()
        return around([*prologue, node, *epilogue], write)

    return codegen_template


def _producer(operation: Any) -> str:
    """Return the name of what a kernel's several results are taken from, or its own."""
    while isinstance(operation, ir.MultiOutput):
        source: Any = operation.inputs[0]
        operation = source
    return operation.get_name()


def _read(scheduler: Any, nodes: Sequence[Any]) -> list[str]:
    """Return the tensors that nodes, run as one kernel, read."""
    own = {out.get_name() for node in nodes for out in node.get_outputs()}
    read = {dep.name for node in nodes for dep in node.read_writes.reads} - own
    return sorted({name for name in (_real(scheduler, one) for one in read) if _is_tensor(name)})


def _read_outside(buffer: Any, nodes: Sequence[Any]) -> bool:
    """Return whether nodes, run as one kernel, write a buffer to memory: others read it.

    torch 2.11 gives such a buffer memory all the same, in which anything stands.
    """
    own = {node.get_name() for node in nodes}
    users = [
        user.node.get_nodes() if hasattr(user.node, "get_nodes") else [user.node]
        for user in buffer.users
    ]
    return any(one.get_name() not in own for parts in users for one in parts)


def _real(scheduler: Any, name: str) -> str:
    """Return the name under which generated code knows a buffer that others wrote over."""
    return scheduler.mutation_real_name.get(name, name)


def _is_tensor(name: str) -> bool:
    """Return whether generated code has a floating-point tensor of this name."""
    if name in V.graph.removed_buffers or name in V.graph.inplaced_to_remove:
        return False
    try:
        dtype: Any = V.graph.get_dtype(name)
    except (KeyError, AttributeError, NotImplementedError):  # no tensor: a tuple, a token, a number
        return False
    return isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
