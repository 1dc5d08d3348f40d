"""The CUDA path without a GPU: real lowering on fake tensors, real Triton compiles, no launch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.config import process_environment
from inductor_plugin.kernels.call import ExternKernel, OpKernel, RequestKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from inductor_plugin.tuning.runtime import DeviceContext
from inductor_plugin.worker.jobs import BenchCandidate, TritonCompileJob
from tests.support import gpu
from tests.support.lowering import Arg, Lab, Milliseconds, library_first, library_last

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


@pytest.fixture
def lab(cache_dir: Path) -> Callable[..., Any]:
    def opened(milliseconds: Milliseconds = library_first, **facts: Any) -> Any:
        return Lab(milliseconds, cache_dir, **facts).open()

    return opened


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def activated(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.relu(torch.mm(a, b)),)


A, B = Arg((256, 128)), Arg((128, 512))


def test_a_training_step_is_enqueued_whole_before_the_first_wait(lab: Callable[..., Any]) -> None:
    def step(x: Any, w: Any, v: Any, g: Any) -> tuple[Any, ...]:
        hidden = torch.mm(x, w)
        active = hidden.relu()
        out = torch.mm(active, v)
        d_active = torch.mm(g, v.t())
        d_hidden = d_active * (hidden > 0)
        return out, torch.mm(active.t(), g), torch.mm(x.t(), d_hidden), torch.mm(d_hidden, w.t())

    with lab(library_last, hold=True) as opened:
        code = opened.lower(step, Arg((256, 128)), Arg((128, 512)), Arg((512, 64)), Arg((256, 64)))
    assert opened.order[:6] == ["submit"] * 6
    assert opened.order[6] == "wait"
    assert len({task.digest for task in opened.products}) == 6
    assert "extern_kernels.mm(" not in code


def test_equal_calls_are_one_problem(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        code = opened.lower(lambda a, b, c: (torch.mm(a, b), torch.mm(c, b)), A, B, A)
    assert len(opened.tasks) == 1
    assert code.count("extern_kernels.mm(") == 2


def test_the_fastest_candidate_is_the_one_in_the_code(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(product, A, B)
    winner = opened.entries("triton")[7]

    with lab(
        lambda c: 0.4 if c.candidate_id == winner.candidate_id else library_first(c)
    ) as opened:
        code = opened.lower(product, A, B, cache_dir=str(opened.cache_dir / "other"))
    for constant in re.findall(r"BLOCK_[MNK]=\d+", winner.description):
        name, _, value = constant.partition("=")
        assert f"{name} : tl.constexpr = {value}" in code
    assert "extern_kernels.mm(" not in code


@pytest.mark.claim
def test_a_triton_winner_takes_its_epilogue_in(lab: Callable[..., Any]) -> None:
    with lab(library_last) as opened:
        code = opened.lower(activated, A, B)
    assert code.count(".run(") == 1
    assert re.search(r"= (triton_helpers|tl)\.maximum\(", code)
    assert "extern_kernels.mm(" not in code


def test_a_library_winner_keeps_its_epilogue_beside_it(lab: Callable[..., Any]) -> None:
    with lab(library_first) as opened:
        code = opened.lower(activated, A, B)
    assert code.count("extern_kernels.mm(") == 1
    assert code.count(".run(") == 1


def test_below_the_margin_the_library_kernel_stays(lab: Callable[..., Any]) -> None:
    def barely(candidate: BenchCandidate) -> float:
        return 1.0 if isinstance(candidate.kernel, ExternKernel) else 0.99

    with lab(barely) as opened:
        code = opened.lower(product, A, B)
    assert "extern_kernels.mm(" in code
    decision = opened.record()["decision"]
    assert decision["winner"] == decision["library"]
    assert "below the margin" in decision["reason"]


def test_the_next_process_measures_nothing(lab: Callable[..., Any]) -> None:
    with lab(library_last) as first:
        code = first.lower(activated, A, B)
    with lab(library_first) as second:
        again = second.lower(activated, A, B)
    assert second.tasks == second.screens == second.builds == []
    assert _kernels(again) == _kernels(code)
    candidates = first.record()["candidates"].values()
    assert {candidate["kind"] for candidate in candidates} == {"extern", "triton"}


def _kernels(code: str) -> list[str]:
    return [line.strip() for line in code.splitlines() if ".run(" in line or "tl.constexpr" in line]


def test_a_candidate_is_the_same_in_another_process_and_on_another_gpu(
    lab: Callable[..., Any], repository: Path, tmp_path: Path
) -> None:
    with lab() as here:
        here.lower(product, A, B)
    with lab() as there:
        there.lower(
            product,
            *(Arg(tensor.size, device="cuda:1") for tensor in (A, B)),
            cache_dir=str(tmp_path),
        )
    names = [entry.candidate_id for entry in here.tasks[0].entries]
    assert [entry.candidate_id for entry in there.tasks[0].entries] == names
    assert here.tasks[0].digest == there.tasks[0].digest
    environment = process_environment() | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lowering"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout) == names


def test_each_gpu_has_its_own_triton_cache(lab: Callable[..., Any], inductor_cache: Path) -> None:
    with lab() as opened:
        for device in ("cuda:0", "cuda:1"):
            arguments = (Arg(tensor.size, device=device) for tensor in (A, B))
            with gpu.installed(devices=2):
                opened.lower(product, *arguments, cache_dir=str(opened.cache_dir / device[-1]))
    builds = [entry.build for entry in opened.entries("triton")]
    folders = {dict(job.environment)["TRITON_CACHE_DIR"] for job in builds}
    assert folders == {str(inductor_cache / "triton" / index) for index in "01"}
    for job in opened.screens:
        kernel = job.candidate.kernel
        if isinstance(kernel, RequestKernel):
            folder = dict(kernel.environment)["TRITON_CACHE_DIR"]
            assert Path(folder).name == job.candidate.output.device[-1]


def test_each_product_is_tuned_on_its_own_gpu(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = {name: getattr(DeviceContext, name) for name in ("submit", "wait")}
    used: dict[str, set[tuple[str, int]]] = {"submit": set(), "wait": set()}
    for name, seen in used.items():

        def noted(
            context: DeviceContext, ticket: Any, *limit: Any, name: str = name, seen: Any = seen
        ) -> None:
            seen.add((context.device, ticket.problem.output.size[-1]))
            return stock[name](context, ticket, *limit)

        monkeypatch.setattr(DeviceContext, name, noted)
    second = Arg((64, 128), device="cuda:1"), Arg((128, 192), device="cuda:1")
    with lab() as opened, gpu.installed(devices=2):
        opened.lower(lambda a, b, c, d: (torch.mm(a, b), torch.mm(c, d)), A, B, *second)
    assert used["submit"] == used["wait"] == {("cuda:0", 512), ("cuda:1", 192)}


def test_failed_library_kernels_are_still_found_by_the_scheduler(lab: Callable[..., Any]) -> None:
    from inductor_plugin.inductor.graph.pending import PendingChoice

    seen: list[dict[Any, float]] = []
    timings = PendingChoice.timings

    def noted(pending: PendingChoice, hint_override: int | None = None) -> dict[Any, float]:
        seen.append(timings(pending, hint_override))
        return seen[-1]

    def failing(candidate: BenchCandidate) -> str:
        return "raised" if isinstance(candidate.kernel, ExternKernel) else "ok"

    with lab(library_last, status=failing) as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(PendingChoice, "timings", noted)
        code = opened.lower(product, A, B)
    assert "extern_kernels.mm(" not in code
    assert [t for c, t in seen[0].items() if c.name == "mm"] == [float("inf")]


class CudaTemplate:
    """Offers an operator with a constant argument for plain matrix products."""

    name = "cuda_tests"
    ops = ("mm",)

    def reject(self, problem: Problem) -> str | None:
        return None if problem.output.device == "cuda" else "it is for CUDA"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        kernel = OpKernel("cuda_tests::product.out", (128, "warp"))
        return [Candidate(self.name, "tile128", {"tile": 128}, kernel)]


@contextmanager
def operator() -> Iterator[None]:
    library = torch.library.Library("cuda_tests", "FRAGMENT")
    library.define(
        "product.out(Tensor a, Tensor b, int tile, str name, *, Tensor(x!) out) -> Tensor(x!)"
    )
    default_registry().register(CudaTemplate())
    try:
        yield
    finally:
        default_registry().unregister(CudaTemplate.name)
        library._destroy()


@pytest.mark.claim
def test_a_template_winner_is_called_as_an_operator(lab: Callable[..., Any]) -> None:
    def template_first(candidate: BenchCandidate) -> float:
        return 0.1 if isinstance(candidate.kernel, OpKernel) else 1.0

    with operator(), lab(template_first) as opened:
        code = opened.lower(activated, A, B)
    (call,) = re.findall(r"^ *(torch\.ops\.cuda_tests\..*)", code, re.M)
    assert call == "torch.ops.cuda_tests.product.out(a_1, b_1, 128, 'warp', out=buf0)"
    (entry,) = opened.entries("template")
    assert entry.candidate_id.startswith("cuda_tests.tile128-")
    assert opened.record()["decision"]["winner"] == entry.candidate_id


def test_the_device_is_gone_afterwards() -> None:
    assert not torch.cuda.is_available() or torch.cuda.device_count() > 0


@pytest.mark.parametrize("alpha", [1.0, 0.125])
def test_what_beta_0_leaves_unread_is_no_term_of_our_triton_products(
    lab: Callable[..., Any], alpha: float
) -> None:
    """NaN times 0 is NaN, and with ``beta=0`` torch.baddbmm does not read what it adds."""

    def scaled(c: Any, a: Any, b: Any) -> tuple[torch.Tensor]:
        return (torch.baddbmm(c, a, b, alpha=alpha, beta=0),)

    with lab() as opened:
        opened.lower(scaled, Arg((4, 256, 512)), Arg((4, 256, 128)), Arg((4, 128, 512)))
    ours = [
        each.build.source
        for each in opened.entries("triton")
        if isinstance(each.build, TritonCompileJob) and each.name != "triton_bmm"
    ]
    assert ours
    for source in ours:
        (read,) = re.findall(r"(tmp\d+) = tl\.load\(", source) or ["none"]
        assert re.findall(rf"\b{read}\b(?! = )", source) == []
        assert ("0.125" in source) is (alpha != 1.0)
