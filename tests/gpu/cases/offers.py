"""The candidates of the GPU cases, lowered as everywhere without a GPU, and built for a GPU.

`offered` runs in a worker that sees no GPU, so that lowering goes the way it goes in CI. `built` puts
the kernels into a cache directory through the compile workers, in batches.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.kernels.call import OpKernel, SequenceKernel
from inductor_plugin.tuning.task import CppBuild, TaskCandidate
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    JobFailed,
    TritonCompileJob,
)
from inductor_plugin.worker.process import WorkerProcess
from tests.gpu.cases.builds import placed, settings
from tests.gpu.cases.product import FUSED, Case, Spec
from tests.gpu.cases.registry import case
from tests.gpu.harness.written import WrittenCall, written
from tests.support.lowering import Arg, Lab, library_first, visited_first

GPU = "H200"
LIBRARY = "/library"
"""Stands for the path of a library until it is built."""


@dataclass(frozen=True)
class Offered:
    """One candidate of a case, not built yet.

    Attributes:
        case: Its case.
        identity: The plugin's identity of it.
        name: What a table shows.
        about: Its name and configuration, for the expressions of `Case.wanted`.
        build: How it is built.
        kernel: What is checked; its library is `LIBRARY` where it has one.
    """

    case: str
    identity: str
    name: str
    about: str
    build: CppBuild | TritonCompileJob
    kernel: BenchCandidate | WrittenCall

    def at(self, library: str, symbol: str) -> Offered:
        """Return it with the library it was built into."""
        if not library:
            return self
        place = f"{symbol}@{library}"
        if isinstance(self.kernel, WrittenCall):
            return replace(self, kernel=replace(self.kernel, kernel=place))
        kernel = self.kernel.kernel
        if not isinstance(kernel, OpKernel):
            return self
        named = replace(kernel, args=(place, *kernel.args[1:]))
        return replace(self, kernel=replace(self.kernel, kernel=named))


def argument(spec: Spec) -> Arg:
    """Return a tensor of a case as the lowering takes it."""
    return Arg(spec.size, spec.dtype, spec.stride)


def offered(identities: Sequence[str], inductor_dir: str) -> dict[str, list[Offered] | str]:
    """Lower cases for a GPU that is not there, and return the candidates of each, or why not."""
    from inductor_plugin.config import process_environment, set_environment

    set_environment(process_environment() | {"TORCHINDUCTOR_CACHE_DIR": inductor_dir})
    torch.set_grad_enabled(True)  # a worker has switched it off; a user's process has not
    return {identity: _attempted(identity) for identity in identities}


def _attempted(identity: str) -> list[Offered] | str:
    try:
        return _lowered(case(identity), identity)
    except Exception as error:  # noqa: BLE001  a case that does not lower costs itself alone
        return f"{type(error).__name__}: {error}"


def _lowered(trial: Case, identity: str) -> list[Offered] | str:
    fused = trial.template == FUSED
    backends = {"cutlass": "ATEN,CUTLASS", FUSED: "ATEN,TRITON,CUTLASS"}
    options: dict[str, Any] = {"gemm_backends": backends.get(trial.template, "ATEN,TRITON")}
    options |= {"max_candidates": 4} if fused else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        as_target(GPU),
        _precision(trial.precision),
        Lab(visited_first if fused else library_first, Path(folder)).open() as lab,
    ):
        code = lab.lower(trial.function, *map(argument, trial.specs), **options)
        entries = [entry for task in lab.tasks for entry in task.entries]
        mine = [entry for entry in entries if belongs(entry.name, trial.template)]
        if not mine:
            names = [entry.name for entry in entries]
            return f"no candidate of {trial.template}; offered are {names}"
        if fused:
            return [_offered(identity, entry, code) for entry in mine[: trial.first]]
        return [_offered(identity, entry) for entry in mine]


def belongs(name: str, template: str) -> bool:
    """Return whether a candidate's name is of a template: ``cutlass::...`` or ``triton_decode``."""
    if template == FUSED:
        return name.startswith(FUSED)
    return name == template or name.startswith((f"{template}::", f"{template}_bmm"))


def _offered(identity: str, entry: TaskCandidate, code: str = "") -> Offered:
    """Return a candidate; one with an epilogue is called as it is written in ``code``."""
    assert entry.bench is not None
    assert entry.build is not None
    kernel: BenchCandidate | WrittenCall = entry.bench(LIBRARY, "symbol")
    if code:
        assert isinstance(kernel.kernel, SequenceKernel)
        (part,) = kernel.kernel.parts
        name, *launch = part.arguments[3:-1]
        kernel = replace(written(code), kernel=str(name), launch=tuple(launch))
    about = f"{entry.name} {entry.description}"
    return Offered(identity, entry.candidate_id, entry.name, about, entry.build, kernel)


@contextmanager
def _precision(wanted: str) -> Any:
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(kept)


def chosen(trial: Case, offers: Sequence[Offered]) -> list[Offered]:
    """Return the candidates that have to run: the first ones, and one for each expression.

    Raises:
        LookupError: An expression matches none.
    """
    picked = {offer.identity: offer for offer in offers[: trial.first]}
    for pattern in trial.wanted:
        fitting = [offer for offer in offers if re.search(pattern, offer.about)]
        if not fitting:
            names = [offer.name for offer in offers]
            raise LookupError(f"{trial.name}: no candidate matches {pattern!r} among {names}")
        picked.setdefault(fitting[0].identity, fitting[0])
    return list(picked.values())


def all_offered(
    identities: Sequence[str], inductor_dir: Path, workers: int
) -> dict[str, list[Offered] | str]:
    """Lower cases, in several workers that see no GPU; one of them has 60 s, and 20 s for each case."""

    def part(number: int) -> dict[str, list[Offered] | str]:
        mine = list(identities[number::workers])
        worker = WorkerProcess(settings("compile"), f"lowering {number}")
        try:
            job = CallJob(__name__, "offered", (mine, str(inductor_dir)))
            answer = worker.attempt(job, 60 + 20 * len(mine))
        finally:
            worker.close()
        if isinstance(answer, JobFailed):
            return dict.fromkeys(mine, f"{answer.reason}\n{answer.traceback}")
        return answer

    offers: dict[str, list[Offered] | str] = {}
    with ThreadPoolExecutor(workers) as threads:
        for each in threads.map(part, range(workers)):
            offers |= each
    return offers


def built(
    offers: Sequence[Offered], folder: Path, workers: int, timeout_s: float
) -> dict[tuple[str, str], Offered | str]:
    """Build kernels into a cache directory, or find them there; by case and identity, or why not.

    What is not ready after ``timeout_s`` is not waited for; what is ready by then stays in the cache.
    """
    places = placed([offer.build for offer in offers], folder, workers, timeout_s)
    return {
        (offer.case, offer.identity): place
        if isinstance(place, str)
        else offer.at(place.library, place.symbol)
        for offer, place in zip(offers, places, strict=True)
    }
