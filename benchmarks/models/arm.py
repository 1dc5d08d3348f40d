"""One arm of the benchmark of whole networks: a process that compiles networks on a CPU and answers requests.

    python -m benchmarks.models.arm ARM CACHE_DIR --dry

``plain`` is torch.compile without max-autotune, ``stock`` with it, ``ours`` the plugin with its defaults, ``guarded`` the plugin
that always compares its graphs with those of library kernels (``verify_graph=on``). Weights are frozen for inference.
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor, nn

import inductor_plugin
from benchmarks.gemm.arm import Prepared, serve
from benchmarks.models.networks import NETWORKS
from benchmarks.models.plan import GUARDED
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import repeats_for, timer_for

_SAMPLING = Sampling(warmup=3, samples=1, min_sample_ms=60.0, max_total_s=10.0, cold_cache=False)
"""Calls of a whole network come after each other, as in use: what one has left in the caches the next finds there."""


def main() -> int:
    """Answer requests until stdin ends."""
    return serve(prepare, compiler)


def prepare(
    arm: str, cache_dir: Path, request: Mapping[str, Any], *, dry: bool
) -> tuple[dict[str, Any], Prepared]:
    """Compile a network and compare it with eager; return what to report, and the call to measure."""
    assert dry, "it runs on a CPU"
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = NETWORKS[request["network"]]()
    inductor_config.freezing = not request["training"]
    compiled = compiler(arm, cache_dir)(model.train(request["training"]))
    call = training(compiled, model, inputs) if request["training"] else inference(compiled, inputs)
    before = inductor_plugin.stats()
    started = time.perf_counter()
    result = call()
    first_call_s = time.perf_counter() - started
    spent = inductor_plugin.stats().since(before)
    report: dict[str, Any] = {
        "first_call_s": round(first_call_s, 3),
        "waited_s": round(spent.wall_s, 3),
        "problems": spent.problems,
        "measured": spent.benchmarked,
        "guard_s": round(spent.compare_s, 3),
        "graphs_compared": spent.graphs_compared,
        "graphs_reduced": spent.graphs_reduced,
        "graphs_left_out": spent.graphs_left_out,
        "error": _error(result, _eager(model, inputs, training=request["training"])),
    }
    repeats = repeats_for(timer_for("cpu"), call, _SAMPLING)
    return report, Prepared(call, "cpu", repeats, cold=_SAMPLING.cold_cache)


def compiler(arm: str, cache_dir: Path) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Return how an arm compiles a network or a function."""
    if arm in ("ours", GUARDED):
        options: dict[str, Any] = {
            "cache_dir": str(cache_dir / "plugin"),
            "progress": "off",
            "table": "off",
            **({"verify_graph": "on"} if arm == GUARDED else {}),
        }
        return lambda model: torch.compile(model, backend="inductor_plugin", options=options)
    stock: dict[str, Any] = {"max_autotune": arm == "stock"}
    return lambda model: torch.compile(model, options=stock)


def inference(model: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """Return a forward pass without gradients."""

    def call() -> Tensor:
        with torch.no_grad():
            return model(*inputs)

    return call


def training(
    compiled: Callable[..., Tensor], model: nn.Module, inputs: tuple[Tensor, ...]
) -> Callable[[], Tensor]:
    """Return a forward and a backward pass; the gradient of the first weight, or of the input, is what is compared."""
    first = differentiated(model, inputs)

    def call() -> Tensor:
        first.grad = None
        compiled(*inputs).float().square().mean().backward()
        assert first.grad is not None
        return first.grad

    return call


def differentiated(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return the tensor whose gradient is looked at: the first weight, the input where weights are in 8 bits."""
    return next(model.parameters(), inputs[0]).requires_grad_()


def _eager(model: nn.Module, inputs: tuple[Tensor, ...], *, training: bool) -> Tensor:
    if not training:
        return inference(model, inputs)()
    first = differentiated(model, inputs)
    gradient, first.grad = first.grad, None
    model(*inputs).float().square().mean().backward()
    expected, first.grad = first.grad, gradient
    assert expected is not None
    return expected


def _error(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference in units of the expected root mean square."""
    scale = float(expected.double().square().mean().sqrt()) or 1.0
    return float((result.double() - expected.double()).abs().max()) / scale


if __name__ == "__main__":
    raise SystemExit(main())
