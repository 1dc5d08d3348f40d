"""Which templates support which product: every size, type and order of the shape list, without a GPU.

    python -m benchmarks.gemm.coverage [--gpu H200 ...] [--out benchmarks/results/coverage.json]

Nothing is lowered: each product is a `Problem` with a named GPU, passed to each registered template.
``cutlass`` and ``triton`` count the products with a candidate of that kind. If the plugin has no
Triton kernel, the reason names Inductor's template for the call (`stock`, which
tests/benchmarks/test_coverage.py compares with real lowerings), and why the plugin's do not apply. Products with neither
a CUTLASS nor a Triton kernel are listed one by one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gemm.products import KINDS, ORDERS, Kind, missing_call, problem
from benchmarks.gemm.shapes import Shape, shapes
from benchmarks.harness.repository import RESULTS
from inductor_plugin.problem import Problem
from inductor_plugin.problem.target import Target, target
from inductor_plugin.registry import Registry, default_registry
from inductor_plugin.template import Candidate

OUT = RESULTS / "coverage.json"
GPUS = ("H200", "A100", "B200")
SCALED_BLAS = "aten/src/ATen/native/cuda/ScaledBlas.cpp"
META = "torch/_meta_registrations.py"


@dataclass(frozen=True)
class Stock:
    """Inductor's Triton template for a product.

    Attributes:
        template: Name of the template; empty if there is none.
        reason: Why there is none.
    """

    template: str
    reason: str = ""

    def __str__(self) -> str:
        """Return it as a sentence."""
        return self.reason or f"Inductor's own Triton template {self.template!r} serves it"


@dataclass(frozen=True)
class Answer:
    """The templates that support a product.

    Attributes:
        counts: Number of candidates of each template that has some.
        reasons: Why each other template of this operator refuses.
        stock: Inductor's template.
        purpose: Why the plugin has no kernels of a side for such products at all, by side.
    """

    counts: dict[str, int]
    reasons: dict[str, str]
    stock: Stock
    purpose: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def cutlass(self) -> bool:
        """Whether there is a CUTLASS candidate."""
        return "cutlass" in self.counts

    @property
    def triton(self) -> bool:
        """Whether the plugin has a Triton candidate."""
        return any(name.startswith("triton") for name in self.counts)

    @property
    def served(self) -> bool:
        """Whether anything besides the library has a kernel."""
        return self.cutlass or self.triton or bool(self.stock.template)

    def why(self, side: str) -> str:
        """Return why there is no candidate of a side, ``cutlass`` or ``triton``."""
        named: dict[str, list[str]] = defaultdict(list)
        for name, text in self.reasons.items():
            if name.startswith(side):
                named[text].append(name)
        reason = "; ".join(f"{', '.join(names)}: {text}" for text, names in named.items())
        reason = self.purpose.get(side, reason)
        return f"{self.stock}; {reason}" if side == "triton" else reason


@dataclass
class Cell:
    """All products of one GPU, type and order.

    Attributes:
        products: Products torch has a call for.
        cutlass: Those with a CUTLASS candidate.
        triton: Those with a Triton candidate of the plugin.
        stock: Those without one, for which Inductor has a Triton template.
        reasons: Number of products without a candidate, by (side, reason).
        neither: Products without a CUTLASS and without a Triton kernel.
        no_call: Number of products for which torch has no call, by reason.
    """

    products: int = 0
    cutlass: int = 0
    triton: int = 0
    stock: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    neither: list[str] = field(default_factory=list[str])
    no_call: Counter[str] = field(default_factory=Counter[str])

    def add(self, shape: Shape, answer: Answer) -> None:
        """Count one product."""
        self.products += 1
        self.cutlass += answer.cutlass
        self.triton += answer.triton
        self.stock += not answer.triton and bool(answer.stock.template)
        for side in ("cutlass", "triton"):
            if not getattr(answer, side):
                self.reasons[side, general(answer.why(side))] += 1
        if not answer.served:
            self.neither.append(f"{shape.label}: {answer.why('cutlass')}; {answer.why('triton')}")


def main() -> int:
    """Query all templates, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", nargs="+", default=list(GPUS))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    started = time.monotonic()
    cells = {name: coverage(target(name)) for name in arguments.gpu}
    report: dict[str, Any] = {"written_by": "benchmarks/gemm/coverage.py", "gpus": {}}
    for name, by_kind in cells.items():
        report["gpus"][name] = {"/".join(key): plain(cell) for key, cell in by_kind.items()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(cells)
    print(f"{time.monotonic() - started:.0f} s. Written to {arguments.out}.")
    return 0


def coverage(
    gpu: Target, chosen: Sequence[Shape] = (), kinds: Iterable[Kind] = KINDS
) -> dict[tuple[str, str], Cell]:
    """Return the answers of all templates for a GPU, by type and order.

    Args:
        gpu: The GPU.
        chosen: The products; all of the shape list by default.
        kinds: The types.
    """
    registry = default_registry()
    cells: dict[tuple[str, str], Cell] = defaultdict(Cell)
    for types in kinds:
        for order in ORDERS:
            for shape in chosen or shapes():
                cell = cells[types.name, order]
                reason = uncallable(shape, types, order, gpu)
                if reason is not None:
                    cell.no_call[reason] += 1
                    continue
                product = problem(shape, types, order, gpu)
                assert isinstance(product, Problem)
                cell.add(shape, answer(registry, product))
    return dict(cells)


def uncallable(shape: Shape, types: Kind, order: str, gpu: Target) -> str | None:
    """Return why torch has no such call on a GPU, None if it has one."""
    if types.scale != "none" and gpu.capability < (8, 9):
        return f"fp8 needs compute capability 8.9, {gpu.name} has no fp8 tensor cores"
    if types.scale == "blockwise" and gpu.capability[0] != 9:
        return f"torch._scaled_mm takes block-wise scales on Hopper alone ({SCALED_BLAS})"
    if types.scale != "none" and order != "tn":
        return f"torch._scaled_mm wants A by rows and B by columns, in a graph on any GPU ({META})"
    reason = missing_call(shape, types)
    if reason is None and shape.layer.groups and order[0] == "n" and shape.m % 8:
        return f"torch._grouped_mm wants strides of 16 bytes, A by columns has one of M ({META})"
    return reason


def answer(registry: Registry, product: Problem) -> Answer:
    """Return the templates that support a product, and why the others do not."""
    counts: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for template in registry.for_op(product.op):
        reason = template.reject(product)
        refusals = (
            []
            if reason
            else [able(candidate, product) for candidate in template.candidates(product)]
        )
        count = refusals.count("")
        if count:
            counts[template.name] = count
        else:
            no_reason = "it has no candidate, though it does not refuse"
            reasons[template.name] = reason or next(iter(refusals), no_reason)
    return Answer(counts, reasons, stock(product), purpose(product))


def able(candidate: Candidate, product: Problem) -> str:
    """Return why a GPU cannot run a candidate, empty if it can; lowering checks the same."""
    need = getattr(candidate.kernel, "capability", (0, 0))
    if product.target is None or product.target.capability >= need:
        return ""
    return f"it needs compute capability {need[0]}.{need[1]}, {product.target.name} has less"


def stock(product: Problem) -> Stock:
    """Return Inductor's own Triton template for a product with its default options (torch 2.11-2.15).

    Those for ``mm``, ``addmm``, ``int_mm`` and ``scaled_mm`` are in torch/_inductor/kernel/mm.py, that
    for ``grouped_mm`` in mm_grouped.py.
    """
    if product.op == "grouped_mm":
        if product.target is not None and product.target.capability < (9, 0):
            return Stock("", "Inductor's own Triton template 'grouped_mm' is for Hopper and newer")
        return Stock("grouped_mm")
    if product.op == "scaled_mm" and is_blockwise(product):
        option = "triton.enable_persistent_tma_matmul"
        return Stock(
            "", f"Inductor's own template for block-wise scales needs {option}, off by default"
        )
    return Stock("mm")


def purpose(product: Problem) -> dict[str, str]:
    """Return why the plugin has no kernels of a side for such products, by side."""
    if product.op == "grouped_mm":
        return {
            "triton": "ours are not for groups: Inductor's is persistent and loads by TMA already"
        }
    if product.op == "int_mm":
        return {"triton": "ours are for floats and int4 weights: Inductor's has tiles for int8"}
    if product.op in ("mm", "addmm") and product.output.dtype == "float32":
        kinds = "16-bit and 8-bit floats and int4 weights"
        return {"triton": f"ours are for {kinds}, this is float32 (TF32)"}
    if product.op == "scaled_mm" and is_blockwise(product):
        return {
            "cutlass": "ours scale the whole sum, by matrix or by row and column, not each block"
        }
    if product.op == "scaled_mm" and product.inputs[2].size == product.inputs[3].size == (1, 1):
        return {"triton": "ours are for scales of rows and blocks, this has one for each matrix"}
    return {}


def is_blockwise(product: Problem) -> bool:
    """Return whether a scaled product has several scales along K."""
    return product.inputs[2].size[1] > 1


def general(reason: str) -> str:
    """Return a reason with numbers replaced, so that equal reasons of different products are counted together."""
    return re.sub(r"(?<![\w.])\d[\dx.]*(?!\w|-bit)", "N", reason)


def plain(cell: Cell) -> dict[str, Any]:
    """Return a cell as JSON values."""
    return {
        "products": cell.products,
        "cutlass": cell.cutlass,
        "triton": cell.triton,
        "inductors_triton": cell.stock,
        "neither": cell.neither,
        "reasons": [
            {"side": side, "reason": reason, "products": count}
            for (side, reason), count in cell.reasons.most_common()
        ],
        "no_call": [{"reason": why, "products": n} for why, n in cell.no_call.most_common()],
    }


def show(cells: dict[str, dict[tuple[str, str], Cell]]) -> None:
    """Print the counts, then the reasons, then the products without a kernel."""
    rich_table: Any = importlib.import_module("rich.table")
    console: Any = importlib.import_module("rich.console").Console(width=150)
    for gpu, by_kind in cells.items():
        table = rich_table.Table(title=f"{gpu}: products with a candidate", title_justify="left")
        for column in ("types", "order", "products", "CUTLASS", "Triton", "Inductor's", "neither"):
            table.add_column(column, justify="left" if column in ("types", "order") else "right")
        for (types, order), cell in by_kind.items():
            figures = (cell.products, cell.cutlass, cell.triton, cell.stock, len(cell.neither))
            table.add_row(types, order, *map(str, figures))
        console.print(table)
        for side, rows in grouped(by_kind).items():
            table = rich_table.Table(title=f"{gpu}: why no {side}", title_justify="left")
            table.add_column("products", justify="right")
            table.add_column("types/order")
            table.add_column("reason", overflow="fold")
            for reason, (count, where) in rows.items():
                table.add_row(str(count), where, reason)
            console.print(table)
    lost: dict[str, list[str]] = defaultdict(list)
    for gpu, by_kind in cells.items():
        for key, cell in by_kind.items():
            for product_reason in cell.neither:
                product, _, reason = product_reason.partition(": ")
                lost[f"{gpu}: {general(reason)}"].append(f"{product} {'/'.join(key)}")
    count = sum(map(len, lost.values()))
    print(f"{count} products have neither a CUTLASS nor a Triton kernel.")
    for reason, products in lost.items():
        print(f"  {len(products)} on {reason}: {products[0]} ... {products[-1]}")


def grouped(by_kind: dict[tuple[str, str], Cell]) -> dict[str, dict[str, tuple[int, str]]]:
    """Return (products, types and orders) of each reason, the most frequent first, by side."""
    counts: dict[str, Counter[str]] = {"CUTLASS": Counter(), "Triton of ours": Counter()}
    counts["such call in torch"] = Counter()
    places: dict[str, dict[str, None]] = defaultdict(dict)
    for (types, order), cell in by_kind.items():
        named = {"cutlass": "CUTLASS", "triton": "Triton of ours"}
        counted = [(named[side], text, n) for (side, text), n in cell.reasons.items()]
        counted += [("such call in torch", text, n) for text, n in cell.no_call.items()]
        for side, text, n in counted:
            counts[side][text] += n
            places[text][f"{types}/{order}"] = None
    return {
        side: {text: (n, " ".join(places[text])) for text, n in counter.most_common()}
        for side, counter in counts.items()
    }


if __name__ == "__main__":
    sys.exit(main())
