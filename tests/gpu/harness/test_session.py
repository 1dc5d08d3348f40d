"""A session on a GPU without one: its decisions, and what it does with steps that fail, hang, die or are cut."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import campaign
from benchmarks.harness.resume import Budget
from tests.gpu.harness import order
from tests.gpu.session import __main__ as session
from tests.gpu.session import environment as session_environment
from tests.gpu.session import plan, requirements, step
from tests.gpu.session.report import Report
from tests.gpu.session.run import FILE, Session, environment, opened, run
from tests.gpu.session.step import ALL, Step
from tests.support.repository import REPOSITORY

A, B, C, D = (Step(name, "", ("-c", "pass"), 10.0, resume=("--resume",)) for name in "abcd")
PLAN = plan.plan(Path("results"), Path("kernels"), Path("some.pack"))


def row(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "sources": "now", **more}


def names(rows: dict[str, Any], again: Sequence[str] = ()) -> list[str]:
    return [each.step.name for each in step.todo((A, B, C, D), rows, again, "now")]


def test_what_has_passed_is_not_run_again_unless_asked_for() -> None:
    rows = {"a": row("passed"), "b": row("passed")}
    assert names(rows) == ["c", "d"]
    assert names(rows, ["b"]) == ["b", "c", "d"]
    assert names(rows, [ALL]) == ["a", "b", "c", "d"]
    (again,) = step.todo((A,), rows, ["a"], "now")
    assert again.arguments == ("-c", "pass")  # it does not leave out what has passed
    (first,) = step.todo((A,), {}, (), "now")
    assert first.arguments == ("-c", "pass", "--resume")


def test_what_failed_comes_last_unless_the_sources_have_changed() -> None:
    rows = {"a": row("hung"), "b": row("passed", left=3), "c": row("cut"), "d": row("running")}
    assert names(rows) == ["c", "d", "b", "a"]
    assert names({"a": row("failed", sources="before")}) == ["a", "b", "c", "d"]
    reasons = {each.step.name: each.reason for each in step.todo((A, B, C, D), rows, (), "now")}
    assert reasons["a"] == "it hung before"
    assert reasons["b"] == "it goes on: 3 are left"


@pytest.mark.parametrize(
    ("code", "stopped", "status"),
    [
        (0, "", "passed"),
        (1, "", "failed"),
        (-11, "", "died"),
        (139, "", "died"),
        (None, "limit", "hung"),
        (None, "budget", "cut"),
    ],
)
def test_how_a_step_ended(code: int | None, stopped: str, status: str) -> None:
    assert step.status(code, stopped) == status


def test_a_step_has_its_own_limit_or_what_the_budget_leaves() -> None:
    assert step.limit(A, 11.0) == (10.0, "limit")
    assert step.limit(A, 9.0) == (9.0, "budget")


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (("passed",) * 4, 0),
        (("passed", "passed", "passed", "hung"), 1),
        (("passed", "cut", "failed"), 1),
        (("passed", "cut"), 3),
        ((), 3),
    ],
)
def test_the_exit_status_says_what_failed_and_what_is_left(
    states: tuple[str, ...], status: int
) -> None:
    rows = {each.name: row(state) for each, state in zip((A, B, C, D), states, strict=False)}
    assert step.exit_status((A, B, C, D), rows) == status


def test_a_benchmark_that_goes_on_is_not_over() -> None:
    rows = {each.name: row("passed") for each in (A, B, C, D)}
    rows[D.name] = {**rows[D.name], "left": 250}
    assert step.exit_status((A, B, C, D), rows) == 3


def test_what_steps_print_is_read() -> None:
    assert step.detail("x\n1 failed, 3 passed, 2 skipped in 4.21s\n") == (
        "1 failed, 3 passed, 2 skipped in 4.21s"
    )
    assert step.detail("==== 3 passed in 64.21s (0:01:04) ====") == "3 passed in 64.21s (0:01:04)"
    assert step.detail("summary: all is well\n3 passed in 1.0s") == "all is well"
    assert step.detail("nothing") == ""


def test_what_a_benchmark_prints_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign.closing("products", ["one", "two"], tmp_path / "none.json")
    rows: list[dict[str, Any]] = [{"arms": {"ours": {}}}, {"arms": {"ours": {"failed": "why"}}}]
    gains = iter([2.0, 8.0, None, None])
    print(campaign.summary("products", rows, ["stock", "cublas"], lambda row, arm: next(gains)))
    shown = capsys.readouterr().out
    assert step.left(shown) == 2
    assert step.detail(shown) == "2 products, the plugin failed in 1, x4.00 of stock (2)"


def test_an_old_pytest_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    versions = {each.name: "99.0" for each in requirements.REQUIREMENTS}
    assert requirements.missing(PLAN, versions.get) == ([], [])
    old = versions | {"pytest": "8.4.2"}
    fatal, _ = requirements.missing(PLAN, old.get)
    assert fatal == [
        "pytest is 8.4.2, 9.0 or newer is needed (faulthandler_exit_on_timeout in pyproject.toml)"
    ]
    assert requirements.missing(plan.speed(tmp_path), old.get) == ([], [])
    del old["nvidia-cutlass"]
    assert "nvidia-cutlass is not installed" in requirements.missing(PLAN, old.get)[1][0]
    monkeypatch.setattr(requirements.missing, "__defaults__", (old.get,))
    assert session.main(["--results", str(tmp_path / "none")]) == 2
    assert "pytest is 8.4.2" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_the_installed_pytest_knows_the_options_of_the_project(repository: Path) -> None:
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    assert "faulthandler_exit_on_timeout" in text
    result = requirements.version("pytest")
    assert result is not None
    assert requirements.numbers(result) >= (9, 0)
    assert requirements.numbers("2.11.0+cu130") == (2, 11, 0)


def test_the_requirements_are_those_of_the_project(repository: Path) -> None:
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    oldest = {each.name: ".".join(map(str, each.oldest)) for each in requirements.REQUIREMENTS}
    for name in ("filelock", "torch", "nvidia-cutlass"):
        assert f'"{name}>={oldest[name]}' in text, name
    assert f'"rich>={oldest["rich"]}.' in text


def test_the_steps_have_names_and_commands_that_exist(repository: Path) -> None:
    assert len({each.name for each in PLAN}) == len(PLAN)
    for each in PLAN:
        assert each.command[0] == "-m"
        assert find_spec(each.command[1]) is not None
        assert each.least_s <= each.limit_s
        for place in each.command:
            if place.startswith("tests/gpu/"):
                assert (repository / place.partition("::")[0]).is_file()
    named = {argument for each in PLAN for argument in each.command}
    files = {str(path.relative_to(repository)) for path in repository.glob("tests/gpu/test_*.py")}
    assert files <= named  # each file as a whole, or by the families in it
    assert [each.name for each in PLAN if each.always] == ["pack"]


def test_the_first_steps_tell_most() -> None:
    result = [each.name for each in PLAN]
    telling = ["environment", "doctor", "pack", "probe", "a product", "an attention", "a fusion"]
    assert result[: len(telling)] == telling
    assert result.index("cutlass alone") < result.index("products compiled")
    assert [each.part for each in PLAN] == sorted(
        (each.part for each in PLAN), key=plan.PARTS.index
    )
    assert result[-1] == "speed: stock CUTLASS"


@pytest.fixture(scope="module")
def collected() -> list[str]:
    """Return the GPU tests in their order, as on a machine with a GPU."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu or sm90", "-q"]
    command += ["--collect-only", "-p", "tests.gpu.harness.pretend", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--fresh"],
        cwd=REPOSITORY,
        env=environment(Path("kernels")),
        capture_output=True,
        text=True,
        timeout=200,
    )
    lines = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(lines) > 900, done.stdout[-2000:]
    return lines


def test_the_most_telling_tests_are_the_first(collected: list[str]) -> None:
    first = [f"tests/gpu/{name}" for name in order.FIRST]
    assert collected[: len(first)] == first
    rest = collected[len(first) :]
    assert list(dict.fromkeys(_file(test) for test in rest)) == list(order.FILES)


def _file(node_id: str) -> str:
    return node_id.partition("::")[0].rpartition("/")[2]


def selects(each: Step, node_id: str) -> bool:
    """Return whether a step's pytest runs a test: by place, and by the words of its ``-k``."""
    places = [place for place in each.command if place.startswith("tests/gpu/")]
    words = (
        each.command[each.command.index("-k") + 1].split(" and ") if "-k" in each.command else []
    )
    here = any(node_id == place or node_id.startswith(f"{place}::") for place in places)
    return here and all(word in node_id for word in words)


def test_every_gpu_test_is_in_a_step_and_every_step_has_tests(collected: list[str]) -> None:
    steps = [each for each in PLAN if "pytest" in each.command]
    for each in steps:
        assert any(selects(each, node_id) for node_id in collected), each.name
    worker = "tests/gpu/test_candidates.py::test_the_worker_has_a_gpu"
    alone = [test for test in collected if not any(selects(each, test) for each in steps)]
    assert alone == [worker]  # the environment says that


@pytest.mark.parametrize("target", ["test-gpu", "bench-gpu"])
def test_make_runs_a_part_of_the_session(target: str, repository: Path) -> None:
    lines = (repository / "Makefile").read_text(encoding="utf-8").splitlines()
    recipe = lines[lines.index(f"{target}: $(READY)") + 1]
    part = "tests" if target == "test-gpu" else "speed"
    assert recipe == f"\t$(PY) -m tests.gpu.session --part {part} $(ARGS)"


def test_a_part_or_some_steps_can_be_chosen() -> None:
    speed = plan.chosen(PLAN, "speed", [])
    assert {each.part for each in speed} == {"first", "speed"}
    only = [each.name for each in plan.chosen(PLAN, "all", ["a fusion"])]
    assert only == ["environment", "doctor", "pack", "a fusion"]
    again = plan.chosen(PLAN, "speed", [], ["a fusion"])
    assert {each.name for each in again} == {"a fusion", *(each.name for each in speed)}
    with pytest.raises(LookupError, match="no step 'fusion'; there are environment, doctor, pack"):
        plan.chosen(PLAN, "all", ["fusion"])
    assert session.main(["--again", "nothing", "--list"]) == 2


def of(folder: Path, *steps: Step, **more: Any) -> Session:
    return Session(steps, folder, environment(folder / "kernels"), "now", **more)


def coded(name: str, code: str, **more: Any) -> Step:
    return Step(name, "", ("-S", "-c", code), 20.0, least_s=0.1, **more)


def test_nothing_runs_where_an_essential_step_fails(tmp_path: Path) -> None:
    said: list[str] = []
    steps = coded("first", "raise SystemExit(1)", essential=True), coded("second", "pass")
    rows = opened(tmp_path, {})
    assert run(of(tmp_path, *steps), rows, Budget(100.0), say=said.append) == 1
    assert [each["step"] for each in rows.rows] == ["first"]
    assert any("second" in line and "not run" in line and "first failed" in line for line in said)


@pytest.mark.parametrize(
    ("code", "status"),
    [("import time; time.sleep(60)", "hung"), ("import os; os.kill(os.getpid(), 9)", "died")],
)
def test_nothing_runs_where_an_essential_step_hangs_or_dies(
    tmp_path: Path, code: str, status: str
) -> None:
    steps = replace(coded("first", code, essential=True), limit_s=0.5), coded("second", "pass")
    rows = opened(tmp_path, {})
    session = of(tmp_path, *steps, grace_s=0.1)
    assert run(session, rows, Budget(100.0), say=lambda line: None) == 1
    assert [(each["step"], each["status"]) for each in rows.rows] == [("first", status)]


def test_what_is_essential_is_the_gpu_or_the_cpu_that_computes() -> None:
    every = (*PLAN, *plan.cpu(Path("results"), Path("kernels")))
    essential = [each for each in every if each.essential]
    assert [each.part for each in essential] == ["first", "cpu"]
    assert all("tests.gpu.session.environment" in each.command for each in essential)
    assert ["--cpu" in each.command for each in essential] == [False, True]


KERNELS = "import os; print('summary:', os.environ['INDUCTOR_PLUGIN_CACHE_DIR'])"


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let the session have a step of its own, which says where it would keep kernels; return what the plan was asked."""
    asked: list[Any] = []

    def steps(results: Path, kernels: Path, pack: Path | None) -> list[Step]:
        asked.append((results, kernels, pack))
        return [coded("says", KERNELS), *(coded("fails", "raise SystemExit(1)") for _ in asked[1:])]

    monkeypatch.setattr(plan, "plan", steps)
    monkeypatch.setattr(requirements, "missing", lambda steps: ([], []))
    monkeypatch.setattr(requirements, "machine", dict)
    monkeypatch.setattr(session, "sources_digest", lambda sources: "now")
    return asked


def test_main_returns_how_the_steps_went(planned: list[Any], tmp_path: Path) -> None:
    results = ["--results", str(tmp_path / "results")]
    assert session.main(results) == 0
    assert session.main(results) == 1  # with the second step
    fresh = ["--results", str(tmp_path / "others"), "--budget-s", "1"]
    assert session.main(fresh) == 3


def test_kernels_are_kept_where_the_option_says(
    planned: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(name: str, *arguments: str) -> Path:
        results = tmp_path / name
        planned.clear()
        assert session.main(["--results", str(results), *arguments]) == 0
        (row,) = json.loads((results / FILE).read_text())["steps"]
        assert planned == [(results, Path(row["detail"]), None)]
        return Path(row["detail"])

    named = tmp_path / "named"
    assert kept("by option", "--kernels", str(named)) == named
    assert kept("by default") == tmp_path / "by default" / "kernels"
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", str(tmp_path / "environment"))
    assert kept("by environment") == tmp_path / "environment"
    assert kept("by both", "--kernels", str(named)) == named


def test_the_environment_fails_where_nothing_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "environment.json")]

    def none() -> str:
        raise RuntimeError("no GPU here")

    monkeypatch.setattr(session_environment, "gpu", none)
    assert session_environment.main(out) == 1
    assert "summary: RuntimeError: no GPU here" in capsys.readouterr().out
    assert session_environment.main([*out, "--cpu"]) == 0
    monkeypatch.setattr(session_environment, "gpu", lambda: "a GPU")
    assert session_environment.main(out) == 0
    assert capsys.readouterr().out.endswith("summary: a GPU\n")
    monkeypatch.setattr(session_environment, "backend", none)
    assert session_environment.main(out) == 1


def test_the_part_for_a_cpu_needs_no_gpu_and_little_else() -> None:
    steps = plan.cpu(Path("results"), Path("kernels"))
    assert {each.part for each in steps} == {"cpu"}
    versions = {"torch": "2.11.0", "pytest": "9.0", "filelock": "3.30"}
    assert requirements.missing(steps, versions.get)[0] == []
    fatal = requirements.missing(PLAN, versions.get)[0]
    assert fatal == ["triton is not installed; 3.6 or newer is needed (comes with torch)"]


def test_the_file_names_the_step_that_runs(tmp_path: Path) -> None:
    code = f"print('summary:', open({str(tmp_path / FILE)!r}).read().count('running'))"
    rows = opened(tmp_path, {})
    assert run(of(tmp_path, coded("looks", code)), rows, Budget(100.0), say=lambda line: None) == 0
    assert rows.rows[0]["detail"] == "1"


def test_a_figure_that_cannot_be_found_costs_itself(tmp_path: Path) -> None:
    report = Report(tmp_path / "sub" / "probe.json")
    report.attempt("bad", lambda: 1 / 0)
    report.attempt("good", lambda: 1)
    written = json.loads((tmp_path / "sub" / "probe.json").read_text())
    assert written == {"bad": {"failed": "ZeroDivisionError: division by zero"}, "good": 1}
    assert report.failed == ["bad"]


@pytest.mark.slow
def test_the_probe_runs_dry(tmp_path: Path) -> None:
    out = tmp_path / "probe.json"
    command = [sys.executable, "-m", "tests.gpu.session.probe", "--dry", "--out", str(out)]
    own = {"INDUCTOR_PLUGIN_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | own, capture_output=True, text=True, timeout=230
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    assert figures["mm forced twin"]["taken"][0].startswith("dry_twin")
    timed = [name for name, value in figures.items() if "host_us" in value]
    wanted = ["mm eager", "mm stock", "mm plugin", "mm forced twin", "sdpa eager", "sdpa plugin"]
    assert timed == wanted
    assert all(figures[name]["wall_us"] >= figures[name]["host_us"] > 0 for name in timed)
    assert step.detail(done.stdout).startswith("host us of a product: eager ")
