"""What a CUTLASS kernel costs to build: CPU seconds and bytes, here and in Inductor's own way.

    python -m benchmarks.gemm.compile_speed [--kernels 8] [--out benchmarks/results/compile_speed_cpu.json]

``batch`` builds the best-ranked kernels of one product (Llama-3 8B, bf16, H200) as one translation
unit, the way the plugin does. ``alone`` builds the first of them by itself. ``inductor`` builds that
same kernel, behind the headers of Inductor's template, with the command line that Inductor's
`cuda_compile_command` gives (compile, then link). CPU seconds are those of the compilers (user and
system), so other work on the machine matters little. No GPU is needed.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import hashlib
import importlib
import inspect
import json
import os
import platform
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gemm.products import KINDS, kind, problem
from benchmarks.gemm.shapes import LAYERS, Shape, shapes
from benchmarks.harness.repository import RESULTS
from inductor_plugin.config import process_environment
from inductor_plugin.cost import nvidia
from inductor_plugin.kernels import nvcc
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem.target import target
from inductor_plugin.registry import default_registry
from inductor_plugin.template import CudaSource
from inductor_plugin.worker.child import compile as compile_child
from inductor_plugin.worker.jobs import CppCompileJob, Event

OUT = RESULTS / "compile_speed_cpu.json"
LIMITS = {"cpu_s_per_kernel": 10.0, "ratio": 0.25, "mb_per_kernel": 0.2, "ranking_ms": 5.0}
_INCLUDE = re.compile(r'^\s*(#include [<"].*[>"])\s*$', re.MULTILINE)


def main() -> int:
    """Measure, print, write; ends non-zero where a limit is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=8, help="kernels in the batch")
    parser.add_argument("--ranking-only", action="store_true", help="compile nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "limits": LIMITS, "ranking": ranking()}
    print(f"ranking: {json.dumps(report['ranking'])}", flush=True)
    if not arguments.ranking_only:
        toolkit = nvcc.find("", process_environment())
        if isinstance(toolkit, NoToolkit):
            print(toolkit.reason)
            return 1
        report["toolkit"] = {"nvcc": toolkit.version, "cutlass": toolkit.cutlass_version}
        report |= compiling(toolkit, arguments.kernels)
    kept = verdict(report)
    report["kept"] = kept
    print(json.dumps(kept, indent=1))
    if not arguments.ranking_only:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"Written to {arguments.out}.")
    return 0 if all(kept.values()) else 1


def verdict(report: dict[str, Any]) -> dict[str, bool]:
    """Return which limits are kept."""
    kept = {"ranking_ms": report["ranking"]["max_ms"] <= LIMITS["ranking_ms"]}
    if "batch" in report:
        batch = report["batch"]
        kept["cpu_s_per_kernel"] = batch["cpu_s_per_kernel"] <= LIMITS["cpu_s_per_kernel"]
        kept["mb_per_kernel"] = batch["mb_per_kernel"] <= LIMITS["mb_per_kernel"]
        kept["ratio"] = report["ratio"] <= LIMITS["ratio"]
    return kept


def compiling(toolkit: Toolkit, count: int) -> dict[str, Any]:
    """Build the batch, one kernel alone, and that kernel in Inductor's way."""
    sources = kernels(count)
    report: dict[str, Any] = {"symbols": [one.symbol for one in sources]}
    for name, chosen in (("batch", sources), ("alone", sources[:1])):
        report[name] = ours(toolkit, chosen)
        print(f"{name}: {json.dumps(report[name])}", flush=True)
    report["inductor"] = inductors(toolkit, sources[0])
    print(f"inductor: {json.dumps(report['inductor'])}", flush=True)
    report["ratio"] = report["batch"]["cpu_s_per_kernel"] / report["inductor"]["cpu_s"]
    report["ratio_alone"] = report["alone"]["cpu_s"] / report["inductor"]["cpu_s"]
    return report


def kernels(count: int) -> list[CppSource]:
    """Return the best-ranked Hopper kernels of Llama-3 8B's output projection, 4096 rows."""
    layer = next(one for one in LAYERS if one.label == "llama3-8b o")
    given = problem(Shape(layer, 4096), kind("bf16"), "tn", target("H200"))
    assert not isinstance(given, str)
    texts: dict[str, str] = {}
    for one in default_registry().get("cutlass").candidates(given):
        assert isinstance(one.kernel, CudaSource)
        texts.setdefault(one.kernel.symbol, one.kernel.text)
    if len(texts) < count or not all(texts.values()):
        raise SystemExit(f"{len(texts)} kernels are there, {count} wanted; is nvidia-cutlass?")
    return [
        CppSource(hashlib.sha256(text.encode()).hexdigest(), text, symbol)
        for symbol, text in list(texts.items())[:count]
    ]


def ours(toolkit: Toolkit, sources: list[CppSource]) -> dict[str, Any]:
    """Build kernels as the plugin's compile workers do."""
    with tempfile.TemporaryDirectory(prefix="compile-speed-") as folder:
        job = CppCompileJob(tuple(sources), nvcc.command(toolkit, "sm_90a"), folder, timeout_s=3600)
        clock = Clock()
        done = compile_child.run(job, _ignore)
        spent = clock.spent()
        failed = [one.reason for one in done if one.status != "ok"]
        if failed:
            raise SystemExit(f"a kernel does not compile: {failed[0]}")
        size = sum(Path(path).stat().st_size for path in {str(one.library) for one in done})
    count = len(sources)
    return spent | {
        "kernels": count,
        "units": len({one.library for one in done}),
        "cpu_s_per_kernel": spent["cpu_s"] / count,
        "mb_per_kernel": size / count / 1e6,
    }


def inductors(toolkit: Toolkit, source: CppSource) -> dict[str, Any]:
    """Build a kernel with Inductor's headers and command line, one translation unit for it alone."""
    utils: Any = importlib.import_module("torch._inductor.codegen.cuda.compile_utils")
    config: Any = importlib.import_module("torch._inductor.config")
    headers = inductors_headers()
    root = Path(toolkit.include_dirs[0]).parent
    with tempfile.TemporaryDirectory(prefix="compile-speed-") as folder:
        text, unit = Path(folder) / "kernel.cu", Path(folder) / "kernel.o"
        text.write_text("\n".join([*headers, source.source]), encoding="utf-8")
        kept = utils._cutlass_path
        utils._cutlass_path = lambda: str(root)
        try:
            with config.patch({"cuda.arch": "90", "cuda.cuda_cxx": toolkit.nvcc}):
                line = utils.cuda_compile_command([str(text)], str(unit), "o")
        finally:
            utils._cutlass_path = kept
        # Linking wants a libcuda that a machine without a driver lacks; compiling is the cost.
        command = shlex.split(line)
        more = [f"-I{one}" for one in (*toolkit.include_dirs[2:], random_headers(Path(folder)))]
        clock = Clock()
        subprocess.run([*command, *more], check=True, cwd=folder, timeout=3600)
        spent = clock.spent()
        size = unit.stat().st_size
    shown = [one for one in command if one.startswith(("-D", "-O", "-std", "-gencode", "--", "-t"))]
    return spent | {"kernels": 1, "object_mb": size / 1e6, "flags": shown, "headers": len(headers)}


def random_headers(folder: Path) -> Path:
    """Return a folder with cuRAND's headers: Inductor's include them, slim toolkits lack them.

    They are links to those of torch's own wheel, apart from the other headers there, which may be of
    another version than nvcc.
    """
    made = folder / "curand"
    made.mkdir()
    for package in nvcc.package_folders("nvidia"):
        for header in package.glob("cu*/include/curand*.h"):
            (made / header.name).symlink_to(header)
    return made


def inductors_headers() -> list[str]:
    """Return the include lines of Inductor's CUTLASS GEMM template (its ``header`` methods)."""
    importlib.import_module(
        "torch._inductor.select_algorithm"
    )  # or the imports below go in circles
    package = "torch._inductor.codegen.cutlass"
    base = importlib.import_module(f"{package}.template").CUTLASSTemplate
    gemm = importlib.import_module(f"{package}.gemm_template").CUTLASSGemmTemplate
    texts = [inspect.getsource(one.header) for one in (base, gemm)]
    lines = [line for text in texts for line in _INCLUDE.findall(text)]
    return [line for line in dict.fromkeys(lines) if "sparse" not in line]


def ranking() -> dict[str, Any]:
    """Return how long a product's candidates take to rank, over the shape list on an H200.

    All templates' `reject` and `candidates`, the best of five calls: NVIDIA's heuristics are asked
    anew each time, the texts of kernels are there. ``first`` is the first call of all, which also
    writes the texts that no product before it needed; they are kept per configuration. It is CPU
    time of this process: what else runs on the machine does not count. Garbage is not collected
    meanwhile, as with `timeit`: a collection takes 10 ms of one product in a thousand.
    """
    hopper, registry = target("H200"), default_registry()
    dense = [one for one in shapes() if not one.layer.groups]
    _named_ms(registry, problem(dense[0], KINDS[0], "tn", hopper))  # loads the heuristics' library
    samples: list[tuple[float, float, str]] = []
    for types in KINDS:
        for shape in dense:
            given = problem(shape, types, "tn", hopper)
            if isinstance(given, str):
                continue
            first = _named_ms(registry, given)
            again = min(_named_ms(registry, given) for _ in range(5))
            samples.append((again, first, f"{shape.label} {types.name}"))
    return {
        "problems": len(samples),
        **_spread([again for again, _, _ in samples]),
        "slowest": max(samples)[2],
        "first": _spread([first for _, first, _ in samples]),
    }


def ranking_calls(every: int = 9) -> int:
    """Return how many calls of Python functions it takes to rank a product's candidates, the median.

    They are the same on every machine. Where ranking took 2.7 ms, there were 21 000.

    Args:
        every: One in so many of the shape list is looked at, one kind of operands after the other.
    """
    hopper, registry = target("H200"), default_registry()
    dense = [one for one in shapes() if not one.layer.groups][::every]
    given = [problem(one, KINDS[i % len(KINDS)], "tn", hopper) for i, one in enumerate(dense)]
    counts: list[int] = []
    for one in given:
        if isinstance(one, str):
            continue
        _named_ms(registry, one)  # writes the texts of kernels that nobody needed before
        profile = cProfile.Profile()
        profile.runcall(_named_ms, registry, one)
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    return int(statistics.median(counts))


def _spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median_ms": statistics.median(ordered),
        "p95_ms": ordered[int(0.95 * len(ordered))],
        "max_ms": ordered[-1],
    }


def _named_ms(registry: Any, given: Any) -> float:
    """Return the milliseconds of CPU time that it takes to name a product's candidates."""
    nvidia.suggestions.cache_clear()
    gc.collect(0)
    gc.disable()
    try:
        started = time.process_time()
        for one in registry.for_op(given.op):
            if one.reject(given) is None:
                one.candidates(given)
        return (time.process_time() - started) * 1e3
    finally:
        gc.enable()


class Clock:
    """Wall seconds and CPU seconds of child processes since it was made."""

    def __init__(self) -> None:
        self._cpu_s, self._wall_s = _children_s(), time.monotonic()

    def spent(self) -> dict[str, float]:
        """Return both."""
        return {"cpu_s": _children_s() - self._cpu_s, "wall_s": time.monotonic() - self._wall_s}


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ignore(event: Event) -> None:
    del event


def machine() -> dict[str, Any]:
    """Return what the figures were taken on."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = {line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line}
    torch = importlib.import_module("torch")
    return {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": sorted(names),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


if __name__ == "__main__":
    sys.exit(main())
