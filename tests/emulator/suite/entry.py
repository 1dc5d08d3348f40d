"""All cases of all families in one form: what runs each of them, and where."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels import attention, build, fused, gemm
from tests.emulator.machine.schedule import ALL, Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite import heads, products, trees
from tests.emulator.suite.row import Verdict

RANDOM = Schedule(late=True, ahead="random", seed=5)
SCHEDULES = (*ALL, RANDOM)
"""Those that every CUTLASS kernel runs in."""


@dataclass(frozen=True)
class Entry:
    """A case of a kernel.

    Attributes:
        family: The family of kernels.
        name: Name of the case, unique.
        config: The kernel; its library is built before its cases run.
        gpu: Name of the GPU.
        run: Runs it in a schedule.
        schedules: Those it runs in.
    """

    family: str
    name: str
    config: GemmConfig | FmhaConfig
    gpu: str
    run: Callable[[Runtime, Schedule], Verdict]
    schedules: tuple[Schedule, ...] = SCHEDULES

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.config.name

    @property
    def source(self) -> str:
        """Digest of the kernel's source."""
        return hashlib.sha256(build.text_of(self.config).encode()).hexdigest()[:16]


def _product(name: str, product: products.Product) -> Entry:
    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        outcome = gemm.run(runtime, product.case, target(product.gpu), schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    return Entry(name.split()[0], name, product.case.config, product.gpu, run)


def _tree(name: str, tree: trees.Tree) -> Entry:
    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        outcome = fused.run(runtime, tree.case, target(tree.gpu), schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    return Entry("tree", name, tree.case.config, tree.gpu, run)


def _attention(name: str, case: attention.Case) -> Entry:
    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        outcome = attention.run(runtime, case, target("H100"), schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    return Entry("fmha", name, case.config, "H100", run)


def cutlass() -> dict[str, Entry]:
    """Return the cases of all CUTLASS kernels by name."""
    entries = [
        *(_product(name, product) for name, product in products.CASES.items()),
        *(_tree(name, tree) for name, tree in trees.CASES.items()),
        *(_attention(name, case) for name, case in heads.CASES.items()),
    ]
    return {entry.name: entry for entry in entries}
