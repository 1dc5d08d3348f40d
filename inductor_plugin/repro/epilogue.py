"""What stands behind a recorded product, as lines of Python that a person can read. Pure.

One line for each step, with the call that Inductor lowers to that step: compiled, the lines become the
same epilogue again, signature included. So values have the dtypes of the graph, casts stand where it
has them, and constants stay numbers. The same lines over operands in float64, without the casts that
only round, are the exact result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inductor_plugin.problem.epilogue import STRUCTURE, Epilogue, Step
from inductor_plugin.problem.epilogue_text import ParsedEpilogue
from inductor_plugin.repro.call import Call
from inductor_plugin.repro.operand import Made
from inductor_plugin.repro.view import Shape, dense, seen, split, stored

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "bitwise_and": "&",
    "bitwise_or": "|",
}
"""Steps between two values that Python has a sign for."""

_UNARY = (
    "relu neg abs square reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sigmoid tanh erf erfc "
    "lgamma sin cos tan asin acos atan sinh cosh asinh acosh atanh sign round floor ceil trunc isnan isinf "
    "logical_not bitwise_not"
)
_BINARY = "maximum minimum logical_and logical_or pow fmod atan2"
FUNCTIONS = {
    **dict.fromkeys(_UNARY.split(), 1),
    **dict.fromkeys(_BINARY.split(), 2),
    "where": 3,
}
"""Steps that are a function of torch, and how many arguments it takes."""

_LIMITS = {"maximum": "clamp_min", "minimum": "clamp_max"}
_TRUTH = frozenset(
    {"lt", "le", "gt", "ge", "eq", "ne"}
    | {"logical_and", "logical_or", "logical_not", "isnan", "isinf"}
)
_JUMPS = _TRUTH | {"round", "floor", "ceil", "trunc", "sign", "fmod"}
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def with_epilogue(
    product: Call, made: Sequence[Made], parsed: ParsedEpilogue, *, dynamic: bool = False
) -> Call | str:
    """Return a call with its epilogue, or why it cannot be written.

    Args:
        product: The call without it.
        made: All operands; what the epilogue reads are the last.
        parsed: The epilogue.
        dynamic: Whether a size is unknown when the call is compiled.
    """
    epilogue = parsed.epilogue
    if reason := _refused(epilogue):
        return reason
    shape = replace(_shape(parsed), dynamic=dynamic)
    behind = made[len(product.names) :]
    patterns = {one.buffer: one.pattern for one in reversed(epilogue.reads)}
    found = [patterns[f"operand{index}"] for index in range(len(behind))]
    names = [f"{'operand' if p == 'other' else p}{index}" for index, p in enumerate(found)]
    views: list[str] = []
    for access in epilogue.reads:
        index = int(access.buffer.removeprefix("operand"))
        strides = shape.strides(access.stride)
        view = seen(names[index], behind[index], shape, strides, access.offset)
        if view is None:
            return f"it reads {names[index]} in a way that only the operand's memory tells"
        views.append(view)
    results: list[str] = []
    for access, size in zip(epilogue.writes, parsed.sizes, strict=True):
        result = stored(shape, access.stride, access.offset, size)
        if result is None:
            return f"it writes {'x'.join(map(str, size))}, which is no turned or split product"
        results.append(result)
    written = _Lines(epilogue, shape, views, results)
    body, exact = written.text(), replace(written, exact=True).text()
    return replace(
        product,
        names=(*product.names, *names),
        lines=body,
        exact_lines=exact,
        readers=epilogue.readers,
        jumps=_jumps(epilogue),
        outputs=tuple(one.dtype for one in epilogue.writes),
        dtype=epilogue.dtype,
    )


def _refused(epilogue: Epilogue) -> str | None:
    """Return what of an epilogue no line of Python says."""
    accesses = (*epilogue.reads, *epilogue.writes)
    reasons = {
        f"its epilogue reduces ({epilogue.reduction})": bool(epilogue.reduction),
        "its epilogue changes a tensor that was there before": epilogue.atomic or epilogue.mutates,
        "its epilogue reads the product in another order than it has": epilogue.product != "full",
        "its epilogue writes nothing that is known": not epilogue.writes,
        "its epilogue has an index that strides do not say: a gather, a pad, a copy turned": any(
            not one.stride for one in accesses
        ),
    }
    found = (reason for reason, holds in reasons.items() if holds)
    return next(found, None) or next(filter(None, map(_refused_step, epilogue.steps)), None)


def _refused_step(step: Step) -> str | None:
    if step.op == "to_dtype_rounded":
        return "its epilogue rounds in between (emulate_precision_casts)"
    if step.op == "constant" and isinstance(step.value, str):
        return f"its epilogue has the number {step.value}, which is known at run time only"
    if step.op in STRUCTURE or step.op == "to_dtype" or step.op in {*INFIX, *FUNCTIONS}:
        return None
    return f"this version cannot write the step {step.op!r} of its epilogue"


def _shape(parsed: ParsedEpilogue) -> Shape:
    """Return the shape the lines work on: the product's, or that of a result which splits its dimensions."""
    whole = Shape(parsed.epilogue.size, parsed.epilogue.size)
    for access, size in zip(parsed.epilogue.writes, parsed.sizes, strict=True):
        parted = split(parsed.epilogue.size, size)
        if parted is not None and parted.strides(access.stride) == dense(size):
            return parted
    return whole


def _jumps(epilogue: Epilogue) -> bool:
    """Return whether a value next to a threshold may fall on either side of it."""
    return any(
        one.op in _JUMPS
        or (one.op.startswith("to_dtype") and str(one.value).startswith(("int", "uint", "bool")))
        for one in epilogue.steps
    )


@dataclass
class _Lines:
    """The lines of one function, while they are written.

    Attributes:
        epilogue: What they compute.
        shape: On which they work.
        views: Each read, as an expression.
        results: Each write, as an expression with a place for its value.
        exact: Whether they are for operands in float64.
    """

    epilogue: Epilogue
    shape: Shape
    views: Sequence[str]
    results: Sequence[str]
    exact: bool = False
    names: dict[int, str] = field(default_factory=dict[int, str], init=False)
    dtypes: dict[int, str | None] = field(default_factory=dict[int, "str | None"], init=False)
    lines: list[str] = field(default_factory=list[str], init=False)
    said: dict[str, str] = field(default_factory=dict[str, str], init=False)

    def text(self) -> tuple[str, ...]:
        """Return them, behind the line that computes ``product``."""
        view = self.shape.of_product()
        if view != "product":
            self.lines.append(f"shaped = {view}")
        written: dict[int, str] = {}
        for index, step in enumerate(self.epilogue.steps):
            if step.op == "store" and isinstance(step.value, int):
                written[step.value] = self._stored(step)
            elif step.op == "constant":
                self.names[index], self.dtypes[index] = _literal(step), None
            elif step.op == "product":
                self._known(
                    index, "shaped" if view != "product" else "product", self.epilogue.dtype
                )
            elif step.op == "load" and isinstance(step.value, int):
                self._load(index, step.value)
            else:
                self._compute(index, step)
        returned = [written[place] for place in sorted(written)]
        if self.epilogue.readers:
            returned.append("product")
        # Each more is a node of its own; the first is the graph, which gives the product back.
        returned += [f"read(product, {one})" for one in range(1, self.epilogue.readers)]
        self.lines.append(f"return {', '.join(returned)}")
        return tuple(self.lines)

    def _known(self, index: int, name: str, dtype: str | None) -> None:
        self.names[index], self.dtypes[index] = name, dtype

    def _load(self, index: int, read: int) -> None:
        view = self.views[read]
        name = view if view.isidentifier() else self._line(index, view)
        self._known(index, name, self.epilogue.reads[read].dtype)

    def _compute(self, index: int, step: Step) -> None:
        self._known(index, self._line(index, self._expression(step)), self._dtype(step))

    def _line(self, index: int, expression: str) -> str:
        """Return the name of an expression; Inductor repeats what is used twice, a script need not."""
        if expression not in self.said:
            self.said[expression] = f"v{index}"
            self.lines.append(f"v{index} = {expression}")
        return self.said[expression]

    def _dtype(self, step: Step) -> str | None:
        """Return the dtype of a step's value, as torch has it."""
        if step.op == "to_dtype":
            return str(step.value)
        if step.op in _TRUTH:
            return "bool"
        places = step.arguments[1:] if step.op == "where" else step.arguments
        found = (self.dtypes[one] for one in places if self.dtypes[one] is not None)
        return next(found, "float32")

    def _expression(self, step: Step) -> str:
        given = [self.names[one] for one in step.arguments]
        numbers = [self.dtypes[one] is None for one in step.arguments]
        if step.op == "to_dtype":
            wide = self.exact and step.value in _FLOATS
            value = self._tensor(step, 0) if numbers[0] else given[0]
            return f"{value}.to({'WIDE' if wide else f'torch.{step.value}'})"
        if step.op == "mul" and step.arguments[0] == step.arguments[1] and not numbers[0]:
            return f"torch.square({given[0]})"  # a value read twice would be computed twice
        if step.op in INFIX:
            # Python turns a sum with the number in front round; the order is part of a signature.
            if numbers[0] and (numbers[1] or step.op in ("add", "mul")):
                given[0] = self._tensor(step, 0)
            return f"{given[0]} {INFIX[step.op]} {given[1]}"
        if step.op in _LIMITS and numbers == [False, True]:
            return f"{given[0]}.{_LIMITS[step.op]}({given[1]})"
        scalars = {"where": (1, 2), "pow": (1,), "fmod": (1,)}.get(step.op, ())
        for place, number in enumerate(numbers):
            if number and place not in scalars:
                given[place] = self._tensor(step, place)
        return f"torch.{step.op}({', '.join(given)})"

    def _tensor(self, step: Step, place: int) -> str:
        """Return a number as a tensor, where no call takes a number."""
        dtypes = [self.dtypes[one] for one in step.arguments if self.dtypes[one] is not None]
        dtype = dtypes[0] if dtypes else "float32"
        wide = self.exact and dtype in _FLOATS
        kind = "WIDE" if wide else f"torch.{dtype}"
        value = self.names[step.arguments[place]]
        return f"torch.full((), {value}, dtype={kind}, device=product.device)"

    def _stored(self, step: Step) -> str:
        place, source = step.value, step.arguments[0]
        assert isinstance(place, int)
        wanted = self.epilogue.writes[place].dtype
        value = self._tensor(step, 0) if self.dtypes[source] is None else self.names[source]
        if self.exact:
            value = f"{value}.to(WIDE)"
        elif self.dtypes[source] != wanted:
            value = f"{value}.to(torch.{wanted})"
        return self.results[place].format(value)


def _literal(step: Step) -> str:
    """Return a number as Python writes it."""
    text = str(step.value)
    return f"float({text!r})" if text in ("inf", "-inf", "nan") else text
