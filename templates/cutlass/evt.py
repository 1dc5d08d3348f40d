"""An `Epilogue` as a tree of CUTLASS's visitors (EVT), which are fused after a product.

    D = silu(A @ B + bias) * gate, and the sum before silu as a second output

    sums ──┐
    row  ──┴► add ──► aux store ──► silu ──┐
    source ────────────────────────────────┴► mul ──► D

Leaves are CUTLASS's loads, one visitor each. Everything between the leaves and a store is one visitor
with one function: values used twice are its local variables. Everything is computed in float32 and
rounded where it is stored, as in Inductor's Triton kernels: ``to_dtype`` of a value inside the loop to
a 16-bit float and back rounds nothing there (``use_compute_types``), and the product is not rounded
first. Under ``torch._inductor.config.emulate_precision_casts`` both are rounded, unlike here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.templates.cutlass.element import ELEMENTS
from inductor_plugin.templates.cutlass.functor import ANY, FUNCTORS, Bounds, Kind, bounds

OperandKind: TypeAlias = Literal["source", "full", "row", "column", "scalar"]
"""``source`` is the first operand as large as D, which CUTLASS loads as C; others of that size are
``full``."""

SLOTS = 8
"""Operands and further outputs of one call (``GemmCall.operands``)."""
MAX_FULL, MAX_AUX, MAX_NODES = 3, 2, 96
"""Most operands as large as D, outputs besides D, and values that have been compiled and fit."""

_STORED = tuple(dtype for dtype in ELEMENTS if dtype != "int32")

_READ = ("float32", "float16", "bfloat16")
_ROUNDED = ("float16", "bfloat16", "float32")
LIMITS: dict[str, float] = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest number of each narrow type. Beyond it torch returns NaN, infinity or an undefined value,
while the GPU's conversion returns this number: a value must be clamped first. int8 reaches -128."""


@dataclass(frozen=True)
class Node:
    """One value of the tree.

    Attributes:
        op: ``sums`` (the product), ``operand``, ``constant``, or a name of `functor.FUNCTORS`.
        children: Indices of the values it is computed from, all smaller than its own.
        value: Index of an ``operand``, number of a ``constant``.
    """

    op: str
    children: tuple[int, ...] = ()
    value: float = 0


@dataclass(frozen=True)
class TreeOperand:
    """One tensor that is read besides A and B.

    Attributes:
        kind: How it is broadcast to D.
        element: Its element type.
    """

    kind: OperandKind
    element: str


@dataclass(frozen=True)
class Output:
    """One tensor that is written.

    Attributes:
        node: Index of the value.
        element: Its element type; ``s8`` truncates, the others round to the nearest, ties to even.
    """

    node: int
    element: str


@dataclass(frozen=True)
class Evt:
    """An epilogue as CUTLASS computes it; the compiled kernel depends on nothing else of the epilogue.

    Attributes:
        nodes: The values, each after its children.
        operands: In the order of the epilogue's reads.
        outputs: The epilogue's writes in order, D the last of them; before D the product itself, if
            other nodes read it.
    """

    nodes: tuple[Node, ...]
    operands: tuple[TreeOperand, ...]
    outputs: tuple[Output, ...]

    @property
    def aux(self) -> tuple[Output, ...]:
        """The outputs besides D."""
        return self.outputs[:-1]

    @property
    def result(self) -> Output:
        """D."""
        return self.outputs[-1]

    @property
    def source(self) -> int | None:
        """Index of the operand that is loaded as C."""
        kinds = [operand.kind for operand in self.operands]
        return kinds.index("source") if "source" in kinds else None

    @property
    def slots(self) -> int:
        """How many of a call's operands it uses: its reads, then its writes besides D."""
        return len(self.operands) + len(self.aux)

    @functools.cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of a hash of the tree."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The part of a kernel's name that lists the fused operations: ``evt_add_relu_1f2e3d4c5b6a``."""
        names = [node.op for node in self.nodes if node.op in FUNCTORS]
        return "_".join(["evt", *names[:3], self.digest])

    def describe(self) -> str:
        """Return the expression of D: ``mul(silu(add(sums, row)), source)``."""
        return self._expression(self.result.node, 12)

    def _expression(self, index: int, depth: int) -> str:
        node = self.nodes[index]
        if node.op == "operand":
            return self.operands[int(node.value)].kind
        if node.op == "constant":
            return f"{node.value:g}"
        if not node.children:
            return node.op
        if depth == 0:
            return "..."
        inner = ", ".join(self._expression(child, depth - 1) for child in node.children)
        return f"{node.op}({inner})"


class _RefusedTreeError(Exception):
    """Carries the reason out of the helpers; `evt_of` turns it into a value."""


def evt_of(epilogue: Epilogue) -> Evt | str:
    """Return an epilogue as a tree, or why CUTLASS cannot compute it."""
    try:
        _check(epilogue)
        evt = _TreeBuilder(epilogue).build()
        _check_counts(evt)
    except _RefusedTreeError as refusal:
        return str(refusal)
    return evt


def _check(epilogue: Epilogue) -> None:
    """Refuse an epilogue that is no chain of operations on each element of D."""
    checks = (
        (epilogue.position != "epilogue", "it stands before the product"),
        (bool(epilogue.reduction), f"it reduces ({epilogue.reduction})"),
        (epilogue.atomic, "it adds atomically"),
        (epilogue.mutates, "it changes a tensor that was there before"),
        (
            epilogue.product != "full",
            "it reads the product through a view that is not its own order",
        ),
        (not epilogue.writes, "it writes nothing"),
        (
            epilogue.dtype not in (*_ROUNDED, "int32"),
            f"the product is {epilogue.dtype}; sums are float32 or int32",
        ),
    )
    for wrong, reason in checks:
        if wrong:
            raise _RefusedTreeError(reason)
    for read in epilogue.reads:
        _check_access(read, "operand", _READ)
    for write in epilogue.writes:
        _check_access(write, "output", _STORED)
        if write.pattern != "full":
            raise _RefusedTreeError(f"an output must be as large as D, one is a {write.pattern}")


def _check_access(access: Access, name: str, dtypes: Iterable[str]) -> None:
    """Refuse an operand or output that no visitor loads or stores."""
    if access.dtype not in dtypes:
        raise _RefusedTreeError(f"an {name} is {access.dtype}; use one of {', '.join(dtypes)}")
    if access.pattern == "other":
        raise _RefusedTreeError(
            f"an {name} does not lie under D row by row (a gather or a shifted view)"
        )
    strides = access.stride
    if access.pattern in ("full", "row") and strides[-1] != 1:
        raise _RefusedTreeError(f"an {name}'s rows must be contiguous, its strides are {strides}")
    if access.pattern == "column" and strides[-2] != 1:
        raise _RefusedTreeError(
            f"an {name} of one column must be contiguous, its strides are {strides}"
        )
    if access.pattern == "full":
        step = 16 // item_bytes(access.dtype)
        if any(start % step for start in (*strides[:-1], access.offset)):
            raise _RefusedTreeError(
                f"TMA wants rows that start at multiples of 16 bytes ({step} elements), an {name} has "
                f"strides {strides} and offset {access.offset}"
            )


def _check_counts(evt: Evt) -> None:
    full = sum(operand.kind in ("source", "full") for operand in evt.operands)
    counts = (
        (evt.slots, SLOTS, "operands and further outputs"),
        (full, MAX_FULL, "operands as large as D"),
        (len(evt.aux), MAX_AUX, "outputs besides D"),
        (len(evt.nodes), MAX_NODES, "values"),
    )
    for count, limit, what in counts:
        if count > limit:
            raise _RefusedTreeError(f"it has {count} {what}, a kernel takes {limit}")


@dataclass(frozen=True)
class _Value:
    """The value of one step: its node, and facts about it."""

    node: int
    kind: Kind | Literal["whole"]
    bounds: Bounds = ANY
    narrow: str = ""


class _TreeBuilder:
    """Builds nodes from steps; steps that compute the same value share a node."""

    def __init__(self, epilogue: Epilogue) -> None:
        self._epilogue = epilogue
        self._nodes: dict[Node, int] = {}
        self._values: list[_Value] = []
        self._outputs: dict[int, Output] = {}

    def build(self) -> Evt:
        for step in self._epilogue.steps:
            self._values.append(self._value(step))
        places = range(len(self._epilogue.writes))
        if any(place not in self._outputs for place in places):
            raise _RefusedTreeError("an output is never stored")
        written = [self._outputs[place] for place in places]
        if self._epilogue.readers:
            dtype = self._epilogue.dtype
            if dtype not in _STORED:
                raise _RefusedTreeError(f"others read the product, {dtype} is not stored")
            written.insert(-1, Output(self._node("sums"), ELEMENTS[dtype]))
        return Evt(tuple(self._nodes), self._operands(), tuple(written))

    def _operands(self) -> tuple[TreeOperand, ...]:
        operands: list[TreeOperand] = []
        for read in self._epilogue.reads:
            kind: OperandKind = read.pattern if read.pattern != "other" else "full"
            if kind == "full" and all(operand.kind != "source" for operand in operands):
                kind = "source"
            operands.append(TreeOperand(kind, ELEMENTS[read.dtype]))
        return tuple(operands)

    def _node(self, op: str, children: tuple[int, ...] = (), value: float = 0) -> int:
        return self._nodes.setdefault(Node(op, children, value), len(self._nodes))

    def _value(self, step: Step) -> _Value:
        if step.op == "product":
            whole = self._epilogue.dtype == "int32"
            return _Value(self._node("sums"), "whole" if whole else "number")
        if step.op == "load" and isinstance(step.value, int):
            return _Value(self._node("operand", (), step.value), "number")
        if step.op == "constant":
            return self._constant(step.value)
        if step.op == "to_dtype":
            return self._converted(self._values[step.arguments[0]], str(step.value))
        if step.op == "store" and isinstance(step.value, int):
            return self._stored(self._values[step.arguments[0]], step.value)
        return self._computed(step)

    def _constant(self, value: object) -> _Value:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _RefusedTreeError(f"a constant is no number: {value!r}")
        number = float(value)
        interval = ANY if math.isnan(number) else (number, number)
        # -0.0 and 0.0 are equal as keys.
        if number == 0 and math.copysign(1, number) < 0:
            return _Value(self._node("neg", (self._node("constant", (), 0.0),)), "number", interval)
        return _Value(self._node("constant", (), number), "number", interval)

    def _converted(self, value: _Value, dtype: str) -> _Value:
        if value.narrow:
            raise _RefusedTreeError(f"it computes with {value.narrow} values")
        if dtype in _ROUNDED:
            if value.kind == "truth":
                return _Value(self._node("number", (value.node,)), "number", (0.0, 1.0))
            return replace(value, kind="number")
        if dtype not in LIMITS or value.kind != "number":
            raise _RefusedTreeError(f"it converts to {dtype}")
        low, high = value.bounds
        limit = LIMITS[dtype]
        least = -128.0 if dtype == "int8" else -limit
        if low < least or high > limit:
            raise _RefusedTreeError(
                f"a conversion to {dtype} needs values clamped to {least:g} ... {limit:g} first: beyond, "
                "torch gives something else than the GPU's conversion"
            )
        return replace(value, narrow=dtype)

    def _stored(self, value: _Value, place: int) -> _Value:
        dtype = self._epilogue.writes[place].dtype
        narrow = dtype if dtype in LIMITS else ""
        if value.kind != "number" or value.narrow != narrow:
            raise _RefusedTreeError(f"what it stores as {dtype} is {value.narrow or value.kind}")
        if place in self._outputs:
            raise _RefusedTreeError("it stores an output twice")
        self._outputs[place] = Output(value.node, ELEMENTS[dtype])
        return value

    def _computed(self, step: Step) -> _Value:
        functor = FUNCTORS.get(step.op)
        if functor is None or step.op == "number":
            raise _RefusedTreeError(f"no visitor computes {step.op}")
        arguments = [self._values[index] for index in step.arguments]
        if len(arguments) != len(functor.takes) or step.value is not None:
            raise _RefusedTreeError(f"{step.op} has arguments nothing is known of")
        for value, kind in zip(arguments, functor.takes, strict=True):
            if value.narrow or value.kind != kind:
                raise _RefusedTreeError(
                    f"it computes {step.op} of {value.narrow or value.kind} values"
                )
        node = self._node(step.op, tuple(value.node for value in arguments))
        return _Value(node, functor.gives, bounds(step.op, [value.bounds for value in arguments]))
