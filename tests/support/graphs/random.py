"""Random graphs of matrix products: strides, views, broadcasting and pointwise operators, from a seed.

A graph is data (`Graph`), so that it can be printed, run eagerly, compiled, and shrunk: its steps read
values by number, and a step that is removed is replaced by the first value it reads.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

EXTENTS = (8, 13, 24)
"""Multiples of a vector and of 8, and odd extents: few, so that graphs share problems and kernels."""
BATCH = 5
"""No other extent, stride or storage of an input has this size, with any of `VARY`."""
OTHERS: tuple[dict[int, int], ...] = (
    {8: 16, 13: 11, 24: 40, BATCH: 2},
    {8: 5, 13: 30, 24: 7, BATCH: 4},
)
"""Extents at a dynamic graph's other sizes: larger, smaller, multiples of other numbers."""
VARY: tuple[tuple[int, ...], ...] = (
    (*EXTENTS, BATCH),
    *((extent,) for extent in (*EXTENTS, BATCH)),
)
"""Extents that are unknown in dynamic graphs."""
TOGETHER = 25
"""Neighbours that are unknown in the same extents: Dynamo takes equal numbers of one compile for one."""
_MOST_STEPS = 3
_DYNAMIC_ONE_IN = 3

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """One input: a view of random numbers.

    Attributes:
        size: Extents of the view.
        form: Its memory layout: a key of `FORMS`.
    """

    size: Shape
    form: str


@dataclass(frozen=True)
class Step:
    """One operator: a key of `PRODUCTS`, `VIEWS` or `POINTWISE`, and the numbers of the values it reads."""

    name: str
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A graph.

    Attributes:
        seed: The seed it was generated from.
        dtype: Dtype of all its inputs.
        inputs: The first values.
        steps: The other values, in order; results are the last one and products that are not read.
        varies: Extents that are compiled as unknown: equal ones together, so that products stay valid.
    """

    seed: int
    dtype: torch.dtype
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    varies: tuple[int, ...] = ()

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Run the graph eagerly."""
        values = list(tensors)
        read = {number for step in self.steps for number in step.reads}
        for step in self.steps:
            values.append(OPERATORS[step.name](*(values[number] for number in step.reads)))
        return [
            value
            for number, value in enumerate(values)
            if number >= len(tensors) and number not in read
        ]

    def tensors(self, extents: Mapping[int, int] | None = None) -> list[Tensor]:
        """Return its inputs, the same each time; extents that vary are replaced by those of ``extents``."""
        generator = torch.Generator().manual_seed(self.seed)
        now = {extent: other for extent, other in (extents or {}).items() if extent in self.varies}
        arguments: list[Tensor] = []
        for operand in self.inputs:
            tensor = FORMS[operand.form](
                tuple(now.get(extent, extent) for extent in operand.size), generator
            )
            arguments.append(
                tensor.to(self.dtype) if operand.form == "dense" else _typed(tensor, self.dtype)
            )
        return arguments

    def unknown(self) -> list[tuple[int, int]]:
        """Return the dimensions that vary: numbers of inputs and dimensions."""
        return [
            (number, dim)
            for number, operand in enumerate(self.inputs)
            for dim, extent in enumerate(operand.size)
            if extent in self.varies
        ]

    def text(self) -> str:
        """Return the graph as text, for messages of failures."""
        lines = [f"seed {self.seed}, {self.dtype}, unknown extents {list(self.varies)}"]
        lines += [
            f"  v{n} = {operand.form} {list(operand.size)}" for n, operand in enumerate(self.inputs)
        ]
        first = len(self.inputs)
        lines += [
            f"  v{first + n} = {step.name}({', '.join(f'v{r}' for r in step.reads)})"
            for n, step in enumerate(self.steps)
        ]
        return "\n".join(lines)


def _numbers(size: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(list(size), generator=generator)


def _typed(view: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a view in another type, its strides and offset kept."""
    base = torch.as_strided(view, (view.untyped_storage().nbytes() // 4,), (1,), 0)
    return torch.as_strided(base.to(dtype), view.size(), view.stride(), view.storage_offset())


def _sliced(size: Shape, generator: torch.Generator) -> Tensor:
    return _numbers((*size[:-1], size[-1] + 6), generator)[..., 2:-4]


def _rows_apart(size: Shape, generator: torch.Generator) -> Tensor:
    return _numbers((*size[:-2], 2 * size[-2], size[-1]), generator)[..., ::2, :]


def _expanded(size: Shape, generator: torch.Generator) -> Tensor:
    return _numbers((*size[:-2], 1, size[-1]), generator).expand(size)


def _reinterpreted(size: Shape, generator: torch.Generator) -> Tensor:
    """Return a view that reads its memory in another order, from its second element."""
    count = 1
    for extent in size:
        count *= extent
    flat = _numbers((count + 7,), generator)
    stride = [1] * len(size)
    for dim in range(1, len(size)):
        stride[dim] = stride[dim - 1] * size[dim - 1]
    return torch.as_strided(flat, size, stride, 1)


FORMS: dict[str, Callable[[Shape, torch.Generator], Tensor]] = {
    "dense": _numbers,
    "transposed": lambda size, g: _numbers((*size[:-2], size[-1], size[-2]), g).mT,
    "sliced": _sliced,
    "rows_apart": _rows_apart,
    "expanded": _expanded,
    "reinterpreted": _reinterpreted,
}
"""Memory layouts of an input."""

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned_twice": lambda a: a.mT.contiguous().mT,
    "padded_and_cut": lambda a: functional.pad(a, (1, 2))[..., 1:-2],
    "cut_rows": lambda a: torch.cat([a, a], -2)[..., a.shape[-2] // 2 :, :][..., : a.shape[-2], :],
    "flattened": lambda a: a.contiguous().view(-1).view(a.shape),
    "strided": lambda a: torch.as_strided(a.contiguous(), a.shape, a.contiguous().stride(), 0),
}
"""Views and copies that keep the extents."""

POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sine": torch.sin,
    "halved": lambda a: a * 0.5,
    "clamped": lambda a: a.clamp(-1, 1),
}

PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "mm": torch.mm,
    "addmm": torch.addmm,
    "addmm_scaled": lambda bias, a, b: torch.addmm(bias, a, b, alpha=0.5, beta=2),
    "bmm": torch.bmm,
    "baddbmm": torch.baddbmm,
    "linear": functional.linear,
    "matmul_broadcast": torch.matmul,
    "matmul_vector": torch.matmul,
}

OPERATORS: dict[str, Callable[..., Tensor]] = {**VIEWS, **POINTWISE, **PRODUCTS}


def graph(seed: int) -> Graph:
    """Return the graph of a seed: a product, then up to three steps, a third of them products again.

    One graph in three is dynamic.
    """
    chance = random.Random(seed)
    draft = _Draft(chance)
    draft.add_product(None)
    for _ in range(chance.randrange(_MOST_STEPS + 1)):
        if len(draft.shapes[-1]) == 1:
            break
        if chance.random() < 0.34:
            draft.add_product(len(draft.steps) - 1)
        else:
            name = chance.choice((*VIEWS, *POINTWISE, *POINTWISE))
            draft.add_step(name, (len(draft.steps) - 1,), draft.shapes[-1])
    dynamic = seed % _DYNAMIC_ONE_IN == _DYNAMIC_ONE_IN - 1
    varies = VARY[seed // TOGETHER % len(VARY)] if dynamic else ()
    inputs = tuple(draft.inputs)
    return Graph(seed, draft.dtype, inputs, tuple(_numbered(draft.steps, len(inputs))), varies)


class _Draft:
    """A graph that is being drawn. Steps read inputs by negative numbers, counted downwards from -1.

    Attributes:
        dtype: Of all inputs.
        inputs: Those drawn so far.
        steps: Likewise.
        shapes: That of each step's result.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.shapes: list[Shape] = []
        self.dtype = chance.choice((torch.float32, torch.float32, torch.bfloat16))

    def add_step(self, name: str, reads: tuple[int, ...], shape: Shape) -> None:
        self.steps.append(Step(name, reads))
        self.shapes.append(shape)

    def add_product(self, left: int | None) -> None:
        """Add a product of a step's result, or of a new input if `left` is None."""
        chance = self._chance
        batched = len(self.shapes[-1]) == 3 if left is not None else chance.random() < 0.4
        rows, inner = self.shapes[-1][-2:] if left is not None else _pick(chance, 2)
        (columns,) = _pick(chance, 1)
        lead: Shape = (BATCH,) if batched else ()
        names = ("bmm", "baddbmm", "matmul_broadcast") if batched else (
            "mm", "addmm", "addmm_scaled", "linear", "matmul_vector"
        )  # fmt: skip
        name = chance.choice(names)
        a = left if left is not None else self._add_input((*lead, rows, inner))
        shape: Shape = (*lead, rows, columns)
        if name == "linear":
            reads = (a, self._add_input((columns, inner)))
        elif name == "matmul_broadcast":
            reads = (a, self._add_input((inner, columns)))
        elif name == "matmul_vector":
            reads, shape = (a, self._add_input((inner,))), (*lead, rows)
        elif name in ("addmm", "addmm_scaled", "baddbmm"):
            bias: Shape = chance.choice(((columns,), shape)) if not batched else shape
            reads = (self._add_input(bias), a, self._add_input((*lead, inner, columns)))
        else:
            reads = (a, self._add_input((*lead, inner, columns)))
        self.add_step(name, reads, shape)

    def _add_input(self, size: Shape) -> int:
        form = self._chance.choice(tuple(FORMS)) if len(size) > 1 else "dense"
        self.inputs.append(Input(size, form))
        return -len(self.inputs)


def _pick(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.choice(EXTENTS) for _ in range(count))


def _numbered(steps: Sequence[Step], inputs: int) -> Iterator[Step]:
    """Yield the steps with their reads numbered: inputs first, which the generator counts downwards."""
    for step in steps:
        yield replace(
            step, reads=tuple(-1 - index if index < 0 else inputs + index for index in step.reads)
        )


def smaller(whole: Graph) -> Iterator[Graph]:
    """Yield graphs with one thing less: the last step, a step, an input's odd form, unknown extents."""
    first = len(whole.inputs)
    for index in reversed(range(len(whole.steps))):
        step = whole.steps[index]
        if step.name in PRODUCTS and index < len(whole.steps) - 1:
            continue  # its extents differ from those of the value it reads
        gone, instead = first + index, step.reads[0]
        rest = tuple(
            replace(step, reads=tuple(_without(r, gone, instead) for r in step.reads))
            for number, step in enumerate(whole.steps)
            if number != index
        )
        if rest:
            yield replace(whole, steps=rest)
    for index, operand in enumerate(whole.inputs):
        if operand.form != "dense":
            plain = replace(operand, form="dense")
            inputs = (*whole.inputs[:index], plain, *whole.inputs[index + 1 :])
            yield replace(whole, inputs=inputs)
    if whole.varies:
        yield replace(whole, varies=())


def _without(read: int, gone: int, instead: int) -> int:
    read = instead if read == gone else read
    return read - 1 if read > gone else read


def shrunk(whole: Graph, fails: Callable[[Graph], bool], most: int = 12) -> Graph:
    """Return the smallest graph that still fails, after at most so many tries."""
    for candidate in smaller(whole):
        if most <= 0:
            break
        most -= 1
        if fails(candidate):
            return shrunk(candidate, fails, most)
    return whole
