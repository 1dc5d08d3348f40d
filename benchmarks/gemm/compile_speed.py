"""Build cost of a CUTLASS kernel: CPU seconds and bytes, with this plugin and with stock Inductor.

    python -m benchmarks.gemm.compile_speed [--kernels 8] [--out benchmarks/results/compile_speed_cpu.json]

``batch`` builds the best-ranked kernels of one product (Llama-3 8B, bf16, H200) as one translation
unit, the way the plugin does. ``alone`` builds the first of them by itself. ``inductor`` builds that
same kernel, after the headers of Inductor's template, with the command line of Inductor's
`cuda_compile_command` (compile, then link). CPU seconds are those of the compilers (user and
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
    """Measure, print, write; return 1 if a limit is exceeded."""
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
    """Return for each limit whether it is met."""
    kept = {"ranking_ms": report["ranking"]["max_ms"] <= LIMITS["ranking_ms"]}
    if "batch" in report:
        batch = report["batch"]
        kept["cpu_s_per_kernel"] = batch["cpu_s_per_kernel"] <= LIMITS["cpu_s_per_kernel"]
        kept["mb_per_kernel"] = batch["mb_per_kernel"] <= LIMITS["mb_per_kernel"]
        kept["ratio"] = report["ratio"] <= LIMITS["ratio"]
    return kept


def compiling(toolkit: Toolkit, count: int) -> dict[str, Any]:
    """Build the batch, its first kernel alone, and that kernel as Inductor does."""
    sources = kernels(count)
    report: dict[str, Any] = {"symbols": [source.symbol for source in sources]}
    for arm, selected in (("batch", sources), ("alone", sources[:1])):
        report[arm] = ours(toolkit, selected)
        print(f"{arm}: {json.dumps(report[arm])}", flush=True)
    report["inductor"] = inductors(toolkit, sources[0])
    print(f"inductor: {json.dumps(report['inductor'])}", flush=True)
    report["ratio"] = report["batch"]["cpu_s_per_kernel"] / report["inductor"]["cpu_s"]
    report["ratio_alone"] = report["alone"]["cpu_s"] / report["inductor"]["cpu_s"]
    return report


def kernels(count: int) -> list[CppSource]:
    """Return the best-ranked Hopper kernels of Llama-3 8B's output projection, 4096 rows."""
    layer = next(layer for layer in LAYERS if layer.label == "llama3-8b o")
    product = problem(Shape(layer, 4096), kind("bf16"), "tn", target("H200"))
    assert not isinstance(product, str)
    texts: dict[str, str] = {}
    for candidate in default_registry().get("cutlass").candidates(product):
        assert isinstance(candidate.kernel, CudaSource)
        texts.setdefault(candidate.kernel.symbol, candidate.kernel.text)
    if len(texts) < count or not all(texts.values()):
        raise SystemExit(f"{len(texts)} kernels are there, {count} wanted; is nvidia-cutlass?")
    return [
        CppSource(hashlib.sha256(text.encode()).hexdigest(), text, symbol)
        for symbol, text in list(texts.items())[:count]
    ]


def ours(toolkit: Toolkit, sources: list[CppSource]) -> dict[str, Any]:
    """Build kernels like the plugin's compile workers."""
    with tempfile.TemporaryDirectory(prefix="compile-speed-") as folder:
        job = CppCompileJob(tuple(sources), nvcc.command(toolkit, "sm_90a"), folder, timeout_s=3600)
        clock = Clock()
        results = compile_child.run(job, _ignore)
        spent = clock.spent()
        failed = [result.reason for result in results if result.status != "ok"]
        if failed:
            raise SystemExit(f"a kernel does not compile: {failed[0]}")
        size = sum(
            Path(path).stat().st_size for path in {str(result.library) for result in results}
        )
    count = len(sources)
    return spent | {
        "kernels": count,
        "units": len({result.library for result in results}),
        "cpu_s_per_kernel": spent["cpu_s"] / count,
        "mb_per_kernel": size / count / 1e6,
    }


def inductors(toolkit: Toolkit, source: CppSource) -> dict[str, Any]:
    """Build a kernel with Inductor's headers and command line, in a separate translation unit."""
    utils: Any = importlib.import_module("torch._inductor.codegen.cuda.compile_utils")
    config: Any = importlib.import_module("torch._inductor.config")
    headers = inductors_headers()
    root = Path(toolkit.include_dirs[0]).parent
    with tempfile.TemporaryDirectory(prefix="compile-speed-") as folder:
        text, unit = Path(folder) / "kernel.cu", Path(folder) / "kernel.o"
        text.write_text("\n".join([*headers, source.source]), encoding="utf-8")
        original = utils._cutlass_path
        utils._cutlass_path = lambda: str(root)
        try:
            with config.patch({"cuda.arch": "90", "cuda.cuda_cxx": toolkit.nvcc}):
                line = utils.cuda_compile_command([str(text)], str(unit), "o")
        finally:
            utils._cutlass_path = original
        # Linking needs libcuda, which a machine without a driver lacks; only compiling is expensive.
        command = shlex.split(line)
        include_flags = [
            f"-I{flag}" for flag in (*toolkit.include_dirs[2:], random_headers(Path(folder)))
        ]
        clock = Clock()
        subprocess.run([*command, *include_flags], check=True, cwd=folder, timeout=3600)
        spent = clock.spent()
        size = unit.stat().st_size
    flags = [
        flag for flag in command if flag.startswith(("-D", "-O", "-std", "-gencode", "--", "-t"))
    ]
    return spent | {"kernels": 1, "object_mb": size / 1e6, "flags": flags, "headers": len(headers)}


def random_headers(folder: Path) -> Path:
    """Return a folder with cuRAND's headers: Inductor's include them, slim toolkits lack them.

    They link to those of torch's wheel, without the other headers there, whose version may differ from
    nvcc's.
    """
    links = folder / "curand"
    links.mkdir()
    for package in nvcc.package_folders("nvidia"):
        for header in package.glob("cu*/include/curand*.h"):
            (links / header.name).symlink_to(header)
    return links


def inductors_headers() -> list[str]:
    """Return the include lines of Inductor's CUTLASS GEMM template (its ``header`` methods)."""
    importlib.import_module("torch._inductor.select_algorithm")  # avoids a circular import below
    package = "torch._inductor.codegen.cutlass"
    base = importlib.import_module(f"{package}.template").CUTLASSTemplate
    gemm = importlib.import_module(f"{package}.gemm_template").CUTLASSGemmTemplate
    texts = [inspect.getsource(template.header) for template in (base, gemm)]
    lines = [line for text in texts for line in _INCLUDE.findall(text)]
    return [line for line in dict.fromkeys(lines) if "sparse" not in line]


def ranking() -> dict[str, Any]:
    """Return the time to rank a product's candidates, over the shape list on an H200.

    All templates' `reject` and `candidates`, the best of five calls: NVIDIA's heuristics run in each
    call, the sources of kernels are cached. ``first`` is the first call, which also generates sources
    that no earlier product needed; they are cached per configuration. It is CPU time of this process,
    without other load of the machine. Garbage collection is off, as with `timeit`: a collection takes
    10 ms in one product of a thousand.
    """
    hopper, registry = target("H200"), default_registry()
    dense = [shape for shape in shapes() if not shape.layer.groups]
    _named_ms(registry, problem(dense[0], KINDS[0], "tn", hopper))  # loads the heuristics' library
    samples: list[tuple[float, float, str]] = []
    for types in KINDS:
        for shape in dense:
            product = problem(shape, types, "tn", hopper)
            if isinstance(product, str):
                continue
            first = _named_ms(registry, product)
            again = min(_named_ms(registry, product) for _ in range(5))
            samples.append((again, first, f"{shape.label} {types.name}"))
    return {
        "problems": len(samples),
        **_spread([again for again, _, _ in samples]),
        "slowest": max(samples)[2],
        "first": _spread([first for _, first, _ in samples]),
    }


def ranking_calls(every: int = 9) -> int:
    """Return the median number of Python calls to rank a product's candidates.

    It is the same on every machine. Ranking in 2.7 ms took 21 000 calls.

    Args:
        every: Step through the shape list, alternating the kinds of operands.
    """
    hopper, registry = target("H200"), default_registry()
    dense = [shape for shape in shapes() if not shape.layer.groups][::every]
    products = [
        problem(shape, KINDS[i % len(KINDS)], "tn", hopper) for i, shape in enumerate(dense)
    ]
    counts: list[int] = []
    for product in products:
        if isinstance(product, str):
            continue
        _named_ms(registry, product)  # generates sources that no earlier product needed
        profile = cProfile.Profile()
        profile.runcall(_named_ms, registry, product)
        counts.append(sum(entry.callcount for entry in profile.getstats()))
    return int(statistics.median(counts))


def _spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median_ms": statistics.median(ordered),
        "p95_ms": ordered[int(0.95 * len(ordered))],
        "max_ms": ordered[-1],
    }


def _named_ms(registry: Any, product: Any) -> float:
    """Return the milliseconds of CPU time to list a product's candidates."""
    nvidia.suggestions.cache_clear()
    gc.collect(0)
    gc.disable()
    try:
        started = time.process_time()
        for template in registry.for_op(product.op):
            if template.reject(product) is None:
                template.candidates(product)
        return (time.process_time() - started) * 1e3
    finally:
        gc.enable()


class Clock:
    """Wall seconds and CPU seconds of child processes since construction."""

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
    """Return the facts of the machine."""
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
