"""What is fused behind a product as a tree of CUTLASS's visitors (EVT), from an `Epilogue`.

    D = silu(A @ B + bias) * gate, and the sum before silu beside it

    sums ──┐
    row  ──┴► add ──► aux store ──► silu ──┐
    source ────────────────────────────────┴► mul ──► D

Leaves are what CUTLASS loads, one visitor each. What lies between the leaves and a store is one
visitor with one function: values used twice are its local variables. All is computed in float32,
rounded where it is stored, as Inductor's Triton kernels do: ``to_dtype`` of a value inside the loop to
a 16-bit float and back rounds nothing there (``use_compute_types``), and the product is not rounded
first. Under ``torch._inductor.config.emulate_precision_casts`` both would, so then none of this fits.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from inductor_plugin.problem.epilogue import BYTES, Access, Epilogue, Step
from inductor_plugin.templates.cutlass.functor import ANY, FUNCTORS, Bounds, Kind, bounds

OperandKind: TypeAlias = Literal["source", "full", "row", "column", "scalar"]
"""``source`` is what CUTLASS loads as C, the first that is as large as D; others of that size are
``full``."""

SLOTS = 8
"""Operands and further outputs of one call (``GemmCall.operands``)."""
MAX_FULL, MAX_AUX, MAX_NODES = 3, 2, 96
"""Operands as large as D, outputs besides D, and values: what has been compiled and fits."""

ELEMENTS: dict[str, str] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
}
"""CUTLASS's name of what can be stored."""

_READ = ("float32", "float16", "bfloat16")
_ROUNDED = ("float16", "bfloat16", "float32")
LIMITS: dict[str, float] = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""The largest number of each narrow type. Beyond it torch gives NaN, infinity or nothing defined, while
the GPU's conversion gives this number: a value must be clamped first. int8 reaches -128."""


@dataclass(frozen=True)
class Node:
    """One value of the tree.

    Attributes:
        op: ``sums`` (the product), ``operand``, ``constant``, or a name of `cutlass_functor.FUNCTORS`.
        children: Indices of the values it is computed from, all smaller than its own.
        value: Of ``operand`` its index, of ``constant`` the number.
    """

    op: str
    children: tuple[int, ...] = ()
    value: float = 0


@dataclass(frozen=True)
class Operand:
    """One tensor that is read besides A and B.

    Attributes:
        kind: How it lies under D.
        element: Its element type.
    """

    kind: OperandKind
    element: str


@dataclass(frozen=True)
class Output:
    """One tensor that is written.

    Attributes:
        node: Index of the value.
        element: Its element type; ``s8`` cuts towards zero, the others round to the nearest, to even.
    """

    node: int
    element: str


@dataclass(frozen=True)
class Evt:
    """An epilogue as CUTLASS computes it; what is compiled depends on nothing else of the epilogue.

    Attributes:
        nodes: The values, each after its children.
        operands: In the order of the epilogue's reads.
        outputs: What is written: the epilogue's writes in order, D the last of them; before D the
            product itself where others read it.
    """

    nodes: tuple[Node, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]

    @property
    def aux(self) -> tuple[Output, ...]:
        """What is written besides D."""
        return self.outputs[:-1]

    @property
    def result(self) -> Output:
        """D."""
        return self.outputs[-1]

    @property
    def source(self) -> int | None:
        """Index of the operand that is loaded as C."""
        kinds = [one.kind for one in self.operands]
        return kinds.index("source") if "source" in kinds else None

    @property
    def slots(self) -> int:
        """How many of a call's operands it has: what it reads, then what it writes besides D."""
        return len(self.operands) + len(self.aux)

    @functools.cached_property
    def digest(self) -> str:
        """Twelve letters that differ where the kernel does."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The part of a kernel's name that says what it fuses: ``evt_add_relu_1f2e3d4c5b6a``."""
        names = [one.op for one in self.nodes if one.op in FUNCTORS]
        return "_".join(["evt", *names[:3], self.digest])

    def describe(self) -> str:
        """Return what D is as people write it: ``mul(silu(add(sums, row)), source)``."""
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
        inner = ", ".join(self._expression(one, depth - 1) for one in node.children)
        return f"{node.op}({inner})"


class _UnfitError(Exception):
    """Carries the reason out of the helpers; `evt_of` turns it into a value."""


def evt_of(epilogue: Epilogue) -> Evt | str:
    """Return an epilogue as a tree, or why CUTLASS cannot compute it."""
    try:
        _check(epilogue)
        evt = _Builder(epilogue).build()
        _check_counts(evt)
    except _UnfitError as unfit:
        return str(unfit)
    return evt


def _check(epilogue: Epilogue) -> None:
    """Refuse what is no chain of operations on each element of D."""
    facts = (
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
    for wrong, reason in facts:
        if wrong:
            raise _UnfitError(reason)
    for one in epilogue.reads:
        _check_access(one, "operand", _READ)
    for one in epilogue.writes:
        _check_access(one, "output", tuple(ELEMENTS))
        if one.pattern != "full":
            raise _UnfitError(f"an output must be as large as D, one is a {one.pattern}")


def _check_access(access: Access, name: str, dtypes: Iterable[str]) -> None:
    """Refuse an operand or output that no visitor loads or stores."""
    if access.dtype not in dtypes:
        raise _UnfitError(f"an {name} is {access.dtype}; use one of {', '.join(dtypes)}")
    if access.pattern == "other":
        raise _UnfitError(f"an {name} does not lie under D row by row (a gather or a shifted view)")
    strides = access.stride
    if access.pattern in ("full", "row") and strides[-1] != 1:
        raise _UnfitError(f"an {name}'s rows must be contiguous, its strides are {strides}")
    if access.pattern == "column" and strides[-2] != 1:
        raise _UnfitError(f"an {name} of one column must be contiguous, its strides are {strides}")
    if access.pattern == "full":
        step = 16 // BYTES[access.dtype]
        if any(one % step for one in (*strides[:-1], access.offset)):
            raise _UnfitError(
                f"TMA wants rows that start at multiples of 16 bytes ({step} elements), an {name} has "
                f"strides {strides} and offset {access.offset}"
            )


def _check_counts(evt: Evt) -> None:
    full = sum(one.kind in ("source", "full") for one in evt.operands)
    counts = (
        (evt.slots, SLOTS, "operands and further outputs"),
        (full, MAX_FULL, "operands as large as D"),
        (len(evt.aux), MAX_AUX, "outputs besides D"),
        (len(evt.nodes), MAX_NODES, "values"),
    )
    for count, limit, what in counts:
        if count > limit:
            raise _UnfitError(f"it has {count} {what}, a kernel takes {limit}")


@dataclass(frozen=True)
class _Value:
    """What one step gives: a node, and what is known of it."""

    node: int
    kind: Kind | Literal["whole"]
    bounds: Bounds = ANY
    narrow: str = ""


class _Builder:
    """Makes nodes of steps; the same value is one node, however often the steps compute it."""

    def __init__(self, epilogue: Epilogue) -> None:
        self._epilogue = epilogue
        self._nodes: dict[Node, int] = {}
        self._values: list[_Value] = []
        self._outputs: dict[int, Output] = {}

    def build(self) -> Evt:
        for step in self._epilogue.steps:
            self._values.append(self._value(step))
        missing = [one for one in range(len(self._epilogue.writes)) if one not in self._outputs]
        if missing:
            raise _UnfitError("an output is never stored")
        written = [self._outputs[place] for place in range(len(self._epilogue.writes))]
        if self._epilogue.readers:
            element = ELEMENTS.get(self._epilogue.dtype)
            if element is None:
                raise _UnfitError(f"others read the product, {self._epilogue.dtype} is not stored")
            written.insert(-1, Output(self._node("sums"), element))
        return Evt(tuple(self._nodes), self._operands(), tuple(written))

    def _operands(self) -> tuple[Operand, ...]:
        found: list[Operand] = []
        for one in self._epilogue.reads:
            kind: OperandKind = one.pattern if one.pattern != "other" else "full"
            if kind == "full" and all(operand.kind != "source" for operand in found):
                kind = "source"
            found.append(Operand(kind, ELEMENTS[one.dtype]))
        return tuple(found)

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
            raise _UnfitError(f"a constant is no number: {value!r}")
        number = float(value)
        known = ANY if math.isnan(number) else (number, number)
        # repr tells -0.0 from 0.0, which are equal as keys.
        if number == 0 and math.copysign(1, number) < 0:
            return _Value(self._node("neg", (self._node("constant", (), 0.0),)), "number", known)
        return _Value(self._node("constant", (), number), "number", known)

    def _converted(self, value: _Value, dtype: str) -> _Value:
        if value.narrow:
            raise _UnfitError(f"it computes with {value.narrow} values")
        if dtype in _ROUNDED:
            if value.kind == "truth":
                return _Value(self._node("number", (value.node,)), "number", (0.0, 1.0))
            return replace(value, kind="number")
        if dtype not in LIMITS or value.kind != "number":
            raise _UnfitError(f"it converts to {dtype}")
        low, high = value.bounds
        limit = LIMITS[dtype]
        least = -128.0 if dtype == "int8" else -limit
        if low < least or high > limit:
            raise _UnfitError(
                f"a conversion to {dtype} needs values clamped to {least:g} ... {limit:g} first: beyond, "
                "torch gives something else than the GPU's conversion"
            )
        return replace(value, narrow=dtype)

    def _stored(self, value: _Value, place: int) -> _Value:
        dtype = self._epilogue.writes[place].dtype
        wanted = dtype if dtype in LIMITS else ""
        if value.kind != "number" or value.narrow != wanted:
            raise _UnfitError(f"what it stores as {dtype} is {value.narrow or value.kind}")
        if place in self._outputs:
            raise _UnfitError("it stores an output twice")
        self._outputs[place] = Output(value.node, ELEMENTS[dtype])
        return value

    def _computed(self, step: Step) -> _Value:
        functor = FUNCTORS.get(step.op)
        if functor is None or step.op == "number":
            raise _UnfitError(f"no visitor computes {step.op}")
        taken = [self._values[one] for one in step.arguments]
        if len(taken) != len(functor.takes) or step.value is not None:
            raise _UnfitError(f"{step.op} has arguments nothing is known of")
        for one, kind in zip(taken, functor.takes, strict=True):
            if one.narrow or one.kind != kind:
                raise _UnfitError(f"it computes {step.op} of {one.narrow or one.kind} values")
        node = self._node(step.op, tuple(one.node for one in taken))
        return _Value(node, functor.gives, bounds(step.op, [one.bounds for one in taken]))
