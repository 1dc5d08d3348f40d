"""Write the generated parts of README.md (results, options) and ARCHITECTURE.md (folders, layers)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from docs.architecture import renewed
from inductor_plugin.config import PREFIX, Config

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
_VALUES = {"limits": "whole number, or `cuda=24,cpu=64`"}
_CACHE_DIR = "`$XDG_CACHE_HOME/inductor_plugin`, else `~/.cache/inductor_plugin`"
"""The default folder, which depends on whose home it is (`config.variables.default_cache_dir`)."""
BEGIN, END = "<!-- options: begin (make docs) -->\n", "<!-- options: end -->\n"
RESULTS_BEGIN, RESULTS_END = "<!-- results: begin (make docs) -->\n", "<!-- results: end -->\n"


def with_options(text: str) -> str:
    """Return a text with the table of options between its markers renewed."""
    return _between(text, BEGIN, END, options_table())


def options_table(options: Iterable[Field[Any]] = fields(Config), prefix: str = PREFIX) -> str:
    """Return the table of options in markdown, one row for each.

    Args:
        options: The fields of `inductor_plugin.config.Config`.
        prefix: Prefix of their variables.
    """
    rows = ["| Option and variable | Values | Default | What it does |", "|---|---|---|---|"]
    for option in (option for option in options if option.metadata):
        how = option.metadata
        shown = _show(option.default)
        default = _CACHE_DIR if how["kind"] == "folder" else shown and f"`{shown}`"
        values = ", ".join(how["choices"]) or _VALUES.get(how["kind"], how["kind"])
        unit = f" ({how['unit']})" if how["unit"] else ""
        rows.append(
            f"| `{option.name}`<br>`{prefix}{option.name.upper()}` | {values}{unit} "
            f"| {default} | {how['sentence']} |"
        )
    return "\n".join(rows) + "\n"


def with_results(text: str) -> str:
    """Return a text with the table of results between its markers renewed."""
    return _between(text, RESULTS_BEGIN, RESULTS_END, results_table())


def results_table(folder: Path = RESULTS) -> str:
    """Return the table of committed results, in markdown."""
    compile_file, overhead_file = "cold_warm_cpu.json", "overhead_cpu.json"
    spent, over = _summary(folder / compile_file), _summary(folder / overhead_file)
    rows = [
        ("first compile", spent["stock_cold_s"], spent["plugin_cold_s"], compile_file),
        (
            "of it, tuning",
            spent["stock_tuning_s"],
            spent["plugin_tuning_s"],
            compile_file,
        ),
        ("next process", spent["stock_warm_s"], spent["plugin_warm_s"], compile_file),
        (
            "next process, 200 products",
            over["lower_stock_compile_s"],
            over["lower_plugin_compile_s"],
            overhead_file,
        ),
    ]
    lines = [
        "| CPU, frozen weights | stock max-autotune | inductor-plugin | from |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {what} | {stock:.1f} s | {plugin:.1f} s | `benchmarks/results/{source}` |"
        for what, stock, plugin, source in rows
    ]
    times, models_file = _summary(folder / "models_cpu.json"), "models_cpu.json"
    lines.append(
        "| run time of ten networks, that of `torch.compile` without max-autotune = 1: mean (slowest network) "
        f"| {times['stock_to_plain']:.2f} ({times['largest_stock_to_plain']:.2f}) "
        f"| {times['to_plain']:.2f} ({times['largest_to_plain']:.2f}) | `benchmarks/results/{models_file}` |"
    )
    lines += [*_choices(folder), _tests(folder)]
    return "\n".join([*lines, "", *_ahead_of_time(folder)]) + "\n"


def _choices(folder: Path) -> list[str]:
    """Return the rows of choices: how many are near the fastest kernel, and what the slowest takes, by where they were tuned."""
    source = "regret_cpu.json"
    figures, rows = _summary(folder / source), list[str]()
    for load, where in (("quiet", "on a quiet machine"), ("2 busy", "beside two busy processes")):
        ours, stock = figures[f"ours, {load}"], figures[f"stock, {load}"]
        rows.append(
            f"| choices for 50 linear layers, tuned {where}: within 2 % of the fastest kernel (time of the slowest, fastest = 1) "
            f"| {_near(stock)} | {_near(ours)}, {ours['provisional']} of {ours['choices']} provisional "
            f"| `benchmarks/results/{source}` |"
        )
    return rows


def _tests(folder: Path) -> str:
    """Return the row of PyTorch's own tests; a difference that is explained is not the plugin's."""
    source = "pytorch_tests_cpu.json"
    outcome = json.loads((folder / source).read_text(encoding="utf-8"))
    passed, wrong = outcome["passed_in_both"], len(outcome["complaints"])
    return (
        "| PyTorch's own tests of Inductor: passed with both (failed because of the plugin) "
        f"| {passed} | {passed} ({wrong}) | `benchmarks/results/{source}` |"
    )


def _near(figure: dict[str, Any]) -> str:
    return f"{100 * figure['near']:.0f} % ({figure['most_time']:.2f})"


def _ahead_of_time(folder: Path) -> list[str]:
    """Return the table of compiling for a GPU that the machine lacks."""
    speed_file, pack_file = "compile_speed_cpu.json", "precompile_h200.json"
    launch_file = "host_cost_cpu.json"
    launches = json.loads((folder / launch_file).read_text(encoding="utf-8"))["by_torch"]
    (of_2_14,) = (
        results["figures"] for torch, results in launches.items() if torch.startswith("2.14")
    )
    mm, product = of_2_14["mm"]["us"], of_2_14["sites: product"]["us"]
    speed = json.loads((folder / speed_file).read_text(encoding="utf-8"))
    pack = _summary(folder / pack_file)
    stock, ours = speed["inductor"]["cpu_s"], speed["batch"]["cpu_s_per_kernel"]
    return [
        "| for a GPU, on a machine without one | stock Inductor | inductor-plugin | from |",
        "|---|---|---|---|",
        f"| one CUTLASS GEMM kernel, eight in a batch | {stock:.1f} CPU-s | {ours:.1f} CPU-s "
        f"| `benchmarks/results/{speed_file}` |",
        f"| host time of a call | {mm:.1f} us (`torch.mm(out=)`, 4 x 4) "
        f"| {product:.1f} us (a CUTLASS kernel that does nothing) | `benchmarks/results/{launch_file}` |",
        f"| one Llama-3-8B layer for an H200, {pack['cutlass_kernels']} CUTLASS and "
        f"{pack['triton_kernels']} Triton kernels: first compile elsewhere builds | all of them "
        f"| {pack['second_compiled']} | `benchmarks/results/{pack_file}` |",
    ]


def main() -> None:
    """Renew README.md and ARCHITECTURE.md."""
    readme = REPOSITORY / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(with_options(with_results(text)), encoding="utf-8")
    architecture = REPOSITORY / "ARCHITECTURE.md"
    text = architecture.read_text(encoding="utf-8")
    architecture.write_text(renewed(text, REPOSITORY), encoding="utf-8")


def _between(text: str, begin: str, end: str, table: str) -> str:
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"the text lacks the lines {begin!r} and {end!r}; put them back")
    return f"{before}{first}\n{table}\n{last}{after}"


def _summary(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))["summary"]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 2**30:
        return f"{value / 2**30:g}GiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
