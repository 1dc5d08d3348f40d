"""An `Evt` as C++: one function for each output, and the visitors around them.

With one output the visitors are a tree (``Sm90EVT``), its leaves first. With more they are a graph
(``Sm90TopologicalVisitor``), since several outputs may read a leaf: a list of visitors, each
after its arguments, and for each the indices of its arguments.
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
    broadcast,
    stride_type,
)
from inductor_plugin.templates.cutlass.evt import Evt
from inductor_plugin.templates.cutlass.functor import FUNCTORS, literal

Leaf: TypeAlias = tuple[Literal["sums", "operand", "aux"], int]
"""An argument of a function: the product, an operand, or the value of an earlier output."""

_COLLECTIVE = "cutlass::epilogue::collective"


@dataclass(frozen=True)
class Function:
    """The function of one output.

    Attributes:
        name: Its C++ name.
        leaves: Its arguments.
        body: Statements over ``x0``, ``x1`` ... that end with a return.
    """

    name: str
    leaves: tuple[Leaf, ...]
    body: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its C++, for single values and for CUTLASS's arrays."""
        values = range(len(self.leaves))
        single = ", ".join(f"float x{index}" for index in values)
        many = ", ".join(f"cutlass::Array<float, N> const& x{index}" for index in values)
        each = ", ".join(f"x{index}[i]" for index in values)
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
    """Return the function of each output, in order; ``name`` is the prefix of their names."""
    result: list[Function] = []
    stored: dict[int, int] = {}
    for place, output in enumerate(evt.outputs):
        result.append(_function(evt, f"{name}_value{place}", place, stored))
        # The function of an int8 output returns its value truncated; later outputs need it whole.
        if output.element != "s8":
            stored.setdefault(output.node, place)
    return tuple(result)


def _function(evt: Evt, name: str, place: int, stored: dict[int, int]) -> Function:
    """Return the function of one output.

    Args:
        evt: The tree.
        name: The function's.
        place: The output's index.
        stored: The earlier output that stores a node's value, by the node.
    """
    output = evt.outputs[place]
    names: dict[int, str] = {}
    leaves: list[Leaf] = []
    body: list[str] = []

    def visit(index: int) -> None:
        if index in names:
            return
        node = evt.nodes[index]
        leaf = _leaf(evt, index, stored)
        if leaf is not None:
            names[index] = f"x{len(leaves)}"
            leaves.append(leaf)
        elif node.op == "constant":
            names[index] = literal(node.value)
        else:
            for child in node.children:
                visit(child)
            functor = FUNCTORS[node.op]
            value = functor.text.format(*(names[child] for child in node.children))
            kind = "float" if functor.gives == "number" else "bool"
            names[index] = f"v{index}"
            body.append(f"{kind} const v{index} = {value};")

    visit(output.node)
    if not leaves:  # a constant: a visitor needs an argument
        leaves.append(("sums", 0))
    # The conversion to int8 rounds to the nearest; torch truncates.
    truncated = output.element == "s8"
    last = names[output.node]
    body.append(f"return truncf({last});" if truncated else f"return {last};")
    return Function(name, tuple(leaves), tuple(body))


def _leaf(evt: Evt, index: int, stored: dict[int, int]) -> Leaf | None:
    node = evt.nodes[index]
    if node.op == "sums":
        return "sums", 0
    if node.op == "operand":
        return "operand", int(node.value)
    return ("aux", stored[index]) if index in stored else None


def evt_epilogue(config: GemmConfig, evt: Evt) -> CppEpilogue:
    """Return the epilogue of a configuration that has a tree.

    The digest is in the names of its types: two libraries in one process may share a kernel's name
    only if they have the same kernel.
    """
    kernel = f"evt_{evt.digest}"
    parts = functions(evt, kernel)
    texts = [function.text for function in parts]
    if evt.aux or any(operand.kind == "full" for operand in evt.operands):
        texts.append(_descriptor(config, evt, kernel))
    writer = _Writer(config, evt, kernel)
    tree = writer.graph(parts) if evt.aux else writer.tree(parts[0])
    return CppEpilogue(tree.functor, tree.thread, "\n".join([*texts, *writer.types]))


def _descriptor(config: GemmConfig, evt: Evt, kernel: str) -> str:
    """Return the type with the stages and the tile of operands as large as D."""
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
        leaves = [self._visitor(leaf) for leaf in function.leaves]
        compute = self._compute(function, self._evt.result.element)
        types = ", ".join([compute, *(leaf.functor for leaf in leaves)])
        arguments = ", ".join([*(leaf.thread for leaf in leaves), "{}"])
        return CppEpilogue(f"{FUSION}::Sm90EVT<{types}>", f"{{{arguments}}}")

    def graph(self, parts: tuple[Function, ...]) -> CppEpilogue:
        """Return the visitors of several outputs."""
        needed: dict[Leaf, None] = {}
        for function in parts:
            needed.update(dict.fromkeys(leaf for leaf in function.leaves if leaf[0] != "aux"))
        visitors = [self._visitor(leaf) for leaf in needed]
        edges: list[tuple[int, ...]] = [()] * len(visitors)
        places: dict[Leaf, int] = {leaf: place for place, leaf in enumerate(needed)}
        for place, function in enumerate(parts):
            last = place == len(parts) - 1
            element = self._evt.outputs[place].element if last else "f32"
            visitors.append(CppEpilogue(self._compute(function, element), "{}"))
            edges.append(tuple(places[leaf] for leaf in function.leaves))
            if not last:
                visitors.append(self._store(place))
                edges.append((len(visitors) - 2,))
                places["aux", place] = len(visitors) - 1
        sequences = ", ".join(f"cute::seq<{', '.join(map(str, edge))}>" for edge in edges)
        types = ",\n    ".join(visitor.functor for visitor in visitors)
        functor = f"{FUSION}::Sm90TopologicalVisitor<float, cute::tuple<{sequences}>,\n    {types}>"
        arguments = ",\n       ".join(visitor.thread for visitor in visitors)
        return CppEpilogue(functor, f"{{{arguments}}}")

    def _compute(self, function: Function, element: str) -> str:
        return f"{FUSION}::Sm90Compute<{function.name}, {ELEMENT_TYPES[element]}, float, {ROUND}>"

    def _visitor(self, leaf: Leaf) -> CppEpilogue:
        """Return the visitor of a leaf."""
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
        return broadcast(self._config, operand.kind, element, pointer, batch)

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
    """Return C++ that returns a status if an operand does not have the strides the kernel reads."""
    tests: list[str] = []
    for place, operand in enumerate(evt.operands):
        slot, size = f"call.operands[{place}]", BITS[operand.element] // 8
        if operand.kind in ("source", "full"):
            tests.append(f"check_matrix({slot}, call, {16 // size}, {size})")
        else:
            along = [str(operand.kind == kind).lower() for kind in ("column", "row")]
            tests.append(f"check_vector({slot}, m, n, {', '.join(along)}, {size})")
    lines = [f"if (int32_t status = {test}) return status;" for test in tests]
    for place, output in enumerate(evt.aux, start=len(evt.operands)):
        slot, size = f"call.operands[{place}]", BITS[output.element] // 8
        test = f"check_matrix({slot}, call, {16 // size}, {size})"
        lines.append(f"if (int32_t status = {test}) return status;")
        lines.append(f"if (call.batch > 1 && {slot}.batch == 0) return kStride;")
    return "\n  ".join(lines)
