"""The whole path on a CUDA device, its numbers against float32. Products have run on an H200."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

import inductor_plugin
from benchmarks.harness.error import error_of
from inductor_plugin.cache.quarantine import MISHAPS
from inductor_plugin.config import process_environment
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate
from tests.gpu.cases.kernels import TEST_S
from tests.gpu.harness import recorded
from tests.support.compile import Spent

# What a device makes torch warn of is not known yet; it must not hide what the tests find.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BF16 = torch.bfloat16
ACCEPTED = 0.01
"""Root mean square of the error, relative: bfloat16 rounds by 0.002, and an epilogue once more."""

Note = Callable[[str, Any], None]


def random(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*size, device="cuda", dtype=dtype)


def compiled(function: Callable[..., Any], cache_dir: Path, **options: Any) -> Callable[..., Any]:
    options = {"cache_dir": str(cache_dir), "max_candidates": 5, "table": "off", **options}
    dynamic = options.pop("dynamic", None)
    return torch.compile(function, backend="inductor_plugin", options=options, dynamic=dynamic)


def against_float32(function: Callable[..., Any], *arguments: torch.Tensor) -> Any:
    """Return what a function gives in float32, TF32 off."""
    assert torch.get_float32_matmul_precision() == "highest"
    return function(*(argument.float() for argument in arguments))


def records(cache_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(cache_dir.glob("records/*/*/*.json"))]


def tell(note: Note, cache_dir: Path, spent: Spent) -> None:
    """Put into the table what was tuned and who won."""
    stats = spent.stats
    note("problems", stats.problems)
    note("measured", stats.benchmarked)
    note("compile_s", round(stats.compile_s, 1))
    note("wait_s", round(stats.wall_s, 1))
    winners = [record["decision"]["winner"].partition("-")[0] for record in records(cache_dir)]
    note("winners", "+".join(winners))


OPERATORS: dict[str, tuple[Callable[..., Any], Callable[[], Sequence[torch.Tensor]]]] = {
    "mm": (torch.mm, lambda: (random(512, 1024), random(1024, 768))),
    "mm and relu": (
        lambda a, b: torch.mm(a, b).relu(),
        lambda: (random(512, 1024), random(1024, 768)),
    ),
    "mm of a matrix with itself": (lambda a: torch.mm(a, a.t()), lambda: (random(512, 256),)),
    "addmm": (torch.addmm, lambda: (random(768), random(512, 1024), random(1024, 768))),
    "linear": (
        torch.nn.functional.linear,
        lambda: (random(4, 128, 512), random(768, 512), random(768)),
    ),
    "bmm": (torch.bmm, lambda: (random(8, 256, 128), random(8, 128, 192))),
    "baddbmm": (
        torch.baddbmm,
        lambda: (random(8, 256, 192), random(8, 256, 128), random(8, 128, 192)),
    ),
    "two products and their sum": (
        lambda a, b, c, d: torch.mm(a, b) + torch.mm(c, d),
        lambda: (random(256, 512), random(512, 256), random(256, 512), random(512, 256)),
    ),
    "odd sizes": (torch.mm, lambda: (random(333, 257), random(257, 129))),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_tuned_and_right(name: str, cache_dir: Path, record_property: Note) -> None:
    function, inputs = OPERATORS[name]
    arguments = inputs()
    spent = Spent()
    answer = compiled(function, cache_dir)(*arguments)
    error = error_of(answer, against_float32(function, *arguments))
    record_property("error", f"{error:.1e}")
    tell(record_property, cache_dir, spent)
    assert error < ACCEPTED
    assert spent.stats.problems >= 1
    plain = recorded.products(records(cache_dir))
    assert plain
    assert [recorded.unexpected(record) for record in plain] == [""] * len(plain)


def test_all_of_inductors_candidates_run(cache_dir: Path, record_property: Note) -> None:
    a, b = random(1024, 1024), random(1024, 1024)
    spent = Spent()
    compiled(torch.mm, cache_dir, max_candidates=0)(a, b)
    tell(record_property, cache_dir, spent)
    (record,) = records(cache_dir)
    result = [candidate["status"] for candidate in record["candidates"].values()]
    record_property("statuses", {status: result.count(status) for status in sorted(set(result))})
    assert recorded.strange(record) == ""


def test_what_a_compile_worker_made_is_not_compiled_again(
    cache_dir: Path, inductor_cache: Path
) -> None:
    spent = Spent()
    function = compiled(torch.mm, cache_dir, gemm_backends="ATEN,TRITON")
    function(random(512, 512), random(512, 512))
    assert len(recorded.triton_kernels(inductor_cache)) == spent.stats.compiled


def test_integers_agree_exactly(cache_dir: Path) -> None:
    a, b = (torch.randint(-8, 8, (256, 256), device="cuda", dtype=torch.int8) for _ in range(2))
    answer = compiled(torch._int_mm, cache_dir)(a, b)
    assert torch.equal(answer.cpu(), a.cpu().int() @ b.cpu().int())


def test_fp8_is_tuned_and_right(cache_dir: Path, record_property: Note) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs compute capability 8.9")
    a = random(256, 512).to(torch.float8_e4m3fn)
    b = random(384, 512).to(torch.float8_e4m3fn).t()
    scales = [torch.tensor(value, device="cuda") for value in (0.5, 2.0)]

    def scaled(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, s, t, out_dtype=BF16)

    spent = Spent()
    answer = compiled(scaled, cache_dir)(a, b, *scales)
    tell(record_property, cache_dir, spent)
    assert error_of(answer, torch.mm(a.float(), b.float())) < ACCEPTED


def test_a_convolution_is_tuned_and_right(cache_dir: Path, record_property: Note) -> None:
    x, w = random(4, 32, 28, 28), random(64, 32, 3, 3)
    spent = Spent()
    answer = compiled(lambda x, w: torch.conv2d(x, w, padding=1), cache_dir)(x, w)
    tell(record_property, cache_dir, spent)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = torch.conv2d(x.float(), w.float(), padding=1)
    assert error_of(answer, expected) < ACCEPTED


def test_a_training_step_is_tuned_and_right(cache_dir: Path, record_property: Note) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x, w).relu(), v).float().square().mean()

    x, w, v = (random(512, 512).div_(16).requires_grad_() for _ in range(3))
    wide = [tensor.detach().float().requires_grad_() for tensor in (x, w, v)]
    expected = torch.autograd.grad(loss(*wide), wide)
    spent = Spent()
    got = torch.autograd.grad(compiled(loss, cache_dir)(x, w, v), (x, w, v))
    tell(record_property, cache_dir, spent)
    errors = [error_of(value, other) for value, other in zip(got, expected, strict=True)]
    record_property("error", f"{max(errors):.1e}")
    assert max(errors) < 2 * ACCEPTED
    assert spent.stats.problems >= 4


def test_a_dynamic_size_shares_the_record_of_its_class(cache_dir: Path) -> None:
    b = random(512, 512)
    function = compiled(torch.mm, cache_dir, dynamic=True)
    for rows, hits in ((300, 0), (310, 1)):
        torch._dynamo.reset()
        a = random(rows, 512)
        torch._dynamo.mark_dynamic(a, 0)
        spent = Spent()
        assert error_of(function(a, b), against_float32(torch.mm, a, b)) < ACCEPTED
        assert spent.stats.record_hits == hits
    for rows in (257, 512, 40):  # one kernel for all sizes, in the class or not
        a = random(rows, 512)
        assert error_of(function(a, b), against_float32(torch.mm, a, b)) < ACCEPTED


def test_cuda_graphs_replay_the_winner(cache_dir: Path) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(a, b).relu(), b)

    b = random(256, 256)
    inductor_plugin.enable(cache_dir=str(cache_dir), max_candidates=5, table="off")
    spent = Spent()
    replayed = torch.compile(function, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            a = random(256, 256)
            answer = replayed(a, b).clone()
            assert error_of(answer, against_float32(function, a, b)) < ACCEPTED
    assert spent.stats.problems >= 1  # two products of the same sizes, fused or not


def test_another_stream_is_kept_to(cache_dir: Path) -> None:
    a, b = random(512, 512), random(512, 512)
    function = compiled(lambda a, b: torch.mm(a, b).relu(), cache_dir)
    function(a, b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        answers = [function(a + number, b) for number in range(3)]
    stream.synchronize()
    for number, answer in enumerate(answers):
        expected = against_float32(lambda a, b: torch.mm(a, b).relu(), a + number, b)
        assert error_of(answer, expected) < ACCEPTED


def test_the_next_process_tunes_nothing(cache_dir: Path, tmp_path: Path, repository: Path) -> None:
    reports: list[dict[str, Any]] = []
    for name in ("first", "second"):
        environment = process_environment() | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)}
        environment.pop("TRITON_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.forced.tuning", str(cache_dir)],
            cwd=repository,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TEST_S / 2,
            check=True,
        )
        reports.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = reports
    assert max(first["error"], second["error"]) < ACCEPTED
    assert first["benchmarked"] > 0
    assert second["record_hits"] == second["problems"] == first["problems"]
    assert second["benchmarked"] == second["compiled"] == 0


class CudaFaults:
    """Offers what can go wrong on a device."""

    name = "cuda_faults"
    ops = ("mm",)

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def reject(self, problem: Problem) -> str | None:
        return None if problem.output.device == "cuda" else "it is for CUDA"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        module = ("tests.gpu.harness.cuda_faults",)
        return [
            Candidate(self.name, key, {}, OpKernel(f"cuda_faults::{key}", (), module))
            for key in self._names
        ]


def test_faults_cost_their_candidates_alone(cache_dir: Path, record_property: Note) -> None:
    pytest.importorskip("triton")
    from tests.gpu.harness.cuda_faults import FAULTS

    a, b = random(256, 256, dtype=torch.float32), random(256, 256, dtype=torch.float32)
    template = CudaFaults(list(FAULTS))
    default_registry().register(template)
    try:
        spent = Spent()
        options = {"bench_timeout_s": 10, "max_candidates": 0, "gemm_backends": "ATEN"}
        answer = compiled(torch.mm, cache_dir, **options)(a, b)
        assert error_of(answer, against_float32(torch.mm, a, b)) < ACCEPTED
        failed = spent.stats.failed
        repeated: list[int] = []
        for _ in range(2):
            torch._dynamo.reset()
            again = Spent()
            compiled(torch.mm, cache_dir, **options)(a, b)
            repeated.append(again.stats.benchmarked)
    finally:
        default_registry().unregister(template.name)
    (record,) = records(cache_dir)
    seen = {
        candidate["name"].partition("::")[2]: candidate
        for candidate in record["candidates"].values()
    }
    result = {name: seen[name]["status"] for name in FAULTS}
    record_property("statuses", result)
    assert result == {name: status for name, (_, status) in FAULTS.items()}
    assert failed == len(FAULTS) - 1
    # A mishap may be the machine's fault: it takes two. The library kernel is measured with those.
    mishaps = sum(status in MISHAPS for status in result.values())
    assert repeated == [mishaps + 1 if mishaps else 0, 0]
    # None of it has reached this process: its context still works.
    assert error_of(torch.mm(a, b), against_float32(torch.mm, a, b)) < ACCEPTED
