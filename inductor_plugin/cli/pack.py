"""The verbs that compile ahead of time: ``precompile`` and ``wheel``."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from inductor_plugin.cache import report
from inductor_plugin.cli.verb import (
    Verb,
    announcement,
    cache_dir,
    check_target,
    count,
    force_argument,
    lines_to,
    output_file,
    say,
)
from inductor_plugin.config import Config
from inductor_plugin.errors import printable

if TYPE_CHECKING:
    from inductor_plugin.aot.precompile import PackReport


def _precompile_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        metavar="GPU",
        help="the GPU to compile for: H100, H200, A100, B200 ...; `here` for this machine's; by default "
        "that of --standard, else H100",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        action="append",
        default=[],
        help="function that takes nothing and returns (model, example_inputs), or a list of sets of "
        "inputs; may be given several times",
    )
    parser.add_argument(
        "--standard",
        metavar="ARCH",
        help="the products of common language models, for sm_80, sm_89, sm_90a or sm_100a",
    )
    parser.add_argument("--dynamic", action="store_true", help="let all sizes be unknown")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="the file to write; GPU.pack by default"
    )
    force_argument(parser)
    parser.add_argument(
        "--backends",
        default="ATEN,TRITON,CUTLASS",
        help="as the option gemm_backends; %(default)s by default",
    )
    parser.add_argument(
        "--max-candidates",
        type=count,
        metavar="N",
        default=0,
        help="kernels of one problem; 0 for all",
    )
    parser.add_argument("--nvcc", default="", help="as the option of this name")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="also measure all problems into the cache, on one GPU at a time of a node of the cluster bench_farm that has it",
    )


def _precompile(arguments: Namespace) -> int:
    from inductor_plugin.aot.precompile import Request, precompile  # noqa: PLC0415  loads torch (2.5 s)
    from inductor_plugin.aot.standard import for_arch  # noqa: PLC0415

    gpu = arguments.target or (for_arch(arguments.standard).name if arguments.standard else "H100")
    out = arguments.out or Path(f"{gpu.replace(' ', '_')}.pack")
    output_file(out, force=arguments.force)  # before minutes of compiling
    folder = cache_dir(arguments)
    if check_target(folder, named=bool(arguments.cache_dir)):
        lines_to(arguments)(printable(announcement(folder)))
    config = Config.load(
        {
            "cache_dir": str(folder),
            "gemm_backends": arguments.backends,
            "max_candidates": arguments.max_candidates,
            "nvcc": arguments.nvcc,
            "table": "off",
            "policy": "build",
        }
    )
    request = Request(
        target=gpu,
        models=tuple(arguments.model),
        out=out,
        config=config,
        dynamic=arguments.dynamic,
        standard=arguments.standard or "",
        measure=arguments.measure,
    )
    packed = precompile(request, say=lines_to(arguments))
    say(arguments, packed.to_dict(), _text(packed, signed=bool(config.signing_key)))
    return 0


def _text(packed: PackReport, *, signed: bool) -> str:
    """Return the report as text."""
    trust = "" if signed else "--trust "
    counts = packed.to_dict()["counts"]
    lines = [
        f"{problem.problem}: {len(problem.kernels)} kernels"
        + (f", {len(problem.failed)} not compiled" if problem.failed else "")
        for problem in packed.problems
    ]
    instructions = ", ".join(f"{n} with {name}" for name, n in counts["instructions"].items())
    lines += [
        "",
        f"{packed.file}: {counts['cutlass']} CUTLASS kernels ({instructions or 'none'}), "
        f"{counts['triton']} Triton kernels, {counts['spilling']} spill; "
        f"{report.size_text(packed.bytes)}, read back and checked",
        f"{packed.stats.compiled} compiled now, {len(packed.kernels) - packed.stats.compiled} were in the "
        f"cache; {packed.seconds:.0f} s",
        *(f"warning: {warning}" for warning in packed.warnings),
        f"Next:  inductor-plugin import {trust}{packed.file}    on the machine with the {packed.pack.target}",
        f"       inductor-plugin wheel {packed.file}     to install it with pip",
    ]
    return "\n".join(lines)


def _wheel_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pack", metavar="PACK", type=Path, help="written by `precompile`")
    parser.add_argument("--name", help="name of the distribution; by default from the pack's GPU")
    parser.add_argument("--version", default="1", help="version of the distribution; 1 by default")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="folder of the wheel; here by default",
    )


def _wheel(arguments: Namespace) -> int:
    from inductor_plugin.cache.transfer.wheel import write_wheel  # noqa: PLC0415  27 ms of imports

    wheel = write_wheel(
        arguments.pack, arguments.out, name=arguments.name, version=arguments.version
    )
    fields = {**asdict(wheel), "file": str(wheel.file)}
    say(
        arguments,
        json.loads(json.dumps(fields)),
        f"{printable(str(wheel.file))}: pip install it beside the plugin",
    )
    return 0


VERBS = (
    Verb(
        "precompile",
        "compile a model's kernels for a GPU that need not be here, into one file",
        _precompile_arguments,
        _precompile,
    ),
    Verb("wheel", "make a pack installable with pip", _wheel_arguments, _wheel, cache=False),
)
