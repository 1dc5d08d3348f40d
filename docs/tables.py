"""The generated parts of the site's pages, by name. Each is read from the code it describes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.findings import findings
from docs.generate import options_table, results_table
from docs.verbs import verbs
from inductor_plugin import errors
from inductor_plugin.cache.key import KernelKey
from inductor_plugin.cache.layout import Layout
from inductor_plugin.device import Device
from inductor_plugin.problem import Operand, Problem, SizeClass
from inductor_plugin.problem import target as targets
from inductor_plugin.template import Candidate, OpKernel
from inductor_plugin.tuning.counters import Stats

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples"
_PLACES: Mapping[str, tuple[str, ...]] = {
    "kernel": ("<digest>",),
    "record": ("<environment>", "<op>", "<digest>"),
    "environment": ("<environment>",),
    "quarantine": ("<environment>", "<candidate>-<problem>"),
    "graph": ("<digest>",),
    "pack": ("<name>",),
    "lock": ("<name>",),
}
"""Arguments of the functions of `Layout`, as they are shown."""


def attributes(record: type[object]) -> dict[str, str]:
    """Return the attributes that a docstring describes, with their descriptions."""
    text = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")[2]
    pairs = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", said) for name, said in pairs}


def fields_table(record: type[object]) -> str:
    """Return a table of the attributes that a docstring describes."""
    rows = (f"| `{name}` | {_code(said)} |" for name, said in attributes(record).items())
    return "\n".join(["| Field | What it is |", "|---|---|", *rows]) + "\n"


def files_table() -> str:
    """Return a table of all paths of a cache directory, from `Layout`."""
    layout, rows = Layout(Path()), list[str]()
    for name, member in vars(Layout).items():
        if isinstance(member, property):
            path, said = getattr(layout, name), member.__doc__
            path = path if path.suffix else f"{path}/"
        elif name in _PLACES:
            path, said = _place(layout, name), member.__doc__
        else:
            continue
        said = (said or "").strip().removeprefix("Return the file of ").removeprefix("Return the ")
        rows.append(f"| `{path}` | {said[0].upper()}{said[1:]} |")
    return "\n".join(["| Path | What it is |", "|---|---|", *sorted(rows)]) + "\n"


def _place(layout: Layout, name: str) -> str:
    """Return a path with names in angle brackets instead of digests, which `layout.part` would hash."""
    words = [f"x{index}" for index, _ in enumerate(_PLACES[name])]
    text = str(getattr(layout, name)(*words))
    for word, shown in zip(words, _PLACES[name], strict=True):
        text = text.replace(f"{word}/{word}", f"ab/{shown}").replace(word, shown)
    return text


def environment_table() -> str:
    """Return the table of what goes into each key, and why, from ARCHITECTURE.md."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("\n## Keys: ")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    if not rows:
        raise ValueError("ARCHITECTURE.md has no table below '## Keys: ...'; put it back")
    return "\n".join(rows) + "\n"


def targets_table() -> str:
    """Return the GPUs whose figures are known."""
    known = [targets.target(name) for name in targets.names()]
    rows = [
        f"| {gpu.name} | `{gpu.arch}` | {gpu.capability[0]}.{gpu.capability[1]} | {gpu.multiprocessors} |"
        for gpu in known
    ]
    heads = ["| Target | Architecture | Capability | Multiprocessors |", "|---|---|---|---|"]
    return "\n".join([*heads, *rows]) + "\n"


def examples_list() -> str:
    """Return each example with its first sentence and its text."""
    parts: list[str] = []
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        said = ast.get_docstring(ast.parse(text)) or ""
        summary, _, rest = said.partition("\n\n")
        parts += [f"## {path.name}", "", summary, ""]
        parts += [rest, ""] if rest else []
        parts += [f'??? example "examples/{path.name}"', "", "    ```python"]
        parts += [f"    {line}".rstrip() for line in _body(text).splitlines()]
        parts += ["    ```", ""]
    return "\n".join(parts)


def errors_tree() -> str:
    """Return all errors of the package, as a tree."""
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip("\n")
    return f"```text\n{tree}\n```\n"


def _body(text: str) -> str:
    """Return a module without its docstring, which the page has as prose."""
    first = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[first.end_lineno or 0 :]).lstrip("\n")


def _code(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


TABLES: Mapping[str, Callable[[], str]] = {
    "candidate": lambda: fields_table(Candidate),
    "counters": lambda: fields_table(Stats),
    "device": lambda: fields_table(Device),
    "environment": environment_table,
    "errors": errors_tree,
    "examples": examples_list,
    "files": files_table,
    "findings": findings,
    "kernel-key": lambda: fields_table(KernelKey),
    "op-kernel": lambda: fields_table(OpKernel),
    "operand": lambda: fields_table(Operand),
    "options": options_table,
    "problem": lambda: fields_table(Problem),
    "results": results_table,
    "size-class": lambda: fields_table(SizeClass),
    "targets": targets_table,
    "verbs": verbs,
}
"""Each generated part, by the name in its marker."""
