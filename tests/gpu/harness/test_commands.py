"""Each step's arguments are read by the parser of the module that it runs, none abbreviated."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.session import plan
from tests.gpu.session.step import Step

PLAN = plan.plan(Path("results"), Path("kernels"), Path("some.pack"))
EVERY = {
    f"{step.name}, {step.part}": step
    for step in (*PLAN, *plan.cpu(Path("results"), Path("kernels")))
}
MODULES = {name: step for name, step in EVERY.items() if step.command[1] != "pytest"}
TESTS = {name: step for name, step in EVERY.items() if step.command[1] == "pytest"}


class ReadError(Exception):
    """What a module's parser has made of the arguments; the module goes no further."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = vars(options)


def read(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options that a module reads of ``-m MODULE ARGUMENTS``.

    Raises:
        SystemExit: Its parser refuses them.
    """
    parse, init = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.__init__

    def created(self: argparse.ArgumentParser, *arguments: Any, **more: Any) -> None:
        init(self, *arguments, **more | {"allow_abbrev": False})

    def parsed(self: argparse.ArgumentParser, arguments: Any = None, namespace: Any = None) -> Any:
        raise ReadError(parse(self, arguments, namespace))

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "__init__", created)
        patched.setattr(argparse.ArgumentParser, "parse_args", parsed)
        patched.setattr(sys, "argv", [command[1], *command[2:]])
        # `runpy` warns of a module that another test has imported.
        for module in (command[1], f"{command[1]}.__main__"):
            patched.delitem(sys.modules, module, raising=False)
        with pytest.raises(ReadError) as error:
            runpy.run_module(command[1], run_name="__main__")
    return error.value.options


@pytest.mark.parametrize("name", MODULES)
def test_a_module_reads_the_arguments_of_its_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = MODULES[name]
    options = read((*step.command, *step.resume), monkeypatch)
    if step.part == "speed":
        assert step.limit_s > options["budget_s"] > 0
        assert str(options["out"]) in step.command
        assert options["arms"] is None or "ours" in options["arms"]
        assert not options["fresh"]
        assert read((*step.command, *step.anew), monkeypatch)["fresh"]
    elif step.command[1] == "inductor_plugin.cli":
        assert options["cache_dir"] == "kernels"
    elif "simulate" not in options:
        assert str(options["out"]).startswith("results/")


def test_what_no_parser_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, wrong in (
        ("speed: products, speed", "--armz"),
        ("speed: products, speed", "--budget"),
        ("pack, first", "--cache"),
    ):
        with pytest.raises(SystemExit):
            read((*EVERY[name].command, wrong, "1"), monkeypatch)


@pytest.mark.parametrize("name", TESTS)
def test_pytest_reads_the_arguments_of_its_step(
    name: str, pytestconfig: pytest.Config, repository: Path
) -> None:
    step = TESTS[name]
    for more in (step.resume, step.anew):
        options = taken(step, more, pytestconfig)
        places = [place.partition("::")[0] for place in options.file_or_dir]
        assert places
        assert all((repository / place).exists() for place in places)
        if step.part == plan.CPU:
            assert options.collectonly
        else:
            assert options.gpu_results == Path("results/tests.json")
            assert options.resume is bool(more)
            assert step.resume == ("--resume",)


def taken(step: Step, more: tuple[str, ...], config: pytest.Config) -> argparse.Namespace:
    """Return the options of pytest and of ``tests/gpu/conftest.py`` for a step; each has to be known."""
    parser: pytest.Parser = config._parser  # pyright: ignore[reportPrivateUsage]
    options, unknown = parser.parse_known_and_unknown_args([*step.command[2:], *more])
    assert unknown == []
    return options
