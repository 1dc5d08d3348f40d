"""The kernels whose instructions are taken out and bent: one of each family, in a case that uses all it has again.

A stage that is filled once, or a buffer of the epilogue in a block's only tile, has nothing to wait for: without its empty barrier
the kernel is right on every GPU. So CUTLASS's kernels have two stages, K takes more steps than a kernel has stages, and few
multiprocessors leave several tiles for each block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from inductor_plugin.problem.target import Target, target
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels import attention, fused, gemm
from tests.emulator.machine.schedule import Schedule
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.cases import configs, heads
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.row import Verdict

_SM90, _COOPERATIVE, _SM100, _TWO_SM = (
    replace(config, stages=2)
    for config in (configs.SM90, configs.COOPERATIVE, configs.SM100, configs.TWO_SM)
)
_FP8 = replace(
    _SM90, tile=(64, 64, 128), a="e4m3", b="e4m3", align_a=16, align_b=16, scale="rowwise"
)
_K = 328
"""Six steps of 64, the last of which ends early."""


@dataclass(frozen=True)
class Gemm:
    """A product, with an epilogue of visitors or without.

    Attributes:
        case: The kernel and its operands.
        gpu: Name of the GPU.
        blocks: Blocks that run: each begins with a tile and goes on with those that are left.
    """

    case: gemm.Case | fused.Case
    gpu: str
    blocks: int

    @property
    def target(self) -> Target:
        """The GPU; one of ``blocks`` multiprocessors where the case does not say their number."""
        gpu = target(self.gpu)
        alone = isinstance(self.case, fused.Case)
        return replace(gpu, multiprocessors=self.blocks) if alone else gpu


def _few(config: GemmConfig, m: int, n: int, blocks: int, **facts: object) -> Gemm:
    """Return a product of Hopper's on few multiprocessors."""
    case = replace(gemm.Case(config, m, n, _K, multiprocessors=blocks), **facts)  # pyright: ignore[reportArgumentType]
    return Gemm(case, "H100", blocks)


_STARTED = 4
"""Blocks of sm_100 that run: two clusters, which take over the tiles of all others (`runtime.launch`)."""
GEMMS: dict[str, Gemm] = {
    "sm80": Gemm(gemm.Case(replace(configs.SM80, layout_a="column"), 72, 136, 200), "A100", 6),
    "sm90 pingpong": _few(
        replace(_SM90, tile=(64, 128, 64), bias="full"), 65, 200, 1, alpha=0.5, beta=2.0
    ),
    "sm90 cooperative": _few(replace(_COOPERATIVE, bias="column"), 129, 72, 1, alpha=0.5, beta=2.0),
    "sm90 clusters": _few(replace(_COOPERATIVE, cluster=(1, 2, 1)), 129, 200, 2),
    "sm90 full bias": _few(
        replace(_COOPERATIVE, bias="full"), 129, 72, 2, batch=2, pad=8, beta=-1.0
    ),
    "sm90 stream-K": _few(replace(_COOPERATIVE, schedule="stream_k"), 100, 72, 4, k=776, split=3),
    "sm90 fp8": _few(replace(_FP8, bias="row"), 65, 72, 1, k=656),
    "sm90 grouped": _few(replace(_SM90, grouped=True), 201, 72, 1, batch=3, ends=(3, 70, 201)),
    "tree": Gemm(fused.Case(_SM90, "gate_two", 67, 80, _K), "H100", 1),
    "tree Blackwell": Gemm(fused.Case(_SM100, "residual", 131, 80, _K), "B200", 2),
    "sm100": Gemm(
        gemm.Case(replace(_SM100, bias="full"), 131, 72, _K, batch=2, pad=8, beta=-1.0), "B200", 2
    ),
    "sm100 two SMs": Gemm(
        gemm.Case(replace(_TWO_SM, bias="column"), 259, 72, _K, alpha=0.5, beta=2.0),
        "B200",
        _STARTED,
    ),
}
"""Products by family."""
HEADS: dict[str, attention.Case] = {
    "fmha forward": replace(
        heads.CASES["fmha window, bottom right, more keys"], keys=650, left=500
    ),
    "fmha pingpong": heads.CASES["fmha pingpong"],
    "fmha 8 bits": replace(heads.CASES["fmha 8 bits, heads of 64"], keys=1100),
    "fmha backward": replace(heads.CASES["fmha backward, causal, more keys"], queries=330),
}
"""Attentions by family: tiles of K and V for each stage three times; in the backward, more tiles of Q than stages."""
TRITON = {
    "triton Ampere": "triton split_k, a few rows, sm_80",
    "triton TMA": "triton persistent_tma, a batch, odd sizes, multiprocessors: 2, sm_90a",
    "triton Blackwell": "triton persistent_tma, a batch, odd sizes, multiprocessors: 2, sm_100a",
    "triton attention": "triton attention, layouts 2, sm_90a",
    "triton gradient": "triton attention_backward, layouts, sm_90a",
    "triton attention decode": "triton attention_decode, decode in parts, sm_90a",
    "triton decode": "triton decode, one row, odd sizes, sm_80",
    "triton fp8": "triton fp8, rows and columns, a long sum, sm_90a",
    "triton int4": "triton int4, eight inner tiles, sm_80",
}
"""Cases of the suite by family."""
FAMILIES = (*GEMMS, *HEADS, *TRITON)


class _Outcome(Protocol):
    """What calls of all kinds of kernels return."""

    @property
    def share(self) -> float: ...

    @property
    def changed(self) -> int: ...

    @property
    def launches(self) -> list[Launch]: ...


_Case = TypeVar("_Case", gemm.Case, fused.Case, attention.Case)


def _entry(
    family: str,
    case: _Case,
    gpu: Target,
    run: Callable[[Runtime, _Case, Target, Schedule], _Outcome],
    config: Callable[[], GemmConfig | FmhaConfig],
) -> Entry:
    def verdict(runtime: Runtime, schedule: Schedule) -> Verdict:
        outcome = run(runtime, case, gpu, schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    facts = f"{case}, {gpu}"
    return Entry(family.split()[0], family, gpu.name, verdict, config, operands=facts)


def _of_gemm(family: str, product: Gemm) -> Entry:
    case = product.case
    if isinstance(case, fused.Case):
        return _entry(family, case, product.target, fused.run, lambda: case.config)
    return _entry(family, case, product.target, gemm.run, lambda: case.config)


def representatives() -> dict[str, Entry]:
    """Return the case of each family; a kernel of a product or an attention is named as its family is."""
    suite = entries()
    return {
        **{family: _of_gemm(family, product) for family, product in GEMMS.items()},
        **{
            family: _entry(
                family, case, target("H100"), attention.run, lambda case=case: case.config
            )
            for family, case in HEADS.items()
        },
        **{family: suite[name] for family, name in TRITON.items()},
    }
