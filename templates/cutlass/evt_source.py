"""An `Evt` as C++: one function for each output, and the visitors around them.

With one output the visitors are a tree (``Sm90EVT``), its leaves first. With more they are a graph
(``Sm90TopologicalVisitor``), since a leaf may be read on the way to several outputs: a list of
visitors, each behind those it takes, and for each the places of what it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from inductor_plugin.templates.cutlass.config import BITS, GemmConfig
from inductor_plugin.templates.cutlass.epilogue import (
    ELEMENT_TYPES,
    FUSION,
    ROUND,
    CppEpilogue,
    block_type,
    stride_type,
)
from inductor_plugin.templates.cutlass.evt import Evt
from inductor_plugin.templates.cutlass.functor import FUNCTORS, literal

Leaf: TypeAlias = tuple[Literal["sums", "operand", "aux"], int]
"""What a function takes: the product, an operand, or the value of an output before it."""

_COLLECTIVE = "cutlass::epilogue::collective"


@dataclass(frozen=True)
class Function:
    """The function of one output.

    Attributes:
        name: Its C++ name.
        leaves: What it takes.
        body: Statements over ``x0``, ``x1`` ... that end with a return.
    """

    name: str
    leaves: tuple[Leaf, ...]
    body: tuple[str, ...]

    @property
    def text(self) -> str:
        """The C++ of it, for one value and for CUTLASS's arrays of them."""
        values = range(len(self.leaves))
        single = ", ".join(f"float x{one}" for one in values)
        many = ", ".join(f"cutlass::Array<float, N> const& x{one}" for one in values)
        each = ", ".join(f"x{one}[i]" for one in values)
        body = "\n".join(f"    {line}" for line in self.body)
        return f"""template <class T>
struct {self.name} {{
  CUTLASS_HOST_DEVICE float operator()({single}) const {{
{body}
  }}
}};
template <int N>
struct {self.name}<cutlass::Array<float, N>> {{
  CUTLASS_HOST_DEVICE cutlass::Array<float, N> operator()({many}) const {{
    {self.name}<float> one;
    cutlass::Array<float, N> result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) result[i] = one({each});
    return result;
  }}
}};"""


def functions(evt: Evt, name: str) -> tuple[Function, ...]:
    """Return the function of each output, in order; ``name`` begins their names."""
    made: list[Function] = []
    known: dict[int, int] = {}
    for place, output in enumerate(evt.outputs):
        made.append(_function(evt, f"{name}_value{place}", place, known))
        known.setdefault(output.node, place)
    return tuple(made)


def _function(evt: Evt, name: str, place: int, known: dict[int, int]) -> Function:
    """Return one function.

    Args:
        evt: The tree.
        name: Of the function.
        place: Of the output.
        known: The output before it that has a node's value, by the node.
    """
    output = evt.outputs[place]
    names: dict[int, str] = {}
    leaves: list[Leaf] = []
    body: list[str] = []

    def visit(index: int) -> None:
        if index in names:
            return
        node = evt.nodes[index]
        leaf = _leaf(evt, index, known)
        if leaf is not None:
            names[index] = f"x{len(leaves)}"
            leaves.append(leaf)
        elif node.op == "constant":
            names[index] = literal(node.value)
        else:
            for one in node.children:
                visit(one)
            functor = FUNCTORS[node.op]
            value = functor.text.format(*(names[one] for one in node.children))
            kind = "float" if functor.gives == "number" else "bool"
            names[index] = f"v{index}"
            body.append(f"{kind} const v{index} = {value};")

    visit(output.node)
    if not leaves:  # a constant: a visitor has to take something
        leaves.append(("sums", 0))
    # The conversion to int8 rounds to the nearest; torch cuts.
    cut = output.element == "s8"
    last = names[output.node]
    body.append(f"return truncf({last});" if cut else f"return {last};")
    return Function(name, tuple(leaves), tuple(body))


def _leaf(evt: Evt, index: int, known: dict[int, int]) -> Leaf | None:
    node = evt.nodes[index]
    if node.op == "sums":
        return "sums", 0
    if node.op == "operand":
        return "operand", int(node.value)
    return ("aux", known[index]) if index in known else None


def evt_epilogue(config: GemmConfig, evt: Evt) -> CppEpilogue:
    """Return the epilogue of a configuration that has a tree.

    The digest is in the names of its types: two libraries in one process may share a kernel's name
    only if they have the same kernel.
    """
    kernel = f"evt_{evt.digest}"
    made = functions(evt, kernel)
    texts = [one.text for one in made]
    if evt.aux or any(one.kind == "full" for one in evt.operands):
        texts.append(_descriptor(config, evt, kernel))
    writer = _Writer(config, evt, kernel)
    tree = writer.graph(made) if evt.aux else writer.tree(made[0])
    return CppEpilogue(tree.functor, tree.thread, "\n".join([*texts, *writer.types]))


def _descriptor(config: GemmConfig, evt: Evt, kernel: str) -> str:
    """Return the type that says how many stages and which tile operands as large as D have."""
    m, n, k = config.tile
    source = "void" if evt.source is None else ELEMENT_TYPES[config.c]
    schedule = "" if config.schedule == "pingpong" else "Cooperative"
    shape = f"cute::Shape<cute::Int<{m}>, cute::Int<{n}>, cute::Int<{k}>>"
    return (
        f"using {kernel}_stages = {_COLLECTIVE}::detail::EpilogueDescriptor<{shape}, "
        f"{_COLLECTIVE}::EpilogueTileAuto, {source}, {ELEMENT_TYPES[config.d]}, "
        f"cutlass::epilogue::TmaWarpSpecialized{schedule}>;"
    )


class _Writer:
    """Writes visitors; collects the types they need."""

    def __init__(self, config: GemmConfig, evt: Evt, kernel: str) -> None:
        self._config = config
        self._evt = evt
        self._kernel = kernel
        self.types: list[str] = []

    def tree(self, function: Function) -> CppEpilogue:
        """Return the visitors of one output."""
        leaves = [self._visitor(one) for one in function.leaves]
        compute = self._compute(function, self._evt.result.element)
        types = ", ".join([compute, *(one.functor for one in leaves)])
        arguments = ", ".join([*(one.thread for one in leaves), "{}"])
        return CppEpilogue(f"{FUSION}::Sm90EVT<{types}>", f"{{{arguments}}}")

    def graph(self, made: tuple[Function, ...]) -> CppEpilogue:
        """Return the visitors of several outputs."""
        needed: dict[Leaf, None] = {}
        for function in made:
            needed.update(dict.fromkeys(one for one in function.leaves if one[0] != "aux"))
        visitors = [self._visitor(one) for one in needed]
        edges: list[tuple[int, ...]] = [()] * len(visitors)
        places: dict[Leaf, int] = {leaf: place for place, leaf in enumerate(needed)}
        for place, function in enumerate(made):
            last = place == len(made) - 1
            element = self._evt.outputs[place].element if last else "f32"
            visitors.append(CppEpilogue(self._compute(function, element), "{}"))
            edges.append(tuple(places[one] for one in function.leaves))
            if not last:
                visitors.append(self._store(place))
                edges.append((len(visitors) - 2,))
                places["aux", place] = len(visitors) - 1
        sequences = ", ".join(f"cute::seq<{', '.join(map(str, one))}>" for one in edges)
        types = ",\n    ".join(one.functor for one in visitors)
        functor = f"{FUSION}::Sm90TopologicalVisitor<float, cute::tuple<{sequences}>,\n    {types}>"
        arguments = ",\n       ".join(one.thread for one in visitors)
        return CppEpilogue(functor, f"{{{arguments}}}")

    def _compute(self, function: Function, element: str) -> str:
        return f"{FUSION}::Sm90Compute<{function.name}, {ELEMENT_TYPES[element]}, float, {ROUND}>"

    def _visitor(self, leaf: Leaf) -> CppEpilogue:
        """Return what loads a leaf."""
        what, place = leaf
        if what == "sums":
            return CppEpilogue(f"{FUSION}::Sm90AccFetch", "{}")
        operand = self._evt.operands[place]
        element = ELEMENT_TYPES[operand.element]
        pointer = f"static_cast<{element} const*>(call.operands[{place}].pointer)"
        batch = batch_of(place)
        if operand.kind == "source":
            return CppEpilogue(f"{FUSION}::Sm90SrcFetch<{element}>", "{}")
        if operand.kind == "scalar":
            each = stride_type("_0", "_0", "int64_t")
            return CppEpilogue(
                f"{FUSION}::Sm90ScalarBroadcast<{element}, {each}>",
                f"{{{{{element}(0)}}, {{{pointer}}}, {{{{cute::_0{{}}, cute::_0{{}}, {batch}}}}}}}",
            )
        if operand.kind == "full":
            return self._load(place, element, pointer)
        row = operand.kind == "row"
        parts = ("_0", "_1") if row else ("_1", "_0")
        steps = ", ".join(f"cute::{one}{{}}" for one in parts)
        name = "Sm90RowBroadcast" if row else "Sm90ColBroadcast"
        return CppEpilogue(
            f"{FUSION}::{name}<0, {block_type(self._config)}, {element}, float, "
            f"{stride_type(*parts, 'int64_t')}, 1>",
            f"{{{pointer}, {element}(0), {{{steps}, {batch}}}}}",
        )

    def _load(self, place: int, element: str, pointer: str) -> CppEpilogue:
        name = self._aux_type("AuxLoadDescriptor", place, element)
        return CppEpilogue(
            f"{FUSION}::Sm90AuxLoad<{name}::Stages, typename {name}::EpilogueTile, {element}, "
            f"typename {name}::Stride, typename {name}::SmemLayoutAtom, typename {name}::CopyOpS2R>",
            f"{{{pointer}, {element}(0), {self._strides(place, self._evt.operands[place].element)}}}",
        )

    def _store(self, output: int) -> CppEpilogue:
        place = len(self._evt.operands) + output
        element = ELEMENT_TYPES[self._evt.outputs[output].element]
        name = self._aux_type("AuxStoreDescriptor", place, element)
        pointer = f"static_cast<{element}*>(call.operands[{place}].pointer)"
        return CppEpilogue(
            f"{FUSION}::Sm90AuxStore<{name}::Stages, typename {name}::EpilogueTile, {element}, "
            f"{ROUND}, typename {name}::Stride, typename {name}::SmemLayoutAtom, "
            f"typename {name}::CopyOpR2S>",
            f"{{{pointer}, {self._strides(place, self._evt.outputs[output].element)}}}",
        )

    def _aux_type(self, descriptor: str, place: int, element: str) -> str:
        name = f"{self._kernel}_slot{place}"
        full = stride_type("int64_t", "_1", "int64_t")
        self.types.append(
            f"using {name} = {_COLLECTIVE}::detail::{descriptor}<{self._kernel}_stages, {full}, "
            f"{element}>;"
        )
        return name

    def _strides(self, place: int, element: str) -> str:
        return f"{{{lead_of(place, element)}, cute::_1{{}}, {batch_of(place)}}}"


def lead_of(place: int, element: str) -> str:
    """Return the C++ of the stride between the rows of an operand as large as D."""
    return f"lead_of(call.operands[{place}].along_m, call.m, call.n, {128 // BITS[element]})"


def batch_of(place: int) -> str:
    """Return the C++ of the stride between the matrices of an operand."""
    return f"(batched ? call.operands[{place}].batch : 0)"


def checks(evt: Evt) -> str:
    """Return C++ that returns a status where an operand does not lie under D as the kernel reads it."""
    tests: list[str] = []
    for place, one in enumerate(evt.operands):
        operand, size = f"call.operands[{place}]", BITS[one.element] // 8
        if one.kind in ("source", "full"):
            tests.append(f"check_matrix({operand}, call, {16 // size}, {size})")
        else:
            along = [str(one.kind == kind).lower() for kind in ("column", "row")]
            tests.append(f"check_vector({operand}, m, n, {', '.join(along)}, {size})")
    lines = [f"if (int32_t status = {one}) return status;" for one in tests]
    for place, one in enumerate(evt.aux, start=len(evt.operands)):
        operand, size = f"call.operands[{place}]", BITS[one.element] // 8
        test = f"check_matrix({operand}, call, {16 // size}, {size})"
        lines.append(f"if (int32_t status = {test}) return status;")
        lines.append(f"if (call.batch > 1 && {operand}.batch == 0) return kStride;")
    return "\n  ".join(lines)
