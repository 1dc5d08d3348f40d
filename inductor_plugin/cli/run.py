"""The verbs that run a model or look at the machine: ``demo`` and ``doctor``."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from inductor_plugin.cli.verb import Verb, check_target, lines_to
from inductor_plugin.errors import WorkerError


def _demo_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="function that takes nothing and returns (model, example_inputs); "
        "a Llama-style decoder by default",
    )


def _demo(arguments: Namespace) -> int:
    from inductor_plugin.cli.demo import run_demo  # noqa: PLC0415  loads torch (2.5 s)

    folder = Path(arguments.cache_dir).expanduser() if arguments.cache_dir else None
    if folder is not None:
        check_target(folder)
    try:
        report = run_demo(arguments.model, folder, say=lines_to(arguments))
    except (
        WorkerError
    ) as error:  # the demonstration failed; another error says why it could not be done
        print(f"inductor-plugin demo: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=2))
        return 1 if report.problems else 0
    for problem in report.problems:
        print(f"inductor-plugin demo: {problem}", file=sys.stderr)
    print(
        f"Cache: {report.cache_dir}\n"
        f"Next:  inductor-plugin ls --cache-dir {report.cache_dir}\n"
        "       inductor-plugin demo --model your_module:your_function\n"
        '       torch.compile(model, backend="inductor_plugin", options={"max_autotune": True})'
    )
    return 1 if report.problems else 0


def _doctor_arguments(parser: ArgumentParser) -> None:
    del parser


def _doctor(arguments: Namespace) -> int:
    from inductor_plugin.cli.doctor import examine, render  # noqa: PLC0415  loads torch (2.5 s)

    findings = examine(Path(arguments.cache_dir).expanduser() if arguments.cache_dir else None)
    if arguments.json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        print(render(findings))
    return 1 if any(finding.state == "broken" for finding in findings) else 0


VERBS = (
    Verb("demo", "compile a model twice: tuned once, known ever after", _demo_arguments, _demo),
    Verb("doctor", "what works here, what is off, why, and what to do", _doctor_arguments, _doctor),
)
