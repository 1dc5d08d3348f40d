"""What decides how the first figures of a GPU have to be read: clocks, the flush, host time, memory of a worker.

    python -m tests.gpu.session.probe --out FILE [--dry]

Host time is what a call costs the process without waiting for the device: where it is longer than the kernel, a
faster kernel gains nothing without CUDA graphs. ``--dry`` computes small sizes on a CPU, to check the probe itself.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch.nn import functional

from benchmarks.harness.dry_twin import DryTwin
from benchmarks.harness.forced import forced, is_named
from inductor_plugin.config import default_cache_dir
from inductor_plugin.device import Timer
from inductor_plugin.registry import default_registry
from inductor_plugin.worker.cuda_timer import CudaTimer
from inductor_plugin.worker.timer import timer_for
from tests.gpu.session.report import Report, output_of

# Registers the name in a checkout, where it is not installed.
importlib.import_module("inductor_plugin.backend")

Call = Callable[[], object]
CALLS = {"cuda": 300, "cpu": 20}
WAIT_S = 15.0
_CLOCKS = "clocks.sm,clocks.mem,temperature.gpu,power.draw"
_SLEEP_CYCLES = 1_000_000
"""About half a millisecond, which no host call takes."""


@dataclass(frozen=True)
class Sizes:
    """What is computed.

    Attributes:
        device: Where.
        dtype: Type of the operands.
        rows: Rows of the product; it has ``width`` columns and sums over ``width``.
        width: See there.
        keys: Queries and keys of the attention.
        product: The beginnings of the candidates that are forced for the product, by the figure's name.
        attention: The same for the attention.
    """

    device: str
    dtype: torch.dtype
    rows: int
    width: int
    keys: int
    product: tuple[tuple[str, str], ...]
    attention: tuple[tuple[str, str], ...]


GPU = Sizes(
    "cuda:0",
    torch.bfloat16,
    1,
    4096,
    512,
    (("forced CUTLASS", "cutlass"), ("forced Triton", "triton_decode")),
    (("forced CUTLASS", "cutlass_fmha."), ("forced Triton", "triton_attention-")),
)
DRY = Sizes("cpu", torch.float32, 64, 128, 32, (("forced twin", "dry_twin"),), ())


def main() -> int:
    """Write the figures; return 1 if one of them could not be found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    report, sizes = Report(arguments.out), DRY if arguments.dry else GPU
    if arguments.dry:
        default_registry().register(DryTwin())
    torch.manual_seed(0)
    with torch.no_grad(), inductor_config.patch(fx_graph_cache=False):
        if not arguments.dry:
            device_figures(report)
        products(report, sizes)
        attentions(report, sizes)
    for wait_s in (0.0, 0.0 if arguments.dry else WAIT_S):
        time.sleep(wait_s)
        report.attempt(f"memory of processes, {wait_s:.0f} s later", memory)
    print(
        f"summary: host us of a product: {shown(report, 'mm')}; attention: {shown(report, 'sdpa')}"
    )
    return 1 if report.failed else 0


def device_figures(report: Report) -> None:
    """Find what the device says of itself: clocks, the flush, and what it hides."""
    report.put("clocks, idle", output_of(_smi(f"--query-gpu={_CLOCKS}")))
    report.attempt("clocks, busy", busy)
    timer = timer_for("cuda:0")
    assert isinstance(timer, CudaTimer)
    report.attempt("flush_us", lambda: flush_us(timer))
    report.attempt(
        "nothing, behind the flush, us", lambda: 1e3 * timer.sample(_nothing, 5, cold=True)
    )
    report.attempt("ten host operations that compute nothing", lambda: hidden(timer))


def busy() -> str:
    """Return the clocks after half a second of products."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()
    return output_of(_smi(f"--query-gpu={_CLOCKS}"))


def flush_us(timer: CudaTimer) -> float:
    """Return how long the device takes to evict its L2, as the timer does it before each cold sample."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    timer._flush()
    first.record()
    for _ in range(20):
        timer._flush()
    last.record()
    last.synchronize()
    return round(50 * first.elapsed_time(last), 1)


def hidden(timer: CudaTimer) -> dict[str, float]:
    """Return the time of ten tiny kernels behind a flush and behind half a millisecond: a difference is host time."""
    ones = torch.ones(1, device="cuda")

    def ten() -> None:
        for _ in range(10):
            ones.add_(1)

    spans: list[float] = []
    for _ in range(5):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_SLEEP_CYCLES)
        first.record()
        ten()
        last.record()
        last.synchronize()
        spans.append(1e3 * first.elapsed_time(last))
    flushed_us = 1e3 * timer.sample(ten, 5, cold=True)
    return {
        "behind_flush_us": round(flushed_us, 1),
        "behind_sleep_us": round(statistics.median(spans), 1),
    }


def products(report: Report, sizes: Sizes) -> None:
    """Find the host time of a product with few rows: eager, stock, the plugin, and forced kernels."""
    x = torch.randn(sizes.rows, sizes.width, device=sizes.device, dtype=sizes.dtype)
    w = torch.randn(sizes.width, sizes.width, device=sizes.device, dtype=sizes.dtype)

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, w.t())

    host(report, "mm eager", lambda: product(x, w), sizes)
    compiled(report, "mm stock", None, product, (x, w), sizes)
    compiled(report, "mm plugin", "", product, (x, w), sizes)
    for name, prefix in sizes.product:
        compiled(report, f"mm {name}", prefix, product, (x, w), sizes)


def attentions(report: Report, sizes: Sizes) -> None:
    """Find the host time of a short attention: eager, the plugin, and forced kernels."""
    shape = (1, 32, sizes.keys, 128)
    q = torch.randn(*shape, device=sizes.device, dtype=sizes.dtype)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    host(report, "sdpa eager", lambda: attention(q, q, q), sizes)
    compiled(report, "sdpa plugin", "", attention, (q, q, q), sizes)
    for name, prefix in sizes.attention:
        compiled(report, f"sdpa {name}", prefix, attention, (q, q, q), sizes)


def compiled(
    report: Report,
    name: str,
    prefix: str | None,
    function: Callable[..., torch.Tensor],
    tensors: tuple[torch.Tensor, ...],
    sizes: Sizes,
) -> None:
    """Compile a call and find its host time.

    Args:
        report: Receives it.
        name: The figure's name.
        prefix: Beginning of the candidate that is forced; empty to let the plugin decide, None for stock.
        function: The call.
        tensors: Its operands.
        sizes: What is computed.
    """

    def find() -> dict[str, Any]:
        torch._dynamo.reset()
        began = time.monotonic()
        if prefix is None:
            call = torch.compile(function, options={"max_autotune": True})
            call(*tensors)
            taken = [""]
        else:
            call = torch.compile(function, backend="inductor_plugin", options=_options(sizes))
            taken = _first_call(call, tensors, prefix)
        seconds = round(time.monotonic() - began, 1)
        timed = _host(lambda: call(*tensors), timer_for(sizes.device))
        return {"first_call_s": seconds, "taken": taken, **timed}

    report.attempt(name, find)


def _first_call(call: Callable[..., Any], tensors: tuple[Any, ...], prefix: str) -> list[str]:
    """Call it for the first time; return what was forced to win."""
    if not prefix:
        call(*tensors)
        return []
    with forced(prefix) as taken:
        call(*tensors)
    if not taken or not all(is_named(each, prefix) for each in taken):
        raise LookupError(f"nothing that begins with {prefix!r} won: {taken}"[:500])
    return sorted(set(taken))


def _options(sizes: Sizes) -> dict[str, Any]:
    backends = "ATEN" if sizes.device == "cpu" else "ATEN,TRITON,CUTLASS"
    return {
        "cache_dir": str(default_cache_dir()),
        "table": "off",
        "progress": "off",
        "max_candidates": 8,
        "gemm_backends": backends,
    }


def host(report: Report, name: str, call: Call, sizes: Sizes) -> None:
    """Find the host time of a call that is not compiled."""
    report.attempt(name, lambda: _host(call, timer_for(sizes.device)))


def _host(call: Call, timer: Timer) -> dict[str, float]:
    """Return microseconds a call: of the host alone, and until the device has ended."""
    calls = CALLS["cuda" if isinstance(timer, CudaTimer) else "cpu"]
    for _ in range(calls // 10):
        call()
    timer.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    host_s = time.perf_counter() - began
    timer.synchronize()
    wall_s = time.perf_counter() - began
    return {"host_us": round(1e6 * host_s / calls, 1), "wall_us": round(1e6 * wall_s / calls, 1)}


def memory() -> dict[str, Any]:
    """Return the device memory of this process and of the others: the worker is one of them."""
    if not torch.cuda.is_available():
        return {}
    apps = output_of(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    )
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    own = torch.cuda.memory_reserved()
    return {
        "pid": os.getpid(),
        "processes": apps.splitlines(),
        "used_mib": (total_bytes - free_bytes) >> 20,
        "own_mib": own >> 20,
    }


def shown(report: Report, kind: str) -> str:
    """Return the host times of a kind of call in one line."""
    parts = [
        f"{name.removeprefix(kind).strip()} {value.get('host_us', 'failed')}"
        for name, value in report.figures.items()
        if name.startswith(kind) and isinstance(value, dict)
    ]
    return ", ".join(parts)


def _nothing() -> None:
    """Do nothing."""


def _smi(query: str) -> list[str]:
    return ["nvidia-smi", query, "--format=csv,noheader"]


if __name__ == "__main__":
    sys.exit(main())
