"""What the Triton templates of matrix products share: they differ in the products they read and their tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import Contract
from inductor_plugin.template import Candidate, TritonSource
from inductor_plugin.templates.triton.order import TritonTile
from inductor_plugin.templates.triton.product import CONTRACT, OPS, Product, product_of, text_of

AnyProduct = TypeVar("AnyProduct")


class TileTemplate(ABC, Generic[AnyProduct]):
    """Triton kernels that compute a product by tiles.

    Attributes:
        name: As in `Template`.
        ops: As in `Template`.
        contracts: What its kernels require of their operands' layouts, by role.
    """

    backend = "TRITON"
    name: str
    ops: tuple[str, ...]
    contracts: Mapping[str, Contract]

    @abstractmethod
    def read(self, problem: Problem) -> AnyProduct | str:
        """Return the product of a problem, or why there is none for these kernels."""

    def why_not(self, product: AnyProduct, problem: Problem) -> str | None:  # noqa: ARG002
        """Return why no kernel is offered for a product, or None."""
        return None

    @abstractmethod
    def kernels(self, product: AnyProduct, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try for a product, the most promising first."""

    def contract(self, op: str) -> Mapping[str, Contract]:
        """Return what kernels of an operator require of its operands' layouts."""
        return self.contracts if op in self.ops else {}

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        product = self.read(problem)
        return product if isinstance(product, str) else self.why_not(product, problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first."""
        product = self.read(problem)
        return () if isinstance(product, str) else self.kernels(product, problem)


class ProductTemplate(TileTemplate[Product]):
    """Triton kernels for a `Product`, alone or in a batch."""

    ops = OPS
    contracts = CONTRACT

    def read(self, problem: Problem) -> Product | str:
        """Return the product of a problem, or why there is none for Triton."""
        return product_of(problem)


def blocks(tile: TritonTile) -> dict[str, bool | int | str]:
    """Return the extents of a tile as constants of a kernel."""
    return {"BLOCK_M": tile.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k}


def tile_candidate(
    module: str,
    tile: TritonTile,
    constants: Mapping[str, bool | int | str],
    *,
    name: str,
    description: str,
    **source: Any,
) -> Candidate:
    """Return the kernel of a template's module (its ``__file__``) that computes a product by a tile.

    Args:
        module: The template is called ``triton_`` and this file's stem, its kernel by the stem.
        tile: The tile.
        constants: The kernel's constants.
        name: As in `Candidate`.
        description: As in `Candidate`.
        source: Other fields of `TritonSource`.
    """
    stem = Path(module).stem
    # STAGES is the same number as a constant, in kernels whose loop states it.
    stages = {} if "STAGES" in constants else {"num_stages": tile.stages}
    return Candidate(
        template=f"triton_{stem}",
        name=name,
        config={**constants, **stages, "num_warps": tile.warps},
        kernel=TritonSource(
            name=stem,
            text=text_of(module),
            constants=tuple(constants.items()),
            num_stages=tile.stages,
            num_warps=tile.warps,
            **source,
        ),
        description=description,
    )
