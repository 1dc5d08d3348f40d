"""The steps of a session on a GPU, the most telling first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.gpu.harness.order import FIRST as FORCED
from tests.gpu.session.step import FIRST, Step

PARTS = (FIRST, "tests", "speed")
CPU = "cpu"
"""A part of its own, which needs no GPU and is not in ``all``."""


def plan(results: Path, kernels: Path, pack: Path | None = None) -> list[Step]:
    """Return all steps.

    Args:
        results: The folder of what they write.
        kernels: The cache directory of what they build.
        pack: A file of kernels that were built beforehand, which the first step takes over.
    """
    return [*first(results, kernels, pack), *tests(results), *speed(results)]


def cpu(results: Path, kernels: Path) -> list[Step]:
    """Return the steps that show, without a GPU, that a machine has what a session needs but for the GPU.

    Args:
        results: The folder of what they write.
        kernels: The cache directory of what they build.
    """
    environment = ("-m", "tests.gpu.session.environment", "--cpu", "--out")
    probe = ("-m", "tests.gpu.session.probe", "--dry", "--out", str(results / "probe-dry.json"))
    collection = ("-m", "pytest", "tests/gpu", "-m", "gpu or sm90", "--collect-only", "-q")
    collection += ("-p", "tests.gpu.harness.pretend", "-p", "no:cacheprovider", "-W", "default")
    return [
        Step(
            "environment without a GPU",
            "a CPU computes, the backend is known; versions",
            (*environment, str(results / "environment-cpu.json")),
            150,
            CPU,
            essential=True,
        ),
        doctor(kernels, CPU),
        Step("the session itself", "simulated", ("-m", "tests.gpu.session", "--simulate"), 60, CPU),
        Step("the GPU tests", "imported, not run", collection, 150, CPU),
        Step("probe, dry", "small sizes on a CPU", probe, 240, CPU),
    ]


def doctor(kernels: Path, part: str) -> Step:
    """Return the step of a part that says what of the plugin works here."""
    command = ("-m", "inductor_plugin.cli", "doctor", "--cache-dir", str(kernels))
    return Step("doctor", "what works, what is off, and why", command, 60, part)


def first(results: Path, kernels: Path, pack: Path | None) -> list[Step]:
    """Return what runs in every session."""
    module = "tests.gpu.session.environment"
    steps = [
        Step(
            "environment",
            "the GPU computes, the backend is known; versions",
            ("-m", module, "--out", str(results / "environment.json")),
            150,  # importing torch for the first time from a cold disk takes a minute
            FIRST,
            essential=True,
        ),
        doctor(kernels, FIRST),
    ]
    if pack is not None:
        about = "kernels that were built beforehand"
        command = ("-m", "inductor_plugin.cli", "import", str(pack), "--trust")
        command = (*command, "--cache-dir", str(kernels))
        steps.append(Step("pack", about, command, 120, FIRST, always=True))
    return steps


def tests(results: Path) -> list[Step]:
    """Return the steps that say whether the kernels are right."""

    def pytest(name: str, about: str, limit_s: float, *what: str, chosen: str = "") -> Step:
        places = [f"tests/gpu/{place}" for place in what]
        command = ["-m", "pytest", *places, "-q", "--no-header", "-p", "no:cacheprovider"]
        command += [
            "-W",
            "default",
        ]  # warnings of a torch or Python that is new must not hide the rest
        command += ["--gpu-results", str(results / "tests.json")]
        command += ["-k", chosen] if chosen else []
        return Step(name, about, tuple(command), limit_s, resume=("--resume",))

    alone = "test_every_candidate_is_right and "
    probe = ("-m", "tests.gpu.session.probe", "--out", str(results / "probe.json"))
    return [
        Step("probe", "clocks, host time of a call, memory of the worker", probe, 180),
        pytest("a product", "tuned; each kind forced", 220, *FORCED[:3]),
        pytest("an attention", "each kind forced, with gradients", 220, *FORCED[3:5]),
        pytest("a fusion", "each kind forced", 220, *FORCED[5:]),
        pytest("cutlass alone", "products", 300, "test_candidates.py", chosen=alone + "cutlass"),
        pytest("triton alone", "products", 300, "test_candidates.py", chosen=alone + "triton"),
        pytest(
            "visitors alone",
            "CUTLASS products with epilogues",
            300,
            "test_candidates.py",
            chosen="test_an_epilogue_of_visitors_is_right",
        ),
        pytest("triton attention alone", "against float64", 240, "test_triton_attention.py"),
        pytest("cutlass attention alone", "against float64", 300, "test_cutlass_fmha.py"),
        pytest("products compiled", "each template forced", 300, "test_forced.py"),
        pytest("attentions compiled", "each family forced", 400, "test_attention.py"),
        pytest("fusions compiled", "each way forced; layouts", 500, "test_fused.py"),
        pytest("whole compiles", "tuned as users do; faults", 400, "test_lowering.py"),
    ]


def speed(results: Path) -> list[Step]:
    """Return the steps that say how fast it is: the plugin, stock and the libraries, in turns."""

    def benchmark(
        name: str, about: str, module: str, budget_s: int, out: str, *arguments: str
    ) -> Step:
        command = ["-m", f"benchmarks.{module}", "--budget-s", f"{budget_s}"]
        command += ["--out", str(results / out), *arguments]
        limit_s = budget_s + 45
        return Step(
            name, about, tuple(command), limit_s, "speed", anew=("--fresh",), least_s=0.5 * limit_s
        )

    arms = ("--arms", "cublas", "stock", "ours")
    llama = ("--kinds", "bf16", "--match", "llama3-8b")
    attention = ("--arms", "flash", "cudnn", "stock", "ours")
    all_ = "all products, bf16 and fp8"
    some = ("--arms", "cublas", "ours", "stock_cutlass", "--kinds", "bf16", "--limit", "3")
    return [
        benchmark("speed: products", "of Llama 3 8B", "gemm", 160, "gemm.json", *arms, *llama),
        benchmark(
            "speed: attention",
            "forward",
            "attention",
            130,
            "attention.json",
            *attention,
            "--match",
            "forward",
        ),
        benchmark("speed: fusions", "fused and apart", "fusion.fused", 120, "fused.json"),
        benchmark(
            "speed: gradients",
            "of attention",
            "attention",
            130,
            "attention.json",
            *attention,
            "--match",
            "backward",
        ),
        benchmark("speed: all products", all_, "gemm", 300, "gemm.json", *arms),
        benchmark("speed: stock CUTLASS", "few", "gemm", 240, "gemm_cutlass.json", *some),
    ]


def chosen(
    steps: list[Step], part: str, only: Sequence[str], again: Sequence[str] = ()
) -> list[Step]:
    """Return the steps of a part, or those that are named, and what runs in every session.

    Args:
        steps: All steps.
        part: ``tests``, ``speed`` or ``all``.
        only: Names of the steps that run; empty for those of the part.
        again: Names of steps that are added to the part, because they are asked for again.

    Raises:
        LookupError: A name is not that of a step.
    """
    names = [step.name for step in steps]
    unknown = [name for name in (*only, *again) if name not in names]
    if unknown:
        raise LookupError(f"there is no step {unknown[0]!r}; there are {', '.join(names)}")

    def wanted(step: Step) -> bool:
        here = step.name in only if only else part in ("all", step.part)
        return here or step.part == FIRST or step.name in again

    return [step for step in steps if wanted(step)]
