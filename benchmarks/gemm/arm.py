"""One way to compute a product, in a separate process that serves the benchmark's requests.

    python -m benchmarks.gemm.arm ARM CACHE_DIR [--dry]

Reads one JSON request per line from stdin and answers each with one line on the original stdout:
``prepare`` compiles a product and captures it in a CUDA graph, ``sample`` measures it a few times with
a cold L2. The parent samples all arms in turns, so that clock drift affects all equally.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gemm.check import error_of, expected, rows_of
from benchmarks.gemm.products import BLOCK, Kind, kind
from benchmarks.gemm.shapes import Shape, shapes
from benchmarks.harness.capture import capture_stream, graphed, is_fatal
from benchmarks.harness.dry_twin import DryTwin
from inductor_plugin.registry import default_registry
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import repeats_for, timer_for

# Registers the name in a checkout, where it is not installed.
importlib.import_module("inductor_plugin.backend")

ARMS = ("cublas", "stock", "stock_cutlass", "ours")
DRY_SIZE = 64
"""Largest extent of a product on a machine without a GPU."""
CUTLASS_CONFIGS = 16
"""Configurations that stock CUTLASS may try: as many as the plugin; Inductor's default is hundreds."""

Function = Callable[..., torch.Tensor]
ATEN: Any = torch


@dataclass
class Prepared:
    """A product that is ready to be measured.

    Attributes:
        call: Runs it once.
        device: The device.
        repeats: Calls per sample.
        cold: Whether the caches are evicted before each call.
    """

    call: Callable[[], object]
    device: str
    repeats: int
    cold: bool = True


@dataclass
class Tried:
    """The candidates an autotuner tried for a product, in the order of its ranking.

    Attributes:
        times_ms: Milliseconds of each candidate, None if it failed.
        built: Whether the candidate had to be compiled.
        winner: The winner; empty if nothing was decided.
    """

    times_ms: list[float | None] = field(default_factory=list[float | None])
    built: list[bool] = field(default_factory=list[bool])
    winner: str = ""

    def to_reach(self, share: float = 0.99) -> int | None:
        """Return how many kernels were built up to the first with at least ``share`` of the best one's speed."""
        finite = [time_ms for time_ms in self.times_ms if time_ms is not None]
        if not finite:
            return None
        limit = min(finite) / share
        for position, time_ms in enumerate(self.times_ms):
            if time_ms is not None and time_ms <= limit:
                return sum(self.built[: position + 1])
        return None


def main() -> int:
    """Answer requests until stdin ends."""
    if "--dry" in sys.argv and sys.argv[1] == "ours":
        default_registry().register(DryTwin())
    return serve(prepare)


def serve(
    prepare: Callable[..., tuple[dict[str, Any], Prepared]],
    compiler: Callable[[str, Path], Callable[[Function], Callable[..., torch.Tensor]]]
    | None = None,
) -> int:
    """Answer requests until stdin ends.

    After an error that may have broken the device the answer has ``fatal``: a new process answers the next one.

    Args:
        prepare: Compiles what a request names.
        compiler: Returns the compiler of an arm; of the arms here if None.
    """
    arm, cache_dir = sys.argv[1:3]
    dry = "--dry" in sys.argv[3:]
    # Output of libraries is redirected to stderr; only answers are written to the original stdout.
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    prepared: Prepared | None = None
    with answers:
        compile_small = (compiler or _ways_apart)(arm, Path(cache_dir))
        warm(compile_small, "cpu" if dry else "cuda:0")
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request["do"] == "prepare":
                    prepared = None
                    answer, prepared = prepare(arm, Path(cache_dir), request, dry=dry)
                elif request["do"] == "begin":
                    answer = {}  # all is loaded
                else:
                    assert prepared is not None
                    answer = {"ms": sample(prepared)}
            except Exception as error:  # noqa: BLE001 - an arm that cannot run says why
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                answer = {"failed": reason, "traceback": traceback.format_exc()[-2000:]}
                answer |= {"fatal": True} if is_fatal(error) else {}
            answers.write(json.dumps(answer) + "\n")
    return 0


def warm(compiler: Callable[[Function], Callable[..., torch.Tensor]], device: str) -> None:
    """Compile something small, so that the first product's seconds do not include loading Inductor."""
    ones = torch.ones(64, device=device)
    compiler(lambda x: x + 1)(ones)
    timer_for(device).synchronize()


def _ways_apart(arm: str, cache_dir: Path) -> Callable[[Function], Function]:
    """Return the compiler of an arm, whose candidates are recorded nowhere."""
    return ways(arm, cache_dir, Tried())


def prepare(
    arm: str, cache_dir: Path, request: Mapping[str, Any], *, dry: bool
) -> tuple[dict[str, Any], Prepared]:
    """Compile one product and check its numbers; return what to report, and the product."""
    shape = next(shape for shape in shapes() if shape.label == request["shape"])
    types = kind(request["kind"])
    device = "cpu" if dry else "cuda:0"
    torch._dynamo.reset()
    function, tensors = product(shape, types, device, dry=dry)
    tried = Tried()
    compiled = ways(arm, cache_dir, tried)(function)
    timer = timer_for(device)
    timer.synchronize()
    started = time.perf_counter()
    actual = compiled(*tensors)
    timer.synchronize()
    first_call_s = time.perf_counter() - started
    rows = rows_of(shape, tensors[0].shape[0])
    error = error_of(actual, expected(shape, types, tensors, rows), rows)
    if not math.isfinite(error):
        raise ArithmeticError("its result has values that are not finite, or another size")
    with capture_stream(device) as stream:
        call, captured = graphed(lambda: compiled(*tensors), stream)
    sampling = Sampling(warmup=5, samples=1, min_sample_ms=2.0, max_total_s=5.0, cold_cache=True)
    report: dict[str, Any] = {
        "first_call_s": first_call_s,
        "error": error,
        "graph": captured,
        "tried": len(tried.times_ms),
        "built": sum(tried.built),
        "built_to_99": tried.to_reach(),
    }
    report |= {"winner": tried.winner} if arm == "ours" else {}
    return report, Prepared(call, device, repeats_for(timer, call, sampling))


def sample(prepared: Prepared) -> float:
    """Return milliseconds of a call: of a few the median with cold caches, the mean with warm ones."""
    timer = timer_for(prepared.device)
    return timer.sample(prepared.call, prepared.repeats, cold=prepared.cold)


def product(
    shape: Shape, types: Kind, device: str, *, dry: bool
) -> tuple[Function, list[torch.Tensor]]:
    """Return a product as a function of tensors, and the tensors, identical in each process."""
    m, n, k = (min(size, DRY_SIZE) if dry else size for size in (shape.m, shape.n, shape.k))
    generator = torch.Generator(device=device).manual_seed(0)

    def drawn(*size: int, dtype: str) -> torch.Tensor:
        values = torch.randn(*size, generator=generator, device=device)
        return values.to(getattr(torch, dtype))

    groups = shape.layer.groups
    a = drawn(m, k, dtype=types.a)
    w = drawn(*((groups,) if groups else ()), n, k, dtype=types.b)
    if groups:
        numbers = torch.arange(1, groups + 1, device=device)
        ends = (numbers * m // groups).to(torch.int32)  # with few rows some groups are empty
        return lambda a, w, ends: ATEN._grouped_mm(a, w.mT, ends), [a, w, ends]
    if types.scale != "none":
        fast = types.scale != "blockwise"
        facts: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
        scales = drawn_scales(types, (m, n, k), generator)
        last = [drawn(n, dtype=types.out)] if shape.layer.bias else []
        return (
            lambda a, w, x, y, *c: ATEN._scaled_mm(a, w.t(), x, y, *c, **facts),
            [a, w, *scales, *last],
        )
    if shape.layer.bias:
        bias = drawn(n, dtype=types.out)
        return lambda a, w, c: torch.addmm(c, a, w.t()), [a, w, bias]
    return lambda a, w: torch.mm(a, w.t()), [a, w]


def drawn_scales(
    types: Kind, sizes: tuple[int, int, int], generator: torch.Generator
) -> list[torch.Tensor]:
    """Return scales from 0.5 to 1.5 of A and B; block-wise scales are column-major, as torch requires."""
    m, n, k = sizes
    shapes_of = {
        "tensor": ((1, 1), (1, 1)),
        "rowwise": ((m, 1), (1, n)),
        "blockwise": ((m, k // BLOCK), (k // BLOCK, n // BLOCK)),
    }
    return [
        (torch.rand(columns, rows, generator=generator, device=generator.device) + 0.5).t()
        for rows, columns in shapes_of[types.scale]
    ]


def ways(arm: str, cache_dir: Path, tried: Tried) -> Callable[[Function], Function]:
    """Return the compiler of an arm; it records the candidates in ``tried``."""
    if arm not in ("ours", "stock", "stock_cutlass"):
        return lambda function: function  # a library, called directly
    if arm == "ours":
        record_ours(tried)
        options: dict[str, Any] = {
            "max_autotune": True,
            "cache_dir": str(cache_dir),
            "table": "off",
            "progress": "off",
            "compile_timeout_s": 400,
            "gemm_backends": "ATEN,TRITON,CUTLASS",
        }
        return lambda function: torch.compile(function, backend="inductor_plugin", options=options)
    record_stock(tried)
    stock: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
    if arm == "stock_cutlass":
        stock |= {
            "max_autotune_gemm_backends": "ATEN,CUTLASS",
            "cutlass.cutlass_dir": str(cutlass_checkout(cache_dir / "cutlass")),
            "cutlass.cutlass_max_profiling_configs": CUTLASS_CONFIGS,
            "cutlass.cutlass_max_profiling_swizzle_options": [1],
        }
    return lambda function: torch.compile(function, options=stock)


def cutlass_checkout(folder: Path) -> Path:
    """Return a folder that looks to Inductor like a checkout of CUTLASS, made of links to the wheel."""
    import importlib.util

    specs = {
        name: importlib.util.find_spec(name)
        for name in ("cutlass_library", "cutlass_cppgen", "pycute")
    }
    missing = [name for name, spec in specs.items() if spec is None]
    if missing:
        raise RuntimeError(f"stock CUTLASS needs {', '.join(missing)} of nvidia-cutlass")
    (folder / "python").mkdir(parents=True, exist_ok=True)
    folders = {name: Path(str(spec.origin)).parent for name, spec in specs.items() if spec}
    source = folders["cutlass_library"] / "source"
    links = {f"python/{name}": target for name, target in folders.items()}
    links |= {name: source / name for name in ("include", "tools")}
    for name, target in links.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(target)
    return folder


_originals: dict[str, Any] = {}
"""The original of the method that `record_ours` replaces."""


def record_ours(tried: Tried) -> None:
    """Record the plugin's measurements, by wrapping `Selection.decide`."""
    from inductor_plugin.tuning.selection import Selection

    original: Any = _originals.setdefault("decide", Selection.decide)

    def decide(selection: Any, ticket: Any) -> Any:
        verdict = original(selection, ticket)
        tried.winner = str(verdict.winner)
        tried.times_ms[:] = [_median(ticket, offer) for offer in ticket.offers]
        tried.built[:] = [not offer.library for offer in ticket.offers]
        return verdict

    patched: Any = Selection
    patched.decide = decide


def _median(ticket: Any, offer: Any) -> float | None:
    measured = ticket.measured.get(offer.candidate_id)
    return measured.median_ms if measured is not None and measured.status == "ok" else None


def record_stock(tried: Tried) -> None:
    """Record Inductor's measurements."""
    import torch._inductor.select_algorithm as selecting

    untyped: Any = selecting
    if hasattr(untyped, "clear_feedback_savers"):
        untyped.clear_feedback_savers()

    def saved(timings: Mapping[Any, float], *_others: Any, **_more: Any) -> None:
        finite = {choice: ms for choice, ms in timings.items() if ms < float("inf")}
        tried.times_ms[:] = [finite.get(choice) for choice in timings]
        tried.built[:] = [not isinstance(choice, untyped.ExternKernelCaller) for choice in timings]

    untyped.add_feedback_saver(saved)


if __name__ == "__main__":
    sys.exit(main())
