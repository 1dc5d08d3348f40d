"""What a kernel with visitors is handed, and how much of an epilogue it takes, piece by piece."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.fusion import visitors, visitors_split
from inductor_plugin.inductor.fusion.offers import StridedRead
from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.problem.epilogue import Access

M, N = 4, 8
FULL = TensorSpec((M, N), (N, 1), "float32", "cuda:0")
NARROW = TensorSpec((M, N), (N, 1), "bfloat16", "cuda:0")


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes are known."""
    monkeypatch.setattr(compat, "hints", lambda sizes: tuple(sizes))


class SizedNode:
    """A tensor of a graph."""

    def __init__(self, name: str, size: Sequence[int], stride: Sequence[Any], offset: Any = 0):
        self._name, self._size, self._stride = name, [*size], [*stride]
        self._layout = SimpleNamespace(offset=offset)

    def get_name(self) -> str:
        return self._name

    def get_size(self) -> list[int]:
        return self._size

    def get_stride(self) -> list[Any]:
        return self._stride

    def get_layout(self) -> Any:
        return self._layout


PRODUCT, FACTORS = SizedNode("mm", (M, N), (N, 1)), ("a", "b")


def fusion_of(*nodes: Any, product: Any = PRODUCT, first: int = 1) -> Any:
    group = SimpleNamespace(get_nodes=lambda: ["node"] * first)
    return SimpleNamespace(product=product, call=SimpleNamespace(nodes=nodes), first=group)


@pytest.mark.parametrize(
    ("size", "stride", "read"),
    [
        ((N,), (1,), StridedRead("bias", (1, N), (1, N), (0, 1), 3)),
        ((1, N), (N, 1), StridedRead("bias", (1, N), (1, N), (0, 1), 3)),
        ((M, 1), (2, 1), StridedRead("bias", (M, 1), (M, 1), (2, 0), 3)),
        ((M, N), (1, M), StridedRead("bias", (M, N), (M, N), (1, M), 3)),
    ],
)
def test_the_products_own_bias_is_broadcast_to_it(
    size: tuple[int, ...], stride: tuple[int, ...], read: StridedRead
) -> None:
    bias = SizedNode("bias", size, stride, 3)
    assert visitors._bias(fusion_of(bias, *FACTORS), bias) == read


def test_what_an_epilogue_reads_is_handed_over_once_where_it_is_broadcast() -> None:
    access = Access("column", "float32", M, (1, 0), 5, "gate")
    read = StridedRead("gate", (M, 1), (M, 1), (1, 0), 5)
    assert visitors._read(fusion_of(*FACTORS), access) == read


@pytest.mark.parametrize("readers", [0, 1])
def test_what_is_written_besides_the_last_result_has_its_buffer(
    monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    """A write without a name is the sum of an addmm that others read."""
    monkeypatch.setattr(visitors.ir.InputsKernel, "unwrap_storage_for_input", lambda node: node)
    writes = [Access("full", "float32", M * N, (N, 1), 0, name) for name in ("kept", "", "out")]
    bias = Access("row", "float32", N, (0, 1), 0, "bias")
    gate = Access("full", "float32", M * N, (N, 1), 0, "gate")
    epilogue: Any = SimpleNamespace(reads=[bias, gate], writes=writes, readers=readers)
    added, a, b = (
        SizedNode("c", (N,), (1,)),
        SizedNode("a", (M, 2), (2, 1)),
        SizedNode("b", (2, N), (N, 1)),
    )
    untyped: Any = None
    kernel = visitors._kernel(fusion_of(added, a, b), untyped, untyped, epilogue, untyped, untyped)
    assert kernel.factors == (a, b)
    assert [read.source for read in kernel.reads] == ["c", "gate"]
    assert kernel.aux == ("kept", "mm", *(["mm"] if readers else []))
    assert kernel.out == "out"
    alone = visitors._kernel(fusion_of(a, b), untyped, untyped, epilogue, untyped, untyped)
    assert alone.factors == (a, b)
    # Without an own bias it is a buffer that happens to be called so.
    assert [read.source for read in alone.reads] == ["bias", "gate"]


def test_buffers_that_nobody_writes_stay_in_registers() -> None:
    split: Any = SimpleNamespace(written=("mm", "sum", "kept", "out"))
    untyped: Any = None
    kernel = visitors.VisitorKernel(
        untyped, split, OpKernel("a::b.out"), untyped, ("a", "b"), (), ("kept",), "out"
    )
    assert kernel.kept_in_registers == ("mm", "sum")


@pytest.mark.parametrize(
    ("cpp", "aot", "first", "refused"),
    [
        (False, False, 1, False),
        (True, False, 1, True),
        (False, True, 1, True),
        (False, False, 2, True),
    ],
)
def test_a_call_is_written_in_python_for_a_product_alone(
    monkeypatch: pytest.MonkeyPatch, first: int, *, cpp: bool, aot: bool, refused: bool
) -> None:
    graph = SimpleNamespace(graph=SimpleNamespace(cpp_wrapper=cpp, aot_mode=aot))
    monkeypatch.setattr(visitors, "V", graph)
    reason = visitors._why_no_call(fusion_of(*FACTORS, first=first))
    assert (reason is not None) is refused


class Unknown(int):
    """A stride that is known at run time."""

    free_symbols = frozenset({"s0"})


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        ({}, ""),
        ({"view": "other"}, "through a view"),
        ({"read": True}, "only at run time"),
        ({"written": True}, "only at run time"),
        ({"stride": Unknown(N)}, "only at run time"),
        ({"offset": Unknown(1)}, "only at run time"),
    ],
)
def test_reads_are_arguments_of_a_call_where_their_places_are_known(
    facts: dict[str, Any], refused: str
) -> None:
    dynamic = lambda name: [SimpleNamespace(dynamic=facts.get(name, False))]  # noqa: E731
    epilogue: Any = SimpleNamespace(
        product=facts.get("view", "full"), reads=dynamic("read"), writes=dynamic("written")
    )
    bias = SizedNode("bias", (N,), (1,), facts.get("offset", 0))
    product = SizedNode("mm", (M, N), (facts.get("stride", N), 1))
    unread = SizedNode("a", (M, 2), (Unknown(2), 1)), SizedNode("b", (2, N), (Unknown(N), 1))
    fusion = fusion_of(bias, *unread, product=product)
    assert refused in (visitors._why_unreadable(fusion, epilogue) or "")
    assert bool(visitors._why_unreadable(fusion, epilogue)) is bool(refused)


class CutNode:
    """A node behind a product that reads buffers and writes one."""

    def __init__(self, name: str, *reads: str) -> None:
        self.name, self.ancestors = name, frozenset[str]()
        self.read_writes = SimpleNamespace(reads=[SimpleNamespace(name=read) for read in reads])

    def get_name(self) -> str:
        return f"op of {self.name}"

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(get_name=lambda: self.name)]


def cut(nodes: Sequence[CutNode], taken: Sequence[CutNode], **facts: Any) -> Any:
    """Return the split of a product's epilogue of which a kernel computes some nodes."""
    written = {"mm": facts.get("product", FULL), **{node.name: FULL for node in nodes}}
    written |= facts.get("tensors", {})
    stored = [SimpleNamespace(buffer=name) for name in facts.get("stored", ())]
    part_reads = [SimpleNamespace(buffer=name, bytes=size) for name, size in facts.get("reads", ())]

    def epilogue_with(some: Sequence[CutNode]) -> Any:
        return SimpleNamespace(nodes=list(some), reads=part_reads)

    whole = SimpleNamespace(nodes=list(nodes), writes=stored, readers=facts.get("readers", 0))
    fusion: Any = SimpleNamespace(
        epilogue=whole,
        epilogue_with=epilogue_with,
        written=written,
        second=SimpleNamespace(get_nodes=lambda: nodes),
        product=SimpleNamespace(get_name=lambda: "mm"),
    )

    def why_not(epilogue: Any) -> str | None:
        return None if set(epilogue.nodes) <= set(taken) else "no visitor computes it"

    return visitors_split.split_of(fusion, why_not)


ADD, SIN, COS = CutNode("add", "mm", "bias"), CutNode("sin", "add", "gate"), CutNode("cos", "add")


def test_an_epilogue_that_a_kernel_computes_is_not_split() -> None:
    split = cut([ADD, SIN], [ADD, SIN])
    assert (split.written, split.remainder, split.reason) == (("mm", "add", "sin"), (), "")


def test_the_rest_of_an_epilogue_runs_behind_the_kernel() -> None:
    """The sum is read by the rest and stored anyway: the product's way through memory is saved."""
    split = cut([ADD, SIN, COS], [ADD, COS], stored=["add", "sin", "cos"])
    assert split.written == ("mm", "add", "cos")
    assert (split.remainder, split.places) == ((SIN,), (1,))
    assert split.epilogue.nodes == [ADD, COS]
    assert split.reason == "split off sin: no visitor computes it"


def test_without_any_node_there_is_no_kernel() -> None:
    assert cut([SIN], []) == "no visitor computes it"


MULTIPLIED = M * N * 4


@pytest.mark.parametrize(
    ("facts", "saved"),
    [
        # The product is written and read; now the sum is only read.
        ({"stored": ["add"]}, True),
        # The sum is written and read instead of the product.
        ({}, False),
        # It is narrower than the product.
        ({"tensors": {"add": NARROW}}, True),
        # The product is written for others, too: only its read is saved.
        ({"stored": ["add"], "readers": 1}, False),
        # The rest reads again what the kernel reads.
        ({"stored": ["add"], "reads": [("gate", MULTIPLIED)]}, False),
        ({"stored": ["add"], "reads": [("bias", MULTIPLIED)]}, True),
    ],
)
def test_an_epilogue_is_split_where_fewer_bytes_are_moved(
    facts: dict[str, Any], *, saved: bool
) -> None:
    split = cut([ADD, SIN], [ADD], **facts)
    assert isinstance(split, str) is not saved
    assert saved or split.endswith("as many bytes are moved as by two kernels")
