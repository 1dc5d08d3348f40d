"""Matrix products of known models on this GPU: cuBLAS, stock max-autotune, stock CUTLASS, the plugin.

    python -m benchmarks.gemm [--budget-s 450] [--kinds bf16 e4m3_row] [--match TEXT] [--fresh] [--dry]

Each arm is a process of its own that stays; all get the same inputs. A product is compiled by one arm
after the other (nothing else runs meanwhile), captured in a CUDA graph, and then sampled in turns with
a cold L2. Products come in the order of interest (`shapes.by_interest`). What is finished stands in
the JSON file at once: a run that is stopped, or whose budget ends, is continued by the next one.

``first call`` is the first call's seconds, tuning included; caches fill as the list goes on, as they
do in use. ``built`` counts kernels compiled up to the first within 1 % of the arm's own best, in the
arm's own order. ``--dry`` goes the same way with tiny sizes on a CPU, to check the benchmark itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.products import kind, missing_call
from benchmarks.shapes import Shape, by_interest

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
ARMS = ("cublas", "stock", "stock_cutlass", "ours")
KINDS = ("bf16", "e4m3_row")
ROUNDS = 15
ACCEPTED = 0.05
"""Largest error that counts as right: fp8 with fast sums has 0.02."""
_SAME = ("gpu", "driver", "torch", "triton", "dry")


class Arm:
    """The process of one arm; it starts with its first question, and again after it has died."""

    def __init__(self, name: str, folder: Path, *, dry: bool) -> None:
        """Keep the caches of an arm under ``folder``."""
        self.name = name
        self._folder = folder / name
        self._dry = dry
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the answer, or why there is none: ``{"failed": reason}``."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], limit_s)
            line = process.stdout.readline() if ready else ""
        except OSError as error:
            self.stop()
            return {"failed": f"its process ended: {error}"}
        if not line:
            code = process.poll()
            self.stop()
            why = f"no answer within {limit_s:.0f} s" if code is None else f"it ended with {code}"
            return {"failed": why}
        return json.loads(line)

    def stop(self) -> None:
        """End the process and all it started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "inductor")}
            environment.pop("TRITON_CACHE_DIR", None)
            command = [sys.executable, "-m", "benchmarks.gemm_arm", self.name, str(self._folder)]
            with (self._folder / "stderr.txt").open("a") as log:
                self._process = subprocess.Popen(
                    [*command, *(["--dry"] if self._dry else [])],
                    cwd=REPOSITORY,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
        return self._process


def main() -> int:
    """Measure what is not measured yet, write after each product, print a table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--budget-s",
        type=float,
        default=450.0,
        help="seconds of this run; what is left is for the next",
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--match", default="", help="only products whose name has this in it")
    parser.add_argument("--limit", type=int, default=0, help="most products; 0 for all")
    parser.add_argument("--cutlass", type=int, default=1, help="first products with stock CUTLASS")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--arm-s", type=float, default=180.0, help="most seconds an arm compiles")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    facts = machine(dry=given.dry)
    if facts is None:
        print("No CUDA device here; --dry checks the benchmark without one.")
        return 0
    usual = RESULTS / f"gemm_{facts['gpu'].replace(' ', '_').lower()}.json"
    if given.dry:
        usual = Path(tempfile.gettempdir()) / "gemm_dry.json"
    out = given.out or usual
    # A file of one's own that is not there yet goes on from the usual one.
    before = out if out.is_file() else usual
    report = {**facts, "rows": [] if given.fresh else finished(before, facts)}
    products = [one for one in todo(given.kinds) if given.match in name_of(*one)]
    left = run(report, products[: given.limit or None], out, given)
    show(report["rows"])
    if left:
        print(f"{len(left)} products are left ({left[0]} is next); run it again to go on.")
    print(f"Written to {out}.")
    return 0


def run(
    report: dict[str, Any], products: Sequence[tuple[Shape, str]], out: Path, given: Any
) -> list[str]:
    """Measure products until the budget ends; return the names of those that are left."""
    started = time.monotonic()
    done = {row["product"] for row in report["rows"]}
    left = [one for one in products if name_of(*one) not in done]
    count, longest = len(done), 0.0
    with arms(given.arms, dry=given.dry) as processes:
        while left:
            begun = time.monotonic()
            rest = given.budget_s - (begun - started)
            if rest < longest or rest <= 0:
                break
            able = [
                one for one in processes if one.name != "stock_cutlass" or count < given.cutlass
            ]
            row = measured(*left[0], able, min(given.arm_s, rest), given.rounds)
            cut = any("no answer" in one.get("failed", "") for one in row["arms"].values())
            if cut and rest < given.arm_s:
                break  # the budget ended it, so it says nothing of the arm
            left, count = left[1:], count + 1
            longest = max(longest, time.monotonic() - begun)
            report["rows"].append(row)
            write(out, report)
            print(f"[{time.monotonic() - started:5.0f} s] {line(row)}", flush=True)
    return [name_of(*one) for one in left]


def measured(
    shape: Shape, types: str, processes: Sequence[Arm], limit_s: float, rounds: int
) -> dict[str, Any]:
    """Return one product's row: each arm compiles, then all are sampled in turns."""
    request = {"do": "prepare", "shape": shape.label, "kind": types}
    reports = {one.name: one.ask(request, limit_s) for one in processes}
    able = [one for one in processes if "failed" not in reports[one.name]]
    samples: dict[str, list[float]] = {one.name: [] for one in able}
    for number in range(rounds):
        first = number % max(1, len(able))
        for one in able[first:] + able[:first]:
            if "failed" in reports[one.name]:
                continue
            answer = one.ask({"do": "sample"}, 60)
            if "failed" in answer:
                reports[one.name] = answer
            else:
                samples[one.name].append(answer["ms"])
    for name, taken in samples.items():
        if taken and "failed" not in reports[name]:
            reports[name] |= {"median_ms": statistics.median(taken), "samples_ms": taken}
    sizes = {"m": shape.m, "n": shape.n, "k": shape.k, "groups": shape.layer.groups}
    return {"product": name_of(shape, types), "kind": types, **sizes, "arms": reports}


@contextlib.contextmanager
def arms(names: Iterable[str], *, dry: bool) -> Generator[list[Arm], None, None]:
    """Give the arms, each with empty caches; end them behind the block."""
    with tempfile.TemporaryDirectory(prefix="gemm-", ignore_cleanup_errors=True) as folder:
        made = [Arm(name, Path(folder), dry=dry) for name in names]
        try:
            yield made
        finally:
            for one in made:
                one.stop()


def todo(kinds: Sequence[str]) -> list[tuple[Shape, str]]:
    """Return all products torch has a call for, the most interesting first."""
    pairs = [(shape, types) for shape in by_interest() for types in kinds]
    return [(shape, types) for shape, types in pairs if missing_call(shape, kind(types)) is None]


def name_of(shape: Shape, types: str) -> str:
    """Return a product's name."""
    return f"{shape.label} {types}"


def machine(*, dry: bool) -> dict[str, Any] | None:
    """Return what the figures are taken on, None where there is no GPU."""
    torch = importlib.import_module("torch")
    environment = importlib.import_module("inductor_plugin.environment")
    if not dry and not torch.cuda.is_available():
        return None
    facts: dict[str, Any] = {
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "dry": dry,
        "gpu": "cpu" if dry else torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "triton": importlib.import_module("triton").__version__,
        "driver": "" if dry else driver(),
    }
    return facts | {"environment": environment.environment("cpu" if dry else "cuda:0")}


def driver() -> str:
    """Return the version of NVIDIA's driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()


def finished(out: Path, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run on the same machine."""
    try:
        content = json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if any(content.get(name) != facts[name] for name in _SAME):
        print(f"{out} is of another machine or version; it begins anew.")
        return []
    return content["rows"]


def write(out: Path, report: Mapping[str, Any]) -> None:
    """Write the file, whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    private = out.with_suffix(f".{os.getpid()}")
    private.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    private.replace(out)


def line(row: Mapping[str, Any]) -> str:
    """Return a row in one line."""
    shown = [
        f"{name} {_cell(answer, 'median_ms', lambda ms: f'{ms * 1e3:.1f} us')}"
        for name, answer in row["arms"].items()
    ]
    return f"{row['product']:40} " + "  ".join(shown)


def _cell(answer: Mapping[str, Any] | None, name: str, text: Callable[[Any], str]) -> str:
    if answer is None:
        return ""
    if "failed" in answer:
        return "failed"
    if answer.get("error", 0.0) > ACCEPTED:
        return "wrong"
    return "" if answer.get(name) is None else text(answer[name])


def show(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the table, and why an arm failed."""
    rich_table: Any = importlib.import_module("rich.table")
    console: Any = importlib.import_module("rich.console").Console(width=150)
    table = rich_table.Table(title="microseconds, cold L2, median", title_justify="left")
    table.add_column("product")
    heads = ("cuBLAS", "stock", "st.CUTLASS", "plugin", "x cuBLAS", "x stock")
    more = ("first call s: stock", "plugin", "built: stock", "plugin")
    for head in (*heads, *more):
        table.add_column(head, justify="right")
    failures: dict[str, None] = {}
    for row in rows:
        found: dict[str, Any] = row["arms"]
        times = [_cell(found.get(arm), "median_ms", lambda ms: f"{ms * 1e3:.1f}") for arm in ARMS]
        gains = [_gain(found, arm) for arm in ("cublas", "stock")]
        pair = [found.get(arm) for arm in ("stock", "ours")]
        calls = [_cell(one, "first_call_s", lambda s: f"{s:.0f}") for one in pair]
        built = [_cell(one, "built_to_99", str) for one in pair]
        table.add_row(row["product"], *times, *gains, *calls, *built)
        for arm, answer in found.items():
            if "failed" in answer:
                failures[f"{row['product']}: {arm}: {answer['failed']}"] = None
    console.print(table)
    for failure in failures:
        print(failure)


def _gain(found: Mapping[str, Any], arm: str) -> str:
    times = [found.get(one, {}).get("median_ms") for one in (arm, "ours")]
    return f"{times[0] / times[1]:.2f}" if all(times) else ""


if __name__ == "__main__":
    sys.exit(main())
