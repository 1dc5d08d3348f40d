"""One way to compute a product and its epilogue, in a separate process that answers requests.

    python -m benchmarks.fusion.fused_arm ARM CACHE_DIR [--dry]

Arms: ``apart`` is the library's product and Inductor's pointwise kernel; ``stock`` is max-autotune;
``ours`` the plugin; ``triton`` and ``evt`` the plugin with a fused kernel of that kind forced to win,
from the records and kernels that ``ours`` has written.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo

from benchmarks.fusion.shapes import Fused, fused_products
from benchmarks.gemm.arm import DRY_SIZE, Prepared, serve
from benchmarks.harness.capture import capture_stream, graphed
from benchmarks.harness.dry_twin import DryTwin
from benchmarks.harness.error import error_of
from benchmarks.harness.forced import forced_fusion
from inductor_plugin.cache import Resources
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.registry import default_registry
from inductor_plugin.tuning.selection import Selection
from inductor_plugin.tuning.ticket import TuningTicket
from inductor_plugin.worker.jobs import Sampling
from inductor_plugin.worker.timer import repeats_for, timer_for

OURS = "ours"
FORCED = {"triton": "triton", "evt": "cutlass"}
"""Arms in which a fused kernel is forced to win, with their names in `benchmarks.harness.forced`."""


@dataclass
class Notes:
    """Predictions of the plugin about fusions, and its measurements.

    Attributes:
        predicted: For each estimated kernel: the prediction of `prune`, and whether it was kept.
        compiled: For each kernel compiled fused: predicted registers, and those of the compiler.
        measured_us: Median of the product alone, of both kernels, and of the best fused kernels.
        winner: The candidate that won; empty where no fusion was measured.
    """

    predicted: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    compiled: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    measured_us: dict[str, float] = field(default_factory=dict[str, float])
    winner: str = ""
    _lock: Any = field(default_factory=threading.Lock)

    def price(self, estimate: FusionEstimate, reason: str | None) -> None:
        """Record the prediction for a kernel with its epilogue."""
        predicted = estimate.prediction
        if predicted is None:
            return
        apart = predicted.separate_us
        row = _named(estimate) | {
            "registers": predicted.fused.registers,
            "spills": predicted.fused.spilled_bytes > 0,
            "separate_us": [apart.low, apart.expected, apart.high],
            "fused_extra_us": predicted.fused_extra_us.expected,
            "kept": reason is None,
            "reason": reason or "",
        }
        self._put(self.predicted, row)

    def compile(self, estimate: FusionEstimate, resources: Resources, reason: str | None) -> None:
        """Record the resources that the compiler reports."""
        predicted = estimate.prediction
        if predicted is None:
            return
        row = _named(estimate) | {
            "registers": resources.registers,
            "registers_predicted": predicted.fused.registers,
            "spills": resources.spills,
            "kept": reason is None,
            "reason": reason or "",
        }
        self._put(self.compiled, row)

    def decide(self, ticket: TuningTicket, winner: str | None) -> None:
        """Record the measured times."""
        names = {offer.candidate_id: offer.name for offer in ticket.offers}
        times_us = {
            name: 1e3 * candidate.median_ms
            for name, candidate in ticket.measured.items()
            if name in names and candidate.status == "ok" and candidate.median_ms is not None
        }
        with self._lock:
            if not ticket.problem.epilogue:
                if times_us:
                    self.measured_us["product"] = min(times_us.values())
                return
            self.winner = names.get(str(winner), "")
            for name, us in times_us.items():
                kind = kind_of(names[name])
                self.measured_us[kind] = min(us, self.measured_us.get(kind, math.inf))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "predicted": self.predicted,
            "compiled": self.compiled,
            "measured_us": self.measured_us,
            "winner": self.winner,
        }

    def _put(self, rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
        with self._lock:
            if row not in rows:
                rows.append(row)


def _named(estimate: FusionEstimate) -> dict[str, Any]:
    return {"template": estimate.kernel.template, "tile": list(estimate.kernel.tile)}


def kind_of(name: str) -> str:
    """Return ``unfused``, ``triton`` or ``evt`` for a candidate of a fusion."""
    if name.startswith("fused.cutlass"):
        return "evt"
    return "triton" if name.startswith("fused.") else "unfused"


@contextlib.contextmanager
def recorded(notes: Notes) -> Generator[None]:
    """Record the plugin's predictions, compiled kernels and decisions within the block."""
    why_not, why_not_compiled = FusionEstimate.why_not, FusionEstimate.why_not_compiled
    decide = Selection.decide

    def priced(estimate: FusionEstimate) -> str | None:
        reason = why_not(estimate)
        notes.price(estimate, reason)
        return reason

    def judged(estimate: FusionEstimate, resources: Resources) -> str | None:
        reason = why_not_compiled(estimate, resources)
        notes.compile(estimate, resources, reason)
        return reason

    def decided(selection: Selection, ticket: TuningTicket) -> Any:
        verdict = decide(selection, ticket)
        notes.decide(ticket, verdict.winner)
        return verdict

    with (
        mock.patch.object(FusionEstimate, "why_not", priced),
        mock.patch.object(FusionEstimate, "why_not_compiled", judged),
        mock.patch.object(Selection, "decide", decided),
    ):
        yield


def main() -> int:
    """Answer requests until stdin ends."""
    if "--dry" in sys.argv and sys.argv[1] == OURS:
        default_registry().register(DryTwin())
    return serve(prepare)


def prepare(
    arm: str, cache_dir: Path, request: Mapping[str, Any], *, dry: bool
) -> tuple[dict[str, Any], Prepared]:
    """Compile one product with its epilogue and check its numbers; return the report and the call."""
    shape = named(request["shape"])
    device = "cpu" if dry else "cuda:0"
    torch._dynamo.reset()
    tensors = shape.tensors(device, DRY_SIZE if dry else 0)
    notes, timer = Notes(), timer_for(device)
    options = options_of(arm, cache_dir)
    backend = "inductor_plugin" if arm in (OURS, *FORCED) else "inductor"
    compiled = torch.compile(shape.spec.function, backend=backend, options=options)
    timer.synchronize()
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        choices = stack.enter_context(forced_fusion(FORCED[arm])) if arm in FORCED else None
        if arm == OURS:
            stack.enter_context(recorded(notes))
        answer = compiled(*tensors)
    timer.synchronize()
    first_call_s = time.perf_counter() - started
    if choices is not None and (
        not choices or any(choice.startswith("none of") for choice in choices)
    ):
        raise LookupError(
            f"no fused {arm} kernel is offered" + "".join(f": {choice}" for choice in choices)
        )
    error = error_of(answer, shape.spec.function(*(tensor.float() for tensor in tensors)))
    if not math.isfinite(error):
        raise ArithmeticError("its result has values that are not finite, or another size")
    with capture_stream(device) as stream:
        call, captured = graphed(lambda: compiled(*tensors), stream)
    sampling = Sampling(warmup=5, samples=1, min_sample_ms=2.0, max_total_s=5.0, cold_cache=True)
    report: dict[str, Any] = {
        "first_call_s": first_call_s,
        "error": error,
        "accepted": shape.spec.accepted,
        "graph": captured,
    }
    report |= {"fusion": notes.to_dict()} if arm == OURS else {}
    return report, Prepared(call, device, repeats_for(timer, call, sampling))


def named(name: str) -> Fused:
    """Return a product by its name."""
    return next(product for product in fused_products() if product.name == name)


def options_of(arm: str, cache_dir: Path) -> dict[str, Any]:
    """Return the options of ``torch.compile`` in an arm."""
    if arm == "apart":
        return {"max_autotune": False}
    if arm == "stock":
        return {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
    return {
        "max_autotune": True,
        "cache_dir": str(cache_dir.parent / OURS / "plugin"),
        "table": "off",
        "progress": "off",
        "compile_timeout_s": 400,
        "gemm_backends": "ATEN,TRITON,CUTLASS",
    }


if __name__ == "__main__":
    sys.exit(main())
