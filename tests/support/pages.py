"""Runs the snippets of a page of docs/ as a reader would, in their order.

    ```python                  runs in the page's namespace; what it prints is compared with a text block
    ```text title="prints"     that follows
    ```python title="FILE"     is written to the file; so is any other language with a title
    ```console                 `$ COMMAND` and what it writes to standard output: ... matches anything; no output is not compared
    ```sh                      runs in bash, which ends at the first command that fails
    <!-- run apart: SCENE -->  above a snippet: it runs in a test of its own, where what it needs is there (`tests/docs/test_apart.py`)
    <!-- not run: REASON -->   above a snippet: it is for another machine, or takes too long; `tests/docs/test_pages.py` lists all of them

What does not run with its page is looked at: its verbs and their options, extras, variables and targets of make have to exist.

A line ``--8<-- "FILE"`` includes a file of the repository, as it does on the site.

`python -m tests.support.pages PAGE` runs a page in the current folder, in a process of its own. With ``--given FILE`` each
snippet begins with the names that a Python file defines, and with nothing else: README.md's are parts of programs.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from pathlib import Path

from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from inductor_plugin.cli import VERBS, main
from inductor_plugin.config import PREFIX, option_names
from inductor_plugin.config.variables import ENABLE_VARIABLE
from tests.support.repository import REPOSITORY

DOCS = REPOSITORY / "docs"
CALM = REPOSITORY / "tests" / "support" / "calm"
_INFO = re.compile(r'(?P<language>\w+)(?: title="(?P<title>[^"\n]+)")?[^\n]*$\n', re.MULTILINE)
_NOT_RUN = re.compile(r"<!-- not run: (\S[^\n]*?) -->\s*\Z")
_APART = re.compile(r"<!-- run apart: (\w+) -->\s*\Z")
_INSTALLED = re.compile(r"^pip install .+$", re.MULTILINE)
INCLUDED = re.compile(r'^ *--8<-- "([^"]+)"$', re.MULTILINE)
_SEPARATE = {"bench", "demo", "doctor", "precompile", "tune"}
"""Verbs that compile, measure or look at the machine: they run in a process of their own."""
_ANSWERS = {"bench": {0, 1}}
"""Exit statuses of verbs that are answers: a winner may be slower on a busy machine, which no page can foresee."""


def page_file(name: str) -> Path:
    """Return the file of a page of docs/, or of the repository."""
    page = DOCS / name
    return page if page.exists() else REPOSITORY / name


def run_page(name: str, given: Path | None = None) -> int:
    """Run the snippets of a page in the current folder; return how many there are.

    Args:
        name: The page.
        given: A Python file with the names that each snippet begins with; by default a snippet has those of the ones before.

    Raises:
        SybilFailure: A snippet does not do what the page says.
    """
    names = runpy.run_path(str(given)) if given else None
    examples = list(Sybil([Snippets()]).parse(page_file(name)).examples())
    for example in examples:
        if names is not None:
            example.namespace.clear()
            example.namespace.update(names)
        example.evaluate()
    return len(examples)


def reasons(name: str) -> list[str]:
    """Return why snippets of a page are not run, in their order."""
    examples = Sybil([Snippets()]).parse(page_file(name)).examples()
    known = (reason_before(example.document.text, example.start) for example in examples)
    return [reason for reason in known if reason is not None]


def apart(name: str) -> list[tuple[str, str]]:
    """Return the snippets of a page that run apart, each with its scene."""
    examples = Sybil([Snippets()]).parse(page_file(name)).examples()
    known = ((_APART.search(each.document.text, 0, each.start), each) for each in examples)
    return [(match[1], str(each.parsed)) for match, each in known if match is not None]


def first_installation(page: Path) -> list[str]:
    """Return the words of the first command of a page that installs something, without its comment."""
    match = _INSTALLED.search(page.read_text(encoding="utf-8"))
    assert match is not None, page
    return shlex.split(match[0], comments=True)


def reason_before(text: str, start: int) -> str | None:
    """Return why the snippet that begins there is not run, None if it is."""
    match = _NOT_RUN.search(text, 0, start)
    return match[1] if match else None


def _is_left_out(text: str, start: int) -> bool:
    """Return whether the snippet that begins there does not run with its page."""
    return any(mark.search(text, 0, start) for mark in (_NOT_RUN, _APART))


class Snippets:
    """Finds the snippets of a page, and runs each."""

    def __init__(self) -> None:
        self._python = PythonEvaluator()
        self._printed = ""

    def __call__(self, document: Document) -> Iterable[Region]:
        """Yield each snippet with the function that runs it."""
        for region in RawFencedCodeBlockLexer(_INFO)(document):
            language, title = region.lexemes["language"], region.lexemes["title"]
            evaluators = {
                "python": self._run_python,
                "console": self._run_console,
                "sh": self._run_shell,
            }
            if language in evaluators and _is_left_out(document.text, region.start):
                region.evaluator = self._look
            elif language == "text" and title == "prints":
                region.evaluator = self._compare
            else:
                region.evaluator = self._write if title else evaluators.get(language)
            if region.evaluator is not None:
                region.parsed = region.lexemes["source"]
                yield region

    def _run_python(self, example: Example) -> str | None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            failure = self._python(example)
        self._printed = out.getvalue()
        return failure

    def _compare(self, example: Example) -> str | None:
        return difference(str(example.parsed), self._printed)

    def _write(self, example: Example) -> None:
        path = Path(example.region.lexemes["title"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(whole(str(example.parsed)), encoding="utf-8")

    def _run_console(self, example: Example) -> str | None:
        for command, expected in commands(str(example.parsed)):
            status, written = _run(command)
            if status not in _ANSWERS.get(_verb(command), {0}):
                return f"$ {command}\nended with status {status}:\n{written}"
            if expected and (failure := difference(expected, written)):
                return f"$ {command}\n{failure}"
        return None

    def _run_shell(self, example: Example) -> str | None:
        script = str(example.parsed)
        status, written = _in_bash(f"set -e\n{script}")
        return f"{script}\nended with status {status}:\n{written}" if status else None

    def _look(self, example: Example) -> str | None:
        """Return what a snippet that does not run with its page asks for and does not exist."""
        text = str(example.parsed)
        if example.region.lexemes["language"] == "python":
            ast.parse(text)
            return None
        lines = _lines(re.sub(r"^\$ ", "", text, flags=re.MULTILINE))
        return "\n".join(problem for line in lines for problem in unknown(line)) or None


def whole(text: str) -> str:
    """Return a snippet with the files that it includes."""
    return INCLUDED.sub(lambda match: (REPOSITORY / match[1]).read_text().rstrip("\n"), text)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a console, each with what it writes."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        while command.endswith("\\"):
            following, _, expected = expected.partition("\n")
            command = f"{command[:-1]}{following.removeprefix('> ')}"
        yield command, expected


def difference(expected: str, written: str) -> str | None:
    """Return how an output differs from what a page says, None if it does not; ``...`` matches anything."""
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS
    want, got = (
        "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"
        for text in (expected, written)
    )
    if checker.check_output(want, got, flags):
        return None
    return checker.output_difference(doctest.Example("", want), got, flags)


def unknown(line: str) -> Iterator[str]:
    """Yield what a line of a shell asks for and does not exist: a verb, an option, a package, an extra, a variable, a target."""
    for name in re.findall(rf"\b{PREFIX}(\w+)", line):
        if name.lower() not in option_names() and PREFIX + name != ENABLE_VARIABLE:
            yield f"no option has the variable {PREFIX}{name}"
    words = shlex.split(line, comments=True)
    if words[:2] == ["pip", "install"]:
        for requirement in words[2:]:
            yield from _not_installable(requirement)
    if words[:1] == ["make"]:
        makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
        targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
        yield from (f"make has no target {name!r}" for name in words[1:] if name not in targets)
    if "inductor-plugin" in words:
        yield from _refused(words[words.index("inductor-plugin") + 1 :])


def _not_installable(requirement: str) -> Iterator[str]:
    """Yield what pyproject.toml does not know of a requirement: the name, or an extra. A wheel is not looked at."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    (own, *_) = re.findall(r'^name = "([\w-]+)"$', text, re.MULTILINE)
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    known = re.findall(r"^([\w-]+) = \[", section, re.MULTILINE)
    match = re.fullmatch(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
    if match is None or match[1] not in (".", own):
        if not requirement.endswith(".whl"):
            yield f"pip install {requirement}: the package is {own!r}"
        return
    extras = match[2].split(",") if match[2] else []
    yield from (f"there is no extra {extra!r}" for extra in extras if extra not in known)


def _refused(words: list[str]) -> Iterator[str]:
    """Yield why a verb does not take its arguments."""
    verb = next((verb for verb in VERBS if words and verb.name == words[0]), None)
    if verb is None:
        yield f"there is no verb {' '.join(words[:1])!r}"
        return
    parser = ArgumentParser(prog=verb.name)
    parser.add_argument("--cache-dir")
    parser.add_argument("--json", action="store_true")
    verb.add_arguments(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words[1:])
    except SystemExit:
        yield said.getvalue()


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def _verb(command: str) -> str:
    """Return the verb of a command, empty if it is another program's."""
    words = shlex.split(command, comments=True)
    own = words[words.index("inductor-plugin") + 1 :] if "inductor-plugin" in words else []
    return next((word for word in own if word in {verb.name for verb in VERBS}), "")


def _run(command: str) -> tuple[int, str]:
    """Run a command; return its exit status and what it wrote to standard output."""
    words = shlex.split(command, comments=True)
    needs_shell = set("$<>|&;") & set(command) or _verb(command) in _SEPARATE
    if words[0] == "inductor-plugin" and not needs_shell:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = main(words[1:])
        return status, out.getvalue()
    return _in_bash(command)


def _in_bash(script: str) -> tuple[int, str]:
    done = subprocess.run(
        [shutil.which("bash") or "sh", "-c", script],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout


def environment() -> dict[str, str]:
    """Return the variables of a reader's shell: this environment's programs, and no second measurement."""
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])
    paths = (str(CALM), os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        "PATH": os.pathsep.join(folders),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def shell(home: Path, inductor_folder: Path) -> dict[str, str]:
    """Return the variables of a reader's shell with an empty cache of the plugin below ``home``."""
    return {
        **environment(),
        "XDG_CACHE_HOME": str(home),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor_folder),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    command_line = ArgumentParser()
    command_line.add_argument("page")
    command_line.add_argument("--given", type=Path)
    chosen = command_line.parse_args()
    print(f"{chosen.page}: {run_page(chosen.page, chosen.given)} snippets")
