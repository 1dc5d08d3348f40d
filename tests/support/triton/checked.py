"""Puts generated Triton kernels, run in Triton's interpreter, through the benchmark worker's check of numbers.

`outcomes` starts one process for all, because Triton decides on import whether it interprets. There the generated module
is one operator and the case's reference in float32 another, which stands in for the library kernel.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import product_tolerance
from inductor_plugin.worker.child import bench
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.jobs import BenchCandidate, Outcome, Sampling, ScreenJob
from tests.support.repository import REPOSITORY
from tests.support.triton import interpreter
from tests.support.triton.lowering import Case, as_float

ONCE = Sampling(warmup=0, samples=1, min_sample_ms=0.0, max_total_s=60.0, cold_cache=False)
_LIBRARY: Any = torch.library.Library("interpreted", "FRAGMENT")


def outcomes(codes: Sequence[str], module: str, cases: str) -> list[Outcome]:
    """Return what the check makes of generated modules.

    Args:
        codes: The modules.
        module: Name of the module with the cases.
        cases: Name of the list there; an element's last part is the `Case`.
    """
    with tempfile.TemporaryDirectory() as folder:
        operands, answer = Path(folder) / "given", Path(folder) / "answer"
        operands.write_bytes(pickle.dumps((list(codes), module, cases)))
        environment = os.environ | {"TRITON_INTERPRET": "1", "TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, "-m", __name__, str(operands), str(answer)]
        subprocess.run(command, cwd=REPOSITORY, env=environment, timeout=500, check=True)
        return pickle.loads(answer.read_bytes())


def outcome(name: str, code: str, case: Case, folder: Path) -> Outcome:
    """Return what the check makes of one generated module."""
    inputs = tuple(
        TensorSpec(
            tuple(each.size),
            tuple(each.stride or torch.empty(tuple(each.size), device="meta").stride()),
            str(each.dtype).removeprefix("torch."),
            "cpu",
            seed=index + 1,
        )
        for index, each in enumerate(case.arguments)
    )
    reference = case.reference or case.function
    run = interpreter.loaded(code, folder)

    def expected(*tensors: torch.Tensor) -> torch.Tensor:
        (result,) = reference(*map(as_float, tensors))
        return result

    def computed(*tensors: torch.Tensor) -> torch.Tensor:
        (result,) = run(list(tensors))
        return result

    example = computed(*map(build, inputs))
    dtype = str(example.dtype).removeprefix("torch.")
    output = TensorSpec(tuple(example.shape), example.stride(), dtype, "cpu")
    library, candidate = (
        BenchCandidate(each, _operator(each, compute, len(inputs)), inputs, output, 0.0)
        for each, compute in ((f"{name}_library", expected), (name, computed))
    )
    accepted = product_tolerance(dtype, inputs[0].dtype, inputs[0].size[-1], tf32=False)
    job = ScreenJob(name, library, candidate, ONCE, NumberCheck(accepted))
    return bench.screen(job, lambda _event: None)


def _operator(name: str, compute: Callable[..., torch.Tensor], operands: int) -> OpKernel:
    """Register a function as an operator that writes to ``out``."""
    inputs = ", ".join(f"Tensor a{index}" for index in range(operands))
    _LIBRARY.define(f"{name}({inputs}, *, Tensor(x!) out) -> Tensor(x!)")
    _LIBRARY.impl(name, lambda *tensors, out: out.copy_(compute(*tensors)), "CPU")
    return OpKernel(f"interpreted::{name}")


def main() -> None:
    """Check all modules of a file."""
    interpreter.prepare()
    operands, answer = map(Path, sys.argv[1:])
    codes, module, name = pickle.loads(operands.read_bytes())
    cases: list[Any] = getattr(importlib.import_module(module), name)
    result: list[Outcome] = []
    for number, (code, case) in enumerate(zip(codes, cases, strict=True)):
        print(f"case {number}", flush=True)  # pytest shows it where the next line fails
        result.append(outcome(f"case{number}", code, case[-1], operands.parent))
    answer.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
