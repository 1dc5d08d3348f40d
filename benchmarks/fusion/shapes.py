"""Products and epilogues of models that the benchmark of fusion measures.

Y = epilogue(A[m, k] @ W[n, k].T, ...). Sizes are from the sources in `benchmarks.gemm.shapes` and, for BERT,
https://huggingface.co/google-bert/bert-base-uncased/blob/main/config.json (and bert-large-uncased).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

MOST_E4M3 = 448.0
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class EpilogueSpec:
    """An epilogue with its product.

    Attributes:
        function: Takes A, W and operands.
        operands: How each is broadcast to the result: ``row``, ``full`` or ``scalar`` (float32, a scale).
        dtype: Dtype of the result.
        accepted: Largest accepted error: root mean square, relative. bfloat16 rounds by 0.002; a
            product rounded before a cast moves one value in about 60 to the next e4m3.
    """

    function: Function
    operands: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16
    accepted: float = 0.01


def _fp8(a: Any, w: Any, scale: Any) -> torch.Tensor:
    scaled = (torch.mm(a, w.t()).float() * scale).clamp(-MOST_E4M3, MOST_E4M3)
    return scaled.to(torch.float8_e4m3fn)


EPILOGUES: Mapping[str, EpilogueSpec] = {
    "bias gelu": EpilogueSpec(
        lambda a, w, c: functional.gelu(functional.linear(a, w, c)), ("row",)
    ),
    "bias residual": EpilogueSpec(
        lambda a, w, c, r: functional.linear(a, w, c) + r, ("row", "full")
    ),
    "silu gate": EpilogueSpec(lambda a, w, g: functional.silu(torch.mm(a, w.t())) * g, ("full",)),
    "residual": EpilogueSpec(lambda a, w, r: torch.relu(torch.mm(a, w.t())) + r, ("full",)),
    "relu": EpilogueSpec(lambda a, w: torch.relu(torch.mm(a, w.t()))),
    "fp8": EpilogueSpec(_fp8, ("scalar",), torch.float8_e4m3fn, 0.03),
}
"""By name. A residual alone would be an ``addmm``, which needs no epilogue."""

_LAYERS: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    "llama3-8b gate": (14336, 4096, ("silu gate", "fp8", "relu")),
    "bert-base fc1": (3072, 768, ("bias gelu", "relu", "fp8")),
    "llama3-8b o": (4096, 4096, ("residual", "fp8")),
    "bert-base fc2": (768, 3072, ("bias residual",)),
    "bert-large fc1": (4096, 1024, ("bias gelu",)),
    "llama3-8b down": (4096, 14336, ("residual", "fp8")),
}
"""n, k and epilogues of each layer, the most informative first."""
ROWS = (4096, 256, 64)
"""Tokens of a step: 8 x 512 of BERT or a prefill; a batch; decoding."""


@dataclass(frozen=True)
class Fused:
    """One product and its epilogue.

    Attributes:
        layer: Model and layer.
        m: Rows.
        n: Columns of the result.
        k: The dimension that is summed.
        epilogue: A key of `EPILOGUES`.
    """

    layer: str
    m: int
    n: int
    k: int
    epilogue: str

    @property
    def name(self) -> str:
        """Its name in tables: ``bert-base fc1 m4096 bias gelu``."""
        return f"{self.layer} m{self.m} {self.epilogue}"

    @property
    def spec(self) -> EpilogueSpec:
        """The epilogue of the product."""
        return EPILOGUES[self.epilogue]

    def tensors(self, device: str, most: int = 0) -> list[torch.Tensor]:
        """Return A, W and operands, with the same values in each process.

        Args:
            device: Device of the tensors.
            most: Largest extent; 0 for no limit.
        """
        m, n, k = (min(size, most) if most else size for size in (self.m, self.n, self.k))
        generator = torch.Generator(device=device).manual_seed(0)

        def drawn(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator, device=device).to(torch.bfloat16)

        def operand(kind: str) -> torch.Tensor:
            if kind == "scalar":
                return torch.tensor(20.0, device=device)
            return drawn(m, n) if kind == "full" else drawn(n)

        factors = [drawn(m, k), drawn(n, k) / k**0.5]
        return [*factors, *(operand(kind) for kind in self.spec.operands)]


def fused_products() -> tuple[Fused, ...]:
    """Return all products in order of information: an epilogue of each layer, the others, fewer rows."""
    depth = max(len(names) for _, _, names in _LAYERS.values())
    return tuple(
        Fused(layer, m, n, k, names[turn])
        for m in ROWS
        for turn in range(depth)
        for layer, (n, k, names) in _LAYERS.items()
        if turn < len(names)
    )
