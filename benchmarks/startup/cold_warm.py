"""Cold compile, warm compile and run time: stock max-autotune against the plugin.

Each figure comes from a separate process. A round is: stock and the plugin, each without
max-autotune, then each with it (cold, then warm), all with fresh caches; every other round runs
backwards. The tuning part is a cold compile minus the same compile, of the same backend, without
max-autotune: the plugin also shortens other parts, which must not count as tuning.

    python -m benchmarks.startup.cold_warm --rounds 3 --out benchmarks/results/cold_warm_cpu.json
"""

# torch types some of its functions partly.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.child import child_environment
from benchmarks.harness.repository import REPOSITORY
from benchmarks.harness.sources import PLUGIN, sources_digest

VARIANTS = ("plain", "plugin-plain", "stock", "plugin")


def main() -> int:
    """Run the rounds, print the medians and ratios, and write them to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child, arguments.device)))
        return 0
    runs: dict[str, list[dict[str, Any]]] = {}
    for number in range(arguments.rounds):
        for variant in VARIANTS if number % 2 == 0 else reversed(VARIANTS):
            for state, report in pair(variant, arguments.device).items():
                runs.setdefault(f"{variant} {state}", []).append(report)
                print(f"{number} {variant:12s} {state}: {json.dumps(report)}", flush=True)
    result = {"machine": machine(), "summary": summary(runs), "runs": runs}
    print(json.dumps(result["summary"], indent=2))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def pair(variant: str, device: str) -> dict[str, dict[str, Any]]:
    """Return a cold and a warm run on fresh caches; without max-autotune only the cold one."""
    folder = tempfile.mkdtemp(prefix="cold-warm-")
    try:
        states = ("cold",) if "plain" in variant else ("cold", "warm")
        return {state: run(variant, device, folder) for state in states}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    variant: str, device: str, folder: str, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what one process reports.

    Args:
        variant: One of `VARIANTS`.
        device: Type of the device.
        folder: Folder of its caches.
        variables: Further variables of its environment.
    """
    folders = {
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "INDUCTOR_PLUGIN_CACHE_DIR": f"{folder}/plugin",
    }
    environment = child_environment(**folders, **(variables or {}))
    command = [
        sys.executable,
        "-m",
        "benchmarks.startup.cold_warm",
        "--child",
        variant,
        "--device",
        device,
    ]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"{variant} failed:\n{done.stderr[-3000:]}")
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**report, "process_s": time.perf_counter() - start}


def child(variant: str, device: str) -> dict[str, Any]:
    """Compile a decoder block (d=512, 8 heads, batch 4 x 128) and time its first and later calls."""
    import torch
    import torch._inductor.config as inductor_config

    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    block = decoder_block(torch).eval().to(device, dtype)
    x = torch.randn(4, 128, 512, device=device, dtype=dtype)
    inductor_config.freezing = True
    with torch.no_grad():
        expected = block(x)
        # Stock imports Inductor (2 s) in `torch.compile`, a named backend in the first call.
        start = time.perf_counter()
        if variant == "plugin":
            compiled = torch.compile(block, backend="inductor_plugin")
        elif variant == "plugin-plain":
            off: Any = {"max_autotune": False}
            compiled = torch.compile(block, backend="inductor_plugin", options=off)
        else:
            compiled = torch.compile(block, options={"max_autotune": variant == "stock"})
        actual = compiled(x)
        compile_s = time.perf_counter() - start
        error = (actual.float() - expected.float()).abs().max().item()
        report = {"compile_s": compile_s, "run_ms": run_ms(compiled, x, torch), "error": error}
    if variant == "plugin":
        import inductor_plugin

        report["stats"] = inductor_plugin.stats().to_dict()
    return report


def run_ms(compiled: Any, x: Any, torch: Any) -> float:
    """Return the median milliseconds of a call."""
    samples: list[float] = []
    for _ in range(20):
        compiled(x)
    for _ in range(200):
        start = time.perf_counter()
        compiled(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def decoder_block(torch: Any) -> Any:
    """Return the block: attention and an MLP with residuals, 6 linear layers of 3 shapes."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, width: int = 512, heads: int = 8) -> None:
            super().__init__()
            self.heads = heads
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, tokens, width = x.shape
            y = self.norms[0](x)
            q, k, v = (
                layer(y).view(batch, tokens, self.heads, -1).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(mixed.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    return Block()


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return medians over the rounds, and the ratios the project promises."""

    def middle(name: str, field: str) -> float:
        return statistics.median(float(report[field]) for report in runs[name])

    plain, stock = middle("plain cold", "compile_s"), middle("stock cold", "compile_s")
    plugin = middle("plugin cold", "compile_s")
    plugin_plain = middle("plugin-plain cold", "compile_s")
    return {
        "plain_cold_s": plain,
        "plugin_plain_cold_s": plugin_plain,
        "stock_cold_s": stock,
        "plugin_cold_s": plugin,
        "stock_warm_s": middle("stock warm", "compile_s"),
        "plugin_warm_s": middle("plugin warm", "compile_s"),
        "stock_run_ms": middle("stock warm", "run_ms"),
        "plugin_run_ms": middle("plugin warm", "run_ms"),
        "stock_tuning_s": stock - plain,
        "plugin_tuning_s": plugin - plugin_plain,
        "tuning_ratio": (plugin - plugin_plain) / (stock - plain),
        # Against one common baseline, stock's: time that the plugin saves elsewhere counts, too.
        "tuning_ratio_to_stock_plain": (plugin - plain) / (stock - plain),
        "cold_ratio": plugin / stock,
        "warm_ratio": middle("plugin warm", "compile_s") / middle("stock warm", "compile_s"),
        "run_ratio": middle("plugin warm", "run_ms") / middle("stock warm", "run_ms"),
    }


def machine() -> dict[str, Any]:
    """Return the facts of the machine, and of which sources figures are: committed ones may be of an earlier program."""
    import torch

    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = {line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line}
    facts: dict[str, Any] = {
        "cpu": sorted(names),
        "cores": len(os.sched_getaffinity(0)),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "sources": sources_digest((*PLUGIN, "benchmarks/startup")),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda"] = torch.version.cuda
    return facts


if __name__ == "__main__":
    raise SystemExit(main())
