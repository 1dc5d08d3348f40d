"""Converts Inductor's loops after (or before) a product to an `Epilogue`.

A loop body is an FX graph of calls to ``ops`` (torch/_inductor/loop_body.py) over loop variables that
Inductor may have merged, split or exchanged. An operand's strides along D are derived from the indices:
a variable belongs to the dimension of D along which it moves the product's own index, and an operand
has a stride along that dimension if it moves by the same multiple for all its variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch._inductor.loop_body import LoopBody
from torch._inductor.virtualized import V

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.fusion import subblocks
from inductor_plugin.inductor.fusion.loop_variables import dimensions_of
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.epilogue import Access, Epilogue, Step, pattern_of

_ALGEBRA: Any = sympy  # untyped

_GATHERED = ("indirect", "tmp")
"""Prefixes of index variables whose values are loaded from memory."""


@dataclass(frozen=True)
class Base:
    """The buffer all indices are compared with: the product, or the operand a prologue writes.

    Attributes:
        name: Its name in the graph.
        size: Extents; a dynamic extent at its hint.
        stride: In elements, as long as ``size``.
        dtype: Name without the ``torch.`` prefix.
    """

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclass
class _EpilogueTrace:
    """State while the bodies of a fusion are read, one after the other."""

    base: Base
    prologue: bool
    stored: Callable[[str], bool]
    steps: list[Step] = field(default_factory=list[Step])
    reads: list[Access] = field(default_factory=list[Access])
    writes: list[Access] = field(default_factory=list[Access])
    values: dict[str, int] = field(default_factory=dict[str, int])
    accumulator: int | None = None
    through_view: bool = False
    reduction: str = ""
    atomic: bool = False

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def reading(self, access: Access) -> int:
        """Return the number of a read, which is added if it is new."""
        if access not in self.reads:
            self.reads.append(access)
        return self.reads.index(access)


def base_of(buffer: Any) -> Base:
    """Return a buffer as the base of indices; sizes are their hints."""
    return Base(
        buffer.get_name(),
        compat.hints(buffer.get_size()),
        compat.hints(buffer.get_stride()),
        dtype_name(buffer.get_dtype()),
    )


def epilogue_of_bodies(
    base: Base,
    bodies: Iterable[LoopBody],
    stored: Callable[[str], bool],
    readers: int = 0,
    *,
    prologue: bool = False,
    mutates: bool = False,
) -> Epilogue:
    """Return the computation of loops; each may read the results of those before it.

    Args:
        base: The product; for a prologue the operand that the last body writes.
        bodies: Loop bodies in the order they run.
        stored: Returns whether a buffer they write is read outside of them.
        readers: How many other nodes read the product.
        prologue: Whether they run before the product.
        mutates: Whether they modify an existing tensor in place.
    """
    trace = _EpilogueTrace(base, prologue, stored)
    for body in bodies:
        _read(trace, body)
    return Epilogue(
        size=base.size,
        dtype=base.dtype,
        steps=tuple(trace.steps),
        reads=tuple(trace.reads),
        writes=tuple(trace.writes),
        readers=readers,
        reduction=trace.reduction,
        product="other" if trace.through_view else "full",
        atomic=trace.atomic,
        mutates=mutates,
        position="prologue" if prologue else "epilogue",
    )


def _read(trace: _EpilogueTrace, body: LoopBody) -> None:
    """Add the steps of one body."""
    untyped: Any = body
    coefficients = _Indices(trace, untyped)
    steps: dict[Any, int] = {}
    indices: dict[Any, Any] = {}
    for node in untyped.root_block.graph.nodes:
        if node.op == "call_module" and node.target == "get_index":
            indices[node] = untyped.indexing_exprs[node.args[0]]
        elif node.op == "call_module":
            steps[node] = _opaque(trace, untyped, node, steps)
        elif node.op == "call_method":
            step = _call(trace, coefficients, node, steps, indices)
            if step is not None:
                steps[node] = step


def _opaque(trace: _EpilogueTrace, body: Any, node: Any, steps: Mapping[Any, int]) -> int:
    """Return the step of a masked part, which has its digest, or of an index read from memory."""
    target = str(node.target)
    arguments = _steps_of(trace, node.args, steps)
    op = target.rstrip("0123456789")
    if target not in body.subblocks:
        return trace.add(Step(op, arguments))
    named: dict[str, str] = {}
    for name in subblocks.loads_in(body, target):
        if name in trace.values:
            arguments = (*arguments, trace.values[name])
            named[name] = f"step {trace.values[name]}"
        elif name == trace.base.name and not trace.prologue:
            trace.through_view = True
            named[name] = "product"
        else:
            named[name] = f"read {trace.reading(_whole(name))}"
    return trace.add(Step(op, arguments, subblocks.digest_of_subblock(body, target, named)))


def _call(
    trace: _EpilogueTrace,
    indices: _Indices,
    node: Any,
    steps: Mapping[Any, int],
    expressions: Mapping[Any, Any],
) -> int | None:
    """Return the step of one call of ``ops``; None if the call has no value."""
    target = str(node.target)
    if target == "load":
        return _load(trace, indices, str(node.args[1]), expressions.get(node.args[2]))
    if target in ("store", "store_reduction"):
        _store(trace, indices, node, steps, expressions)
        return None
    if target == "constant":
        return trace.add(Step("constant", (), _plain(node.args[1])))
    if target == "to_dtype":
        # Without compute types a value is rounded to 16 bits; with them it stays in float32.
        rounds = _argument(node, 4, "use_compute_types") is False
        name = "to_dtype_rounded" if rounds else "to_dtype"
        dtype = dtype_name(_argument(node, 2, "dtype"))
        return trace.add(Step(name, (steps[node.args[1]],), dtype))
    if target == "reduction":
        trace.reduction = str(_argument(node, 3, "reduction_type"))
        return trace.add(Step("reduction", _steps_of(trace, node.args[4:], steps), trace.reduction))
    arguments = (*node.args[1:], *node.kwargs.values())
    texts = [
        indices.text(expressions[argument])
        if isinstance(argument, torch.fx.Node)
        else _text(argument)
        for argument in arguments
        if isinstance(argument, (str, torch.dtype))
        or (isinstance(argument, torch.fx.Node) and argument in expressions)
    ]
    kept = _steps_of(trace, arguments, steps)
    return trace.add(Step(target, kept, " ".join(texts) or None))


def _load(trace: _EpilogueTrace, indices: _Indices, name: str, expression: Any) -> int:
    if name in trace.values:  # written by an earlier body of the same fusion
        return trace.values[name]
    if name == trace.base.name and not trace.prologue:
        trace.through_view |= not indices.is_base(expression)
        if trace.accumulator is None:
            trace.accumulator = trace.add(Step("product"))
        return trace.accumulator
    return trace.add(Step("load", (), trace.reading(indices.access(name, expression))))


def _store(
    trace: _EpilogueTrace,
    indices: _Indices,
    node: Any,
    steps: Mapping[Any, int],
    expressions: Mapping[Any, Any],
) -> None:
    name, index, value = str(node.args[1]), expressions.get(node.args[2]), node.args[3]
    mode = _argument(node, 4, "mode")
    trace.atomic |= mode == "atomic_add"
    if value not in steps:  # welford's parts are taken out of a tuple
        return
    trace.values[name] = steps[value]
    if trace.stored(name):
        trace.writes.append(indices.access(name, index))
        trace.add(Step("store", (steps[value],), len(trace.writes) - 1))


class _Indices:
    """Indices of one body, compared with the index of the base, which gives them strides along its dimensions.

    For a base of 6 by 8 elements with strides (8, 1), and loops ``p0 < 6`` and ``p1 < 8``::

        the base at 8*p0 + p1   so p0 runs along dimension 0, and p1 along dimension 1
        a read at 4*p1 + 2      has the strides (0, 4) and the offset 2: a row
        a read at p0 + 6*p1     has the strides (1, 6): all of a transposed tensor
        a read at p1 % 4        has none, since it is not linear in the loops

    One loop ``p0 < 48`` may run along both: with the base at p0, a read at 2*p0 has the strides (16, 2).
    """

    def __init__(self, trace: _EpilogueTrace, body: Any) -> None:
        self._base = trace.base
        self._body = body
        names = list(body.var_ranges)
        self._ranges = dict(
            zip(names, compat.hints([body.var_ranges[v] for v in names]), strict=True)
        )
        self._moves = self._of_base(trace, body)
        covered = math.prod(n for v, n in self._ranges.items() if self._moves and self._moves[v])
        self._complete = covered == math.prod(trace.base.size)

    def text(self, expression: Any) -> str:
        """Return an index as text that does not depend on the names of loop variables."""
        return subblocks.index_text(self._body, expression)

    def is_base(self, expression: Any) -> bool:
        """Return True if an index visits each element of the base once, in the base's own order."""
        return (
            self._complete
            and self._strides(expression) == self._base_strides()
            and not self._offset(expression)
        )

    def access(self, name: str, expression: Any) -> Access:
        """Return how a buffer is broadcast to the base."""
        strides = None if expression is None else self._strides(expression)
        if strides is None:
            return _whole(name)
        moves = self._coefficients(expression) or {}
        elements = math.prod(extent for variable, extent in self._ranges.items() if moves[variable])
        pattern = pattern_of(strides, self._base.size)
        offset, dynamic = self._offset(expression), self._unknown(expression)
        dtype = dtype_name(V.graph.get_dtype(name))
        return Access(pattern, dtype, elements, strides, offset, name, dynamic)

    def _first(self, expression: Any) -> Any:
        """Return the index of the first element, symbolic or not."""
        return _ALGEBRA.sympify(expression).subs(dict.fromkeys(self._ranges, 0))

    def _offset(self, expression: Any) -> int:
        return compat.hints([self._first(expression)])[0]

    def _unknown(self, expression: Any) -> bool:
        """Return whether a linear index has a stride or an offset that is known only at run time."""
        steps = [_ALGEBRA.diff(_ALGEBRA.sympify(expression), variable) for variable in self._ranges]
        return any(step.free_symbols for step in (*steps, self._first(expression)))

    def _base_strides(self) -> tuple[int, ...]:
        pairs = zip(self._base.size, self._base.stride, strict=True)
        return tuple(0 if extent == 1 else stride for extent, stride in pairs)

    def _of_base(self, trace: _EpilogueTrace, body: Any) -> dict[Any, int] | None:
        """Return by how much each variable moves the base's index, None if no index shows it."""
        names = {self._base.name, *(n for n in trace.values if _same(n, self._base))}
        for node in body.root_block.graph.nodes:
            if (
                node.op == "call_method"
                and node.target in ("load", "store")
                and node.args[1] in names
            ):
                expression = body.indexing_exprs[node.args[2].args[0]]
                if (moves := self._coefficients(expression)) is not None:
                    return moves
        return None

    def _coefficients(self, expression: Any) -> dict[Any, int] | None:
        """Return the coefficient of each variable in a linear index; None for any other index."""
        if any(
            symbol.name.startswith(_GATHERED)
            for symbol in _ALGEBRA.sympify(expression).free_symbols
        ):
            return None
        steps = {
            variable: _ALGEBRA.diff(_ALGEBRA.sympify(expression), variable)
            for variable in self._ranges
        }
        if any(
            step.free_symbols & set(self._ranges) or step.has(_ALGEBRA.Derivative)
            for step in steps.values()
        ):
            return None
        return dict(zip(steps, compat.hints(list(steps.values())), strict=True))

    def _strides(self, expression: Any) -> tuple[int, ...] | None:
        """Return an index's strides along the base's dimensions, None if it has none."""
        moves = self._coefficients(expression)
        if moves is None or self._moves is None:
            return None
        strides: dict[int, int] = {}
        for variable, extent in self._ranges.items():
            base = self._moves[variable]
            dims = dimensions_of(base, extent, self._base.size, self._base.stride)
            if extent == 1:
                continue
            if not dims:
                return None
            for dim in dims:
                whole, remainder = divmod(moves[variable] * self._base.stride[dim], base)
                # A tensor cannot have a negative stride (a flip).
                if remainder or whole < 0 or strides.setdefault(dim, whole) != whole:
                    return None
        return tuple(strides.get(dim, 0) for dim in range(len(self._base.size)))


def _whole(name: str) -> Access:
    """Return the access to a buffer in no order of the base, all its elements counted."""
    count = compat.hints([V.graph.get_numel(name)])[0]
    return Access("other", dtype_name(V.graph.get_dtype(name)), count, buffer=name)


def _same(name: str, base: Base) -> bool:
    """Return True if a buffer has the sizes and strides of the base."""
    buffer: Any = V.graph.get_buffer(name) if hasattr(V.graph, "get_buffer") else None
    if buffer is None:
        return False
    return (compat.hints(buffer.get_size()), compat.hints(buffer.get_stride())) == (
        base.size,
        base.stride,
    )


def _steps_of(
    trace: _EpilogueTrace, arguments: Sequence[Any], steps: Mapping[Any, int]
) -> tuple[int, ...]:
    """Return the steps of the arguments of a call; a number becomes a ``constant`` step."""
    kept: list[int] = []
    for argument in arguments:
        if isinstance(argument, (tuple, list)):
            kept += _steps_of(trace, cast("Sequence[Any]", argument), steps)
        elif isinstance(argument, torch.fx.Node) and argument in steps:
            kept.append(steps[argument])
        elif isinstance(argument, (bool, int, float)):
            kept.append(trace.add(Step("constant", (), argument)))
    return tuple(kept)


def _argument(node: Any, place: int, name: str) -> Any:
    """Return an argument of a call of ``ops`` by its position (``ops`` itself is 0) or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _text(value: str | torch.dtype) -> str:
    return value if isinstance(value, str) else dtype_name(value)


def _plain(value: Any) -> int | float | bool | str:
    return value if isinstance(value, (bool, int, float)) else str(value)
