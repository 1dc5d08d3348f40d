"""All cases of all families in one form: what runs each of them, and where."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.config import GemmConfig
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels import attention, build, fused, gemm
from tests.emulator.machine.schedule import ALL, WATCHED, Schedule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.cases import configs, heads, products, templates, trees
from tests.emulator.suite.row import Verdict
from tests.support.repository import REPOSITORY

SCHEDULES = (WATCHED, *ALL, *templates.RANDOM)
"""Those that every CUTLASS kernel runs in."""
_ARRIVE = "barrier.cluster.arrive.relaxed.aligned;"
_STORES = re.compile(r"(?:.*: )?\d+ bulk store operations of [^:]*")


@dataclass(frozen=True)
class Entry:
    """A case of a kernel.

    Attributes:
        family: The family of kernels.
        name: Name of the case, unique.
        gpu: Name of the GPU.
        run: Runs it in a schedule.
        make: Returns the kernel, if it is compiled by nvcc; that of an epilogue is lowered first.
        template: Name of the Triton template, else.
        schedules: Those it runs in.
        operands: What a kernel compiled by nvcc is called with, if what is recorded of it is stale with other operands.
    """

    family: str
    name: str
    gpu: str
    run: Callable[[Runtime, Schedule], Verdict]
    make: Callable[[], GemmConfig | FmhaConfig] | None = None
    template: str = ""
    schedules: tuple[Schedule, ...] = SCHEDULES
    operands: str = ""

    @functools.cached_property
    def config(self) -> GemmConfig | FmhaConfig | None:
        """The kernel, if it is compiled by nvcc: its library is built before its cases run."""
        return self.make() if self.make is not None else None

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.template if self.config is None else self.config.name

    @property
    def leaves_stores(self) -> bool:
        """Whether its kernel ends without waiting for its last TMA stores, as CUTLASS's products for sm_100 do (README.md)."""
        return isinstance(self.config, GemmConfig) and self.config.arch == "sm_100a"

    def undone(self, verdict: Verdict) -> list[str]:
        """Return what its launches have left undone, in lines, without the stores that are known (`leaves_stores`)."""
        lines = [line for launch in verdict.launches for line in launch.unfinished]
        return [line for line in lines if not (self.leaves_stores and is_of_stores(line))]

    @functools.cached_property
    def source(self) -> str:
        """Digest of the kernel's source, or of what generates it, and of its operands if they count."""
        text = build.text_of(self.config) if self.config else _text_of(self.template)
        return hashlib.sha256((text + self.operands).encode()).hexdigest()[:16]


def is_of_stores(line: str) -> bool:
    """Return whether a line of `Launch.unfinished` is of bulk stores (`memory.pending`)."""
    return _STORES.fullmatch(line) is not None


def _text_of(name: str) -> str:
    """Return the text of a Triton template: what is filled in, and the modules that say with what."""
    kind = name.removeprefix("triton_")
    attention = kind.startswith("attention")
    folder = REPOSITORY / "templates" / ("triton_attention" if attention else "triton")
    kind = kind.removeprefix("attention").removeprefix("_") or "forward"
    own = folder / f"{kind}.jinja"
    others = {path.stem for path in folder.glob("*.jinja")} - {kind}
    modules = [path for path in sorted(folder.glob("*.py")) if path.stem not in others]
    return "\n".join(path.read_text(encoding="utf-8") for path in (own, *modules))


def with_fence(text: str) -> str:
    """Return PTX with the fence that CUTLASS lacks where all four blocks of a cluster have begun their mbarriers.

    Of docs/upstream/sm100_mbarrier_fence.md; the watched schedule refuses the kernel without.
    """
    return text.replace(_ARRIVE, f"fence.mbarrier_init.release.cluster; {_ARRIVE}")


def _product(name: str, product: configs.Product) -> Entry:
    lacks_fence = product.case.config.cluster == (2, 2, 1) and product.case.config.arch == "sm_100a"

    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        with runtime.edited(with_fence) if lacks_fence else contextlib.nullcontext():
            outcome = gemm.run(runtime, product.case, target(product.gpu), schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    return Entry(name.split()[0], name, product.gpu, run, lambda: product.case.config)


def _tree(name: str, tree: trees.Tree) -> Entry:
    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        outcome = fused.run(runtime, tree.case, target(tree.gpu), schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    return Entry("tree", name, tree.gpu, run, lambda: tree.case.config)


def _attention(name: str, case: attention.Case) -> Entry:
    def run(runtime: Runtime, schedule: Schedule) -> Verdict:
        outcome = attention.run(runtime, case, target("H100"), schedule)
        return Verdict(outcome.share, outcome.changed, outcome.launches)

    return Entry("fmha", name, "H100", run, lambda: case.config)


def _compiled(name: str, case: templates.Compiled) -> Entry:
    def run(_runtime: Runtime, schedule: Schedule) -> Verdict:
        return case.run(schedule)

    schedules = templates.SCHEDULES
    return Entry("triton", name, case.gpu, run, template=case.template, schedules=schedules)


def entries() -> dict[str, Entry]:
    """Return the cases of all kernels by name."""
    triton = (_compiled(name, case) for name, case in templates.CASES.items())
    return {**cutlass(), **{entry.name: entry for entry in triton}}


def cutlass() -> dict[str, Entry]:
    """Return the cases of all CUTLASS kernels by name."""
    entries = [
        *(_product(name, product) for name, product in products.CASES.items()),
        *(_tree(name, tree) for name, tree in trees.CASES.items()),
        *(_attention(name, case) for name, case in heads.CASES.items()),
    ]
    return {entry.name: entry for entry in entries}
