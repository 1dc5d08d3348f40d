"""Matrix products on a GPU: seconds to tune and milliseconds to run, against stock max-autotune.

python benchmarks/gemm_gpu.py [--cases NAME ...] [--out FILE] [--dry]

Each measurement is a process of its own. ``cold`` finds empty caches, ``warm`` all that the cold
process left, and ``shipped`` the plugin's cache alone, as on another machine. ``--dry`` goes the
same way with tiny sizes on the CPU, to check the benchmark itself. Compiled, not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent / "results" / "gemm_gpu.json"
ARMS = {"stock": ("cold", "warm"), "plugin": ("cold", "warm", "shipped")}
TIMEOUT_S = 1800.0

CASES: dict[str, tuple[tuple[int, int, int], bool]] = {
    "decode 16x4096x4096": ((16, 4096, 4096), False),
    "decode 64x14336x4096": ((64, 14336, 4096), False),
    "prefill 2048x4096x4096": ((2048, 4096, 4096), False),
    "square 8192": ((8192, 8192, 8192), False),
    "linear and relu 4096x4096x14336": ((4096, 4096, 14336), True),
    "odd 3000x3000x1111": ((3000, 3000, 1111), False),
}
"""Rows, columns and reduction of each case, and whether a bias and a ReLU follow."""


def main() -> int:
    """Run all cases, or one as a child."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--child", nargs=2, metavar=("ARM", "CACHE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measured(arguments.cases[0], *arguments.child, dry=arguments.dry)))
        return 0
    import torch  # the children's time is measured, not this one's

    if not arguments.dry and not torch.cuda.is_available():
        print("No CUDA device here; --dry checks the benchmark without one.")
        return 0
    rows = [row for case in arguments.cases for row in rows_of(case, dry=arguments.dry)]
    device = "cpu (dry run)" if arguments.dry else torch.cuda.get_device_name()
    report = {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": device,
        "torch": str(torch.__version__),
        "dry": arguments.dry,
        "rows": rows,
    }
    if not arguments.dry or arguments.out != OUT:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"Written to {arguments.out}.")
    return 0


def rows_of(case: str, *, dry: bool) -> list[dict[str, Any]]:
    """Measure one case: each arm, cold and then with caches."""
    rows: list[dict[str, Any]] = []
    for arm, states in ARMS.items():
        with tempfile.TemporaryDirectory(prefix="gemm-gpu-") as folder:
            for state in states:
                inductor = Path(folder) / ("empty" if state == "shipped" else "inductor")
                row: dict[str, Any] = {"case": case, "arm": arm, "state": state}
                row |= child(case, arm, Path(folder), inductor, dry=dry)
                rows.append(row)
                print(
                    f"{case:34} {arm:7} {state:7} "
                    + (row.get("failed") or f"{row['compile_s']:7.1f} s  {row['run_ms']:8.4f} ms"),
                    flush=True,
                )
    return rows


def child(case: str, arm: str, folder: Path, inductor: Path, *, dry: bool) -> dict[str, Any]:
    """Run one measurement in a process."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(inductor)}
    environment.pop("TRITON_CACHE_DIR", None)
    command = [sys.executable, __file__, "--cases", case, "--child", arm, str(folder / "plugin")]
    try:
        done = subprocess.run(
            [*command, *(["--dry"] if dry else [])],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"failed": str(error)}
    return json.loads(done.stdout.splitlines()[-1])


def measured(case: str, arm: str, cache: str, *, dry: bool) -> dict[str, Any]:
    """Compile one case and run it; what a child prints."""
    import torch

    import inductor_plugin
    from inductor_plugin.jobs import Sampling
    from inductor_plugin.measure import take_samples, timer_for

    (rows, columns, inner), epilogue = CASES[case]
    if dry:
        rows, columns, inner = 32, 48, 64
    device = "cpu" if dry else "cuda:0"
    torch.manual_seed(0)
    sizes = ((rows, inner), (inner, columns), (columns,))
    a, b, bias = (torch.randn(size, device=device, dtype=torch.bfloat16) for size in sizes)

    def function(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, a, b).relu() if epilogue else torch.mm(a, b)

    compiled: Callable[..., torch.Tensor]
    if arm == "stock":
        compiled = torch.compile(function, options={"max_autotune": True})
    else:
        options: dict[str, Any] = {"max_autotune": True, "cache_dir": cache, "table": "off"}
        compiled = torch.compile(function, backend="inductor_plugin", options=options)
    timer = timer_for(device)
    started = time.perf_counter()
    answer = compiled(a, b, bias)
    timer.synchronize()
    compile_s = time.perf_counter() - started
    expected = function(a.float(), b.float(), bias.float())
    error = (answer.float() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    sampling = Sampling(warmup=10, samples=50, min_sample_ms=1.0, max_total_s=3.0, cold_cache=True)
    times: dict[str, float] = {}
    for name, call in (("run_ms", compiled), ("eager_ms", function)):
        samples = sorted(take_samples(timer, lambda call=call: call(a, b, bias), sampling))
        times[name] = samples[len(samples) // 2]
    stats = inductor_plugin.stats().to_dict()
    return {"compile_s": compile_s, **times, "error": float(error), "stats": stats}


if __name__ == "__main__":
    raise SystemExit(main())
