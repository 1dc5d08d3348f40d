"""Calls of the programs in `tutorials` on emulated GPUs, and what float64 says of the results."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.problem.target import Target, target
from tests.emulator.kernels import tutorials
from tests.emulator.kernels.triton import Program
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule

GPUS = [target(name) for name in ("A100", "H100", "B200")]
SCHEDULES = (EAGER, LATE, Schedule(late=True, ahead="last"), WATCHED)
HALF = torch.float16

Run = Callable[[Target, Schedule], list[tuple[torch.Tensor, torch.Tensor]]]
"""Runs a program; returns outputs, each with what float64 says."""


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.full(shape, math.nan).to(dtype)


def addition() -> Run:
    x, y = random(1000, dtype=torch.float32), random(1, 1000, dtype=torch.float32)[0]
    program = Program(tutorials.add, {"BLOCK": 256}, {"out"})

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out = empty(1000, dtype=torch.float32)
        program.run({"x": x, "y": y, "out": out, "count": 1000}, (4, 1, 1), gpu, schedule)
        return [(out, x.double() + y.double())]

    return run


def softmax() -> Run:
    x = random(19, 781, dtype=torch.float32)
    program = Program(tutorials.softmax, {"BLOCK": 1024, "STAGES": 3}, {"out"}, warps=8)

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out = empty(19, 781, dtype=torch.float32)
        program.run({"out": out, "x": x, "rows": 19, "columns": 781}, (5, 1, 1), gpu, schedule)
        return [(out, x.double().softmax(-1))]

    return run


def matmul() -> Run:
    m, n, k = 200, 136, 104
    a, b = random(m, k), random(k, n)
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 3}
    program = Program(tutorials.matmul, blocks, {"c"}, stages=4)

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        c = empty(m, n)
        arguments = {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}
        program.run(arguments, (4 * 3, 1, 1), gpu, schedule)
        expected = torch.nn.functional.leaky_relu(a.double() @ b.double(), 0.01)
        return [(c, expected)]

    return run


@dataclass(frozen=True)
class Norm:
    """Operands of a layer norm, in float64, and what they give."""

    rows: int = 13
    columns: int = 200

    def inputs(self) -> dict[str, torch.Tensor]:
        wide = torch.float32
        shape = self.rows, self.columns
        return {
            "x": random(*shape),
            "dy": random(*shape[::-1]).reshape(shape),
            "weight": random(self.columns, dtype=wide),
            "bias": random(1, self.columns, dtype=wide)[0],
        }

    def expected(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        leaves = {name: value.double().requires_grad_() for name, value in inputs.items()}
        x, weight, bias = leaves["x"], leaves["weight"], leaves["bias"]
        y = torch.nn.functional.layer_norm(x, (self.columns,), weight, bias, 1e-5)
        dx, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), inputs["dy"].double())
        mean = x.mean(-1)
        rstd = (x.var(-1, unbiased=False) + 1e-5).rsqrt()
        values = {"y": y, "mean": mean, "rstd": rstd, "dx": dx, "dw": dweight, "db": dbias}
        return {name: value.detach() for name, value in values.items()}


def layer_norm() -> Run:
    norm = Norm()
    inputs = norm.inputs()
    expected = norm.expected(inputs)
    program = Program(tutorials.layer_norm, {"BLOCK": 128}, {"y", "means", "rstds"})

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        y, wide = empty(norm.rows, norm.columns), torch.float32
        means, rstds = empty(norm.rows, dtype=wide), empty(norm.rows, dtype=wide)
        arguments: dict[str, Any] = {name: inputs[name] for name in ("x", "weight", "bias")}
        arguments |= {"y": y, "means": means, "rstds": rstds, "columns": norm.columns, "eps": 1e-5}
        program.run(arguments, (norm.rows, 1, 1), gpu, schedule)
        return [(y, expected["y"]), (means, expected["mean"]), (rstds, expected["rstd"])]

    return run


def layer_norm_gradient() -> Run:
    norm, groups = Norm(), 4
    inputs = norm.inputs()
    expected = norm.expected(inputs)
    program = Program(
        tutorials.layer_norm_gradient,
        {"BLOCK": 256, "GROUP": groups},
        {"dx", "dweight", "dbias", "locks"},
    )

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        dx, wide = empty(norm.rows, norm.columns), torch.float32
        sums = {
            name: empty(groups, norm.columns, dtype=wide) for name in ("dweight", "dbias")
        }  # the first of a group overwrites what is there
        arguments: dict[str, Any] = {name: inputs[name] for name in ("dy", "x", "weight")}
        arguments |= {"dx": dx, **sums, "columns": norm.columns}
        arguments |= {"means": expected["mean"].float(), "rstds": expected["rstd"].float()}
        arguments["locks"] = torch.zeros(2 * groups, dtype=torch.int32)
        program.run(arguments, (norm.rows, 1, 1), gpu, schedule)
        assert arguments["locks"].tolist() == [0] * groups + [1] * groups
        totals = [sums[name].double().sum(0) for name in ("dweight", "dbias")]
        wanted = (expected[name] for name in ("dx", "dw", "db"))
        return list(zip((dx, *totals), wanted, strict=True))

    return run


def attention(*, causal: bool) -> Run:
    heads, length, head = 2, 150, 64
    q, k, v = (random(heads, length + place, head)[:, place:].contiguous() for place in range(3))
    blocks = {"BLOCK_M": 64, "BLOCK_N": 32, "HEAD": head, "CAUSAL": causal}
    program = Program(tutorials.attention, blocks, {"out", "lse"})
    scale = 0.1

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        out, lse = empty(heads, length, head), empty(heads, length, dtype=torch.float32)
        arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        arguments |= {"scale": scale, "length": length}
        program.run(arguments, (3, heads, 1), gpu, schedule)
        scores = scale * (q.double() @ k.double().mT)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        expected = scores.softmax(-1) @ v.double()
        return [(out, expected), (lse, scores.logsumexp(-1) / math.log(2))]

    return run


def persistent(*, specialize: bool) -> Run:
    m, n, k = 300, 136, 200
    a, b = random(m, k), random(n, k)
    blocks = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "SPECIALIZE": specialize}
    program = Program(tutorials.persistent, blocks, {"c"})

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        c = empty(m, n)
        arguments = {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}
        program.run(arguments, (4, 1, 1), gpu, schedule)
        return [(c, a.double() @ b.double().T)]

    return run


def scaled() -> Run:
    m, n, k = 128, 64, 256
    a, b = (random(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
    generator = torch.Generator().manual_seed(1)
    powers = [
        torch.randint(124, 131, (rows, k // 32), generator=generator).to(torch.uint8)
        for rows in (m, n)
    ]
    blocks = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 128}
    program = Program(tutorials.scaled, blocks, {"c"})

    def wide(numbers: torch.Tensor, power: torch.Tensor) -> torch.Tensor:
        factors = torch.exp2(power.double() - 127).repeat_interleave(32, dim=1)
        return numbers.double() * factors

    def run(gpu: Target, schedule: Schedule) -> list[tuple[torch.Tensor, torch.Tensor]]:
        c = empty(m, n, dtype=torch.float32)
        arguments: dict[str, Any] = {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}
        arguments |= {"scales_a": powers[0], "scales_b": powers[1]}
        program.run(arguments, (1, 1, 1), gpu, schedule)
        return [(c, wide(a, powers[0]) @ wide(b, powers[1]).T)]

    return run


PROGRAMS: dict[str, Run] = {
    "vector addition": addition(),
    "softmax": softmax(),
    "matrix product": matmul(),
    "layer norm": layer_norm(),
    "layer norm, gradient": layer_norm_gradient(),
    "attention": attention(causal=False),
    "causal attention": attention(causal=True),
    "persistent product": persistent(specialize=False),
    "persistent product, specialized warps": persistent(specialize=True),
    "scales of 32": scaled(),
}
TOLERANCES = {HALF: 4e-3, torch.float32: 4e-6, torch.float64: 4e-6}
"""Largest accepted error, relative to 1 and the number: a few roundings of the output."""


def absent(name: str, gpu: Target) -> str:
    """Return why there is no such program for a GPU, or nothing if there is one."""
    if name.startswith("persistent") and gpu.capability < (9, 0):
        return "tensor descriptors are read by TMA"
    if name == "scales of 32" and gpu.capability < (8, 9):
        return "Triton has float8_e4m3fn from compute capability 8.9 on"
    return ""


def error(name: str, gpu: Target, schedule: Schedule) -> float:
    """Run a program; return the largest error of its outputs, in units of what is accepted of their type.

    Raises:
        FaultError: It does what no GPU allows.
        PtxError: It has an instruction that is not known.
    """
    worst = 0.0
    for got, expected in PROGRAMS[name](gpu, schedule):
        errors = (got.double() - expected).abs() / (1 + expected.abs())
        largest = float(errors.max()) / TOLERANCES[got.dtype]
        worst = math.inf if math.isnan(largest) else max(worst, largest)
    return worst
