"""What new users did first and met: options, logs, traces, attention, a machine without a compiler, verbs with mistakes.

One compile or one verb each, as it was typed, with what should come of it.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch.nn.functional import scaled_dot_product_attention

from inductor_plugin.cache import open_store
from inductor_plugin.cli import main
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.cache.records import kernel_key, put_library, record
from tests.support.candidates import wrong_in_process
from tests.support.candidates.providers import offered
from tests.support.cli.command import answer_of, filled, key, run
from tests.support.compile import Spent, compiled, fresh
from tests.support.repository import REPOSITORY
from tests.support.warned import warnings_in

__all__ = ["fresh"]  # the fixture


@pytest.fixture
def a() -> torch.Tensor:
    return torch.randn(57, 57)


# Options.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tune_budget": 60}, "unknown option 'tune_budget'; did you mean 'tune_budget_s'?"),
        ({"max_autotune": "yes"}, "option max_autotune is 'yes', of type str; torch._inductor"),
        ({"policy": "pinned", "pin_file": "PINS"}, "is not a pin file: it has no list 'pins'"),
    ],
)
def test_a_wrong_option_is_one_sentence_at_the_first_compile(
    options: dict[str, Any], said: str, cache_dir: Path, tmp_path: Path, a: torch.Tensor
) -> None:
    pins = tmp_path / "pins.json"
    pins.write_text("{}")
    options = {name: str(pins) if value == "PINS" else value for name, value in options.items()}
    with pytest.raises(Exception, match="backend='inductor_plugin'") as raised:
        compiled(torch.mm, cache_dir, **options)(a, a)
    lines = str(raised.value).splitlines()
    assert any(said in line for line in lines), lines
    assert "LoweringException" not in str(raised.value)
    assert "neither an option" not in str(raised.value)


def test_a_list_of_backends_is_taken_as_one(cache_dir: Path, a: torch.Tensor) -> None:
    call = compiled(torch.mm, cache_dir, gemm_backends=["ATEN", "CPP"])
    assert torch.allclose(call(a, a), a @ a, atol=1e-4)


def test_a_time_limit_of_zero_is_none(
    cache_dir: Path, a: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    with offered("good"):
        compiled(torch.mm, cache_dir, bench_timeout_s=0)(a, a)
    (known,) = open_store(cache_dir).iter_records()
    assert {row.status for row in known.candidates.values()} == {"ok"}
    assert list(open_store(cache_dir).iter_quarantine()) == []
    assert warnings_in(caplog) == []


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["1K", "50MB"])
def test_too_little_memory_for_workers_condemns_no_kernel(memory: str, cache_dir: Path) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(64, 96).eval(), torch.randn(33, 64)
    seen: list[int] = []
    with inductor_config.patch(freezing=True), torch.no_grad():
        for limit in ({"worker_memory_bytes": memory}, {"worker_memory_bytes": 0}):
            RUNTIME.forget()
            torch.compiler.reset()
            spent = Spent()
            assert torch.allclose(compiled(model, cache_dir, **limit)(x), model(x), atol=1e-4)
            seen.append(spent.stats.compiled)
    assert seen == [0, 1]
    (known,) = open_store(cache_dir).iter_records()
    assert {row.status for row in known.candidates.values()} == {"ok"}


# What is said of a compile.


def test_log_trace_and_counters_say_the_same_of_the_same_problem(
    cache_dir: Path, tmp_path: Path, a: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "inductor_plugin")
    path = tmp_path / "trace.json"
    spent = Spent()
    with offered("good", "wrong"):
        compiled(torch.mm, cache_dir, trace_path=str(path))(a, a)
        assert (spent.stats.failed, spent.stats.benchmarked) == (1, 3)
        lines = [r.getMessage() for r in caplog.records if r.name.startswith("inductor_plugin")]
        measuring = [line for line in lines if line.startswith("measuring ")]
        assert measuring
        assert all("for mm(57x57, 57x57)" in line for line in measuring)
        (summary,) = [line for line in lines if "1 problem" in line]
        assert "1 failed" in summary
        assert "3 candidates measured" in summary
        drawn = path.read_bytes()
        spans = [e for e in json.loads(drawn)["traceEvents"] if e["ph"] == "X"]
        measured = [e for e in spans if e["cat"] == "measure"]
        assert measured
        assert {e["args"]["problem"] for e in measured} == {"mm(57x57, 57x57)"}
        RUNTIME.forget()
        torch.compiler.reset()
        compiled(torch.mm, cache_dir, trace_path=str(path))(a, a)
    assert path.read_bytes() == drawn  # all was known


def test_problems_that_differ_are_told_apart_by_ls(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    q = torch.randn(1, 2, 64, 32)
    plain: Callable[..., torch.Tensor] = scaled_dot_product_attention

    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    for function, operand in ((plain, q), (causal, q), (plain, q.bfloat16())):
        torch.compiler.reset()
        compiled(function, cache_dir)(operand, operand, operand)
    assert main(["ls", "--json", "--cache-dir", str(cache_dir)]) == 0
    rows = json.loads(capsys.readouterr().out)
    problems = [row["problem"] for row in rows if row["op"] == "attention"]
    assert len(problems) == len(set(problems)) == 3, problems
    assert sum("causal" in text for text in problems) == 1
    assert sum("bf16" in text for text in problems) == 1


WITHOUT_COMPILER = """
import torch
from torch.nn.functional import scaled_dot_product_attention as attention
q = torch.randn(1, 2, 64, 32)
compiled = torch.compile(lambda q: attention(q, q, q), backend="inductor_plugin")
print(float((compiled(q) - attention(q, q, q)).abs().max()) < 1e-4, flush=True)
torch._inductor.config.freezing = True
model = torch.nn.Linear(128, 256).eval()
with torch.no_grad():
    try:
        torch.compile(model, backend="inductor_plugin")(torch.randn(64, 128))
    except Exception as error:
        print(type(error).__name__)  # Inductor's own
"""


@pytest.mark.slow
def test_without_a_compiler_attention_works_and_one_line_names_doctor(
    cache_dir: Path, tmp_path: Path, inductor_cache: Path
) -> None:
    (tmp_path / "bin").mkdir()
    variables = {"PATH": str(tmp_path / "bin"), "INDUCTOR_PLUGIN_CACHE_DIR": str(cache_dir)}
    environment = {name: text for name, text in os.environ.items() if name != "CXX"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER],
        cwd=REPOSITORY,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "True\nInductorError\n", done.stderr
    assert "Exception in thread" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("inductor-plugin: ")]
    assert "`inductor-plugin doctor`" in line


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/etc/passwd", "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own"),
        ("/proc/x", "set INDUCTOR_PLUGIN_CACHE_DIR to a folder you can write"),
    ],
)
def test_doctor_gives_no_advice_that_does_harm(
    path: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_DIR", path)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert remedy in " ".join(said.split())
    assert "chmod" not in said
    assert "free some space" not in said


# Verbs.


@pytest.mark.slow
def test_a_script_measures_again_where_it_is_asked_to(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], inductor_cache: Path
) -> None:
    with wrong_in_process.offered():
        compiled(torch.mm, cache_dir)(torch.randn(56, 57), torch.randn(57, 57))
    store, script = open_store(cache_dir), tmp_path / "script.py"
    (known,) = store.iter_records()
    run(store, "repro", known.digest[:12], "--out", script)
    template = "tests.support.candidates.wrong_in_process:TraitorTemplate"
    variables = {"PYTHONPATH": str(REPOSITORY), "TORCH_LOGS": "inductor_plugin"}
    ended: list[tuple[int, str]] = []
    for policy in ("tune", "typo"):
        done = subprocess.run(
            [sys.executable, str(script), "--policy", policy, "--register", template],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr
        ended.append((done.returncode, done.stdout + done.stderr))
    (tuned, said), (mistaken, usage) = ended
    assert (tuned, mistaken) == (0, 2)
    assert "1 problem, 0 known; 0 kernels compiled, 2 candidates measured" in said, said
    assert "invalid choice: 'typo'" in usage
    assert list(store.iter_records()) == [known]


def test_stats_and_verify_agree_on_a_damaged_kernel_and_repair_mends_it(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(cache_dir)
    library = put_library(store).path("kernel.so")
    library.write_bytes(library.read_bytes()[:3])
    run(store, "stats")
    assert "`verify` reads kernels too" in capsys.readouterr().out
    run(store, "verify", status=1)
    assert "`inductor-plugin verify --repair`" in capsys.readouterr().out
    (row,) = answer_of(store, capsys, "verify", "--repair")["damaged"]
    assert row["repair"].startswith("moved to ")
    run(store, "verify")
    assert store.kernel(kernel_key().digest) is None


def test_verbs_with_mistakes_end_with_one_line_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(tmp_path / "cache")
    (tmp_path / "file").write_text("precious")
    cache, out = ("--cache-dir", store.root), tmp_path / "out"
    for words in (
        ("ls", "--cache-dir", tmp_path / "typo"),
        ("stats", "--cache-dir", tmp_path / "typo"),
        ("stats", "--cache-dir", tmp_path / "file"),
        ("export", out, "--op", "typo", *cache),
        ("pin", out, "--op", "typo", *cache),
        ("export", tmp_path / "file", *cache),
        ("export", "-", *cache),
        ("pin", tmp_path / "none" / "x", *cache),
        ("repro", key(), "--out", tmp_path / "none" / "x", *cache),
        ("import", tmp_path / "file", "--cache-dir", tmp_path / "new"),
        ("import", tmp_path, "--cache-dir", tmp_path / "new"),
        ("wheel", tmp_path / "none.pack"),
        ("merge", tmp_path / "new", tmp_path / "typo"),
        ("show", record().digest, *cache),
    ):
        assert main([*map(str, words)]) == 2, words
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"inductor-plugin {words[0]}: ")
        assert captured.err.count("\n") == 1, captured.err
        assert "[Errno" not in captured.err
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "file"}
    assert (tmp_path / "file").read_text() == "precious"


def test_sizes_differences_and_options_before_the_verb_are_taken(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(cache_dir)
    assert main(["--cache-dir", str(cache_dir), "prune", "--max-bytes", "1.5GiB"]) == 0
    assert "nothing had to go" in capsys.readouterr().out
    run(store, "diff", key(), key())
    assert capsys.readouterr().out.strip()
    other = next(row for row in answer_of(store, capsys, "ls") if row["winner"] == "slow")
    name = f"{other['environment'][:12]}/{other['key'][:12]}"
    rows = answer_of(store, capsys, "diff", key(), name)
    assert not any("(absent)" in map(str, row.values()) for row in rows)


@pytest.mark.parametrize("words", [(), ("nonsense",)])
def test_the_package_runs_as_a_module_and_shows_its_verbs(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "inductor_plugin", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "doctor" in done.stderr
    assert "Traceback" not in done.stderr
