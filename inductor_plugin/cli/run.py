"""The verbs that run a model or look at the machine: ``demo``, ``tune`` and ``doctor``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from inductor_plugin.cache import report
from inductor_plugin.cli.finding import render
from inductor_plugin.cli.verb import (
    Verb,
    announcement,
    cache_dir,
    check_target,
    force_argument,
    lines_to,
    named_cache,
    output_file,
    say,
)
from inductor_plugin.errors import CacheError, WorkerError, printable

if TYPE_CHECKING:
    from inductor_plugin.aot.tune import TunedProblem, TuneReport


def _demo_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="function that takes nothing and returns (model, example_inputs); "
        "a Llama-style decoder by default",
    )


def _demo(arguments: Namespace) -> int:
    from inductor_plugin.cli.demo import run_demo  # noqa: PLC0415  loads torch (2.5 s)

    folder = named_cache(arguments)
    if folder is not None:
        check_target(folder)
    try:
        demo = run_demo(arguments.model, folder, say=lines_to(arguments))
    except (
        WorkerError
    ) as error:  # the demonstration failed; another error says why it could not be done
        print(f"inductor-plugin demo: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(demo.to_dict(), indent=2))
        return 1 if demo.problems else 0
    for problem in demo.problems:
        print(f"inductor-plugin demo: {problem}", file=sys.stderr)
    print(
        f"Cache: {demo.cache_dir}\n"
        f"Next:  inductor-plugin ls --cache-dir {demo.cache_dir}\n"
        "       inductor-plugin demo --model your_module:your_function\n"
        '       torch.compile(model, backend="inductor_plugin", options={"max_autotune": True})'
    )
    return 1 if demo.problems else 0


def _tune_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODULE:FUNCTION",
        help="function that takes nothing and returns (model, example_inputs), or a list of sets of inputs",
    )
    parser.add_argument(
        "--training", action="store_true", help="the forward and the backward pass, not frozen"
    )
    parser.add_argument(
        "--dynamic",
        action="store_true",
        help="let all sizes be unknown; each set tunes the classes of its own",
    )
    parser.add_argument(
        "--pins", metavar="FILE", type=Path, help="also write the decisions, for policy=pinned"
    )
    force_argument(parser)


def _tune(arguments: Namespace) -> int:
    """Compile a model with each set of its inputs; options are read from the variables."""
    from inductor_plugin.aot.tune import TuneRequest, tune  # noqa: PLC0415  loads torch (2.5 s)

    pin_file = output_file(arguments.pins, force=arguments.force) if arguments.pins else None
    folder = cache_dir(arguments)
    if check_target(folder, named=bool(arguments.cache_dir)):
        lines_to(arguments)(printable(announcement(folder)))
    options = {"max_autotune": True, "cache_dir": str(folder)}
    if arguments.json:
        options |= {"table": "off", "progress": "off"}
    request = TuneRequest(
        model=arguments.model,
        options=options,
        training=arguments.training,
        dynamic=arguments.dynamic,
        pin_file=pin_file,
    )
    tuned = tune(request, say=lines_to(arguments))
    say(arguments, tuned.to_dict(), _tuned_text(tuned, folder, pin_file))
    if tuned.unwritten:
        raise CacheError(
            f"{tuned.unwritten} results are lost, for {folder} could not be written to; the warnings say why"
        )
    return 0


def _tuned_text(tuned: TuneReport, folder: Path, pin_file: Path | None) -> str:
    """Return the report as text: a line for each problem, those that gained most first."""
    problems = tuned.problems
    rows = ((p.key[:12], _gain(p), p.winner or "-", p.describe + _marks(p)) for p in problems)
    gained = sum((p.speedup or 1.0) > 1.0 for p in problems)
    lines = [report.columns(("KEY", "GAIN", "RUNS", "PROBLEM"), rows)] if problems else []
    lines.append(
        f"{len(problems)} problems, {sum(p.known for p in problems)} of them known; {gained} run a kernel that is "
        f"faster than the library's; {tuned.stats.benchmarked} candidates measured, {tuned.seconds:.0f} s"
    )
    if not problems:
        lines.append(
            "nothing was tuned: Inductor handed over no call with several candidates; `inductor-plugin doctor` says what "
            "is off here"
        )
    if any(p.provisional for p in problems):
        lines.append(
            "provisional: other work has prolonged samples, or the tuning budget ended before the finals; tune again on a "
            "quiet machine, or with a larger budget"
        )
    if tuned.frozen:
        lines.append("The weights were frozen; set TORCHINDUCTOR_FREEZING=1 where the model runs.")
    lines.append(f"Cache: {folder}")
    if pin_file is not None:
        lines.append(f"Pins:  {pin_file}    inductor-plugin check {pin_file}")
    return "\n".join(lines)


def _gain(problem: TunedProblem) -> str:
    return "-" if problem.speedup is None else f"{problem.speedup:.2f}x"


def _marks(problem: TunedProblem) -> str:
    return " (provisional)" if problem.provisional else ""


def _doctor_arguments(parser: ArgumentParser) -> None:
    del parser


def _doctor(arguments: Namespace) -> int:
    from inductor_plugin.cli.doctor import examine  # noqa: PLC0415  loads torch (2.5 s)

    findings = examine(named_cache(arguments))
    if arguments.json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        print(render(findings))
    return 1 if any(finding.state == "broken" for finding in findings) else 0


VERBS = (
    Verb("demo", "compile a model twice: tuned once, known ever after", _demo_arguments, _demo),
    Verb("tune", "compile and tune a model here, so that it is known", _tune_arguments, _tune),
    Verb("doctor", "what works here, what is off, why, and what to do", _doctor_arguments, _doctor),
)
