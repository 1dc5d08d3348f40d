"""``inductor-plugin repro``: a record becomes a script that makes the same call, and meets the record."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.nn.functional import scaled_dot_product_attention as sdpa

import inductor_plugin
from inductor_plugin.cache import Record, open_store
from inductor_plugin.cli import main
from inductor_plugin.config import process_environment
from inductor_plugin.repro.call import ATTENTIONS, FORMS, NotReproducible, call_of
from inductor_plugin.repro.script import script
from inductor_plugin.templates.cutlass.groups import GROUPED_OPS
from inductor_plugin.templates.cutlass.problem import OPS
from tests.support.attention.graphs import only
from tests.support.cache.records import decision, measured, record
from tests.support.candidates import wrong_in_process
from tests.support.cli.schemas import follow
from tests.support.fakes import devices as fakes
from tests.support.lowering import Lab
from tests.support.pages import CALM
from tests.support.processes.repro import ran

pytestmark = pytest.mark.compat

Grads = Sequence[tuple[int, int]]


def compiled(
    function: Callable[..., Any], cache_dir: Path, inputs: Sequence[Tensor], dynamic: Grads = ()
) -> Any:
    torch._dynamo.reset()
    for operand, dim in dynamic:
        torch._dynamo.maybe_mark_dynamic(inputs[operand], dim)
    options: dict[str, Any] = {"cache_dir": str(cache_dir), "table": "off", "progress": "off"}
    return torch.compile(function, backend="inductor_plugin", options=options)(*inputs)


def fill(cache_dir: Path) -> None:
    """Decide one problem of each kind, in favour of the test's operators where they are offered."""
    r = torch.randn
    mm_inputs = [r(24, 16), r(16, 32)]
    with torch.no_grad(), inductor_config.patch(fx_graph_cache=False, freezing=True):
        compiled(torch.mm, cache_dir, mm_inputs)
        compiled(torch.mm, cache_dir, [r(40, 16), r(16, 32)], [(0, 0)])
        compiled(torch.addmm, cache_dir, [r(32), *mm_inputs])
        compiled(lambda x, w: torch.bmm(x[:, 2:], w), cache_dir, [r(3, 26, 16), r(3, 16, 32)])
        compiled(torch.baddbmm, cache_dir, [r(3, 1, 32), r(3, 24, 16), r(3, 16, 32)])
        compiled(nn.Linear(64, 96).eval(), cache_dir, [r(192, 64)])
        compiled(
            nn.Sequential(nn.Linear(64, 96), nn.ReLU()).eval(), cache_dir, [r(99, 64)], [(0, 0)]
        )
        bias = r(24, 24)
        compiled(
            lambda *o: sdpa(*o, attn_mask=bias), cache_dir, [r(2, 4, 24, 16) for _ in range(3)]
        )
    with inductor_config.patch(fx_graph_cache=False):
        leaves = [r(2, 4, 24, 16, requires_grad=True) for _ in range(3)]
        out = compiled(lambda q, k, v: sdpa(q, k, v, is_causal=True), cache_dir, leaves)
        out.sum().backward()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with records of every kind a CPU has, timed by a fake clock."""
    cache_dir = tmp_path_factory.mktemp("repro") / "cache"

    def milliseconds(candidate: Any) -> float:
        return min(wrong_in_process.first(candidate), only(r"attention_math\.\w+")(candidate))

    with fresh_cache(), wrong_in_process.offered(), Lab(milliseconds, cache_dir).open():
        fill(cache_dir)
    inductor_plugin.disable()
    torch._dynamo.reset()
    return cache_dir


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one record, for who needs any: `filled` takes ten compiles."""
    cache_dir = tmp_path_factory.mktemp("repro") / "cache"
    with fresh_cache(), Lab(wrong_in_process.first, cache_dir).open(), torch.no_grad():
        compiled(torch.mm, cache_dir, [torch.randn(24, 16), torch.randn(16, 32)])
    inductor_plugin.disable()
    torch._dynamo.reset()
    return cache_dir


def records(cache_dir: Path) -> list[Record]:
    return list(open_store(cache_dir).iter_records())


def written(cache_dir: Path, stored: Record, path: Path, capsys: Any) -> dict[str, Any]:
    command = ["repro", stored.digest, "--cache-dir", str(cache_dir), "--json", "--force"]
    assert main([*command, "--out", str(path)]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_kind_of_record_becomes_python(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: set[str] = set()
    for stored in records(filled):
        said = written(filled, stored, tmp_path / "one.py", capsys)
        assert said["runs"], said["reason"]
        assert said["script"] is None
        text = (tmp_path / "one.py").read_text(encoding="utf-8")
        compile(text, "one.py", "exec")
        assert stored.digest in text
        assert stored.describe in text
        assert stored.decision is not None
        assert f"WINNER = {stored.decision.winner!r}" in text
        for name, candidate in stored.candidates.items():
            row = next(line for line in text.splitlines() if name in line)
            assert f"{candidate.median_ms:.4g}" in row
        seen.add(stored.op)
    wanted = {"mm", "addmm", "bmm", "baddbmm", "packed_linear", "linear_unary"}
    assert seen == wanted | {"attention", "attention_backward"}


def test_a_class_of_sizes_is_rendered_with_the_size_it_was_measured_at(filled: Path) -> None:
    (stored,) = (r for r in records(filled) if r.op == "mm" and r.problem["dynamic"])
    text = script(stored, {}, str(filled)).text
    assert "DYNAMIC = [(0, 0, 33, 64)]" in text
    assert "'stands_for': '33..64x16'" in text
    assert "'size': (40, 16), 'stride': (16, 1)" in text


def test_a_script_imports_what_makes_a_device_known_to_torch(known: Path) -> None:
    npu = {"device": {"type": "npu", "name": "Fake NPU"}}
    (record,) = records(known)
    line = f"import {fakes.HERE}  # makes npu known to torch\n"
    with fakes.described():
        text = script(record, npu, str(known)).text
        assert line in text
        compile(text, "script.py", "exec")
        assert line not in script(record, {"device": {"type": "cpu"}}, str(known)).text
    assert line not in script(record, npu, str(known)).text


@pytest.mark.slow
def test_scripts_meet_their_records_and_are_right(
    filled: Path, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts: dict[str, Record] = {}
    for number, stored in enumerate(records(filled)):
        path = tmp_path / f"{number}_{stored.op}.py"
        written(filled, stored, path, capsys)
        scripts[str(path)] = stored
    template = "tests.support.candidates.wrong_in_process:TraitorTemplate"
    ended = ran([*scripts], repository, tmp_path / "inductor", "--register", template)
    for path, (status, said) in ended.items():
        decided = scripts[path].decision
        assert decided is not None
        assert f"chosen: {decided.winner} (as recorded; " in said, f"{path}: {said}"
        assert said.endswith("\nright\n"), f"{path}: {said}"
        assert status == 0
    winners = {stored.decision.winner for stored in scripts.values() if stored.decision}
    assert any(name.startswith("traitor.") for name in winners)
    assert any(name.startswith("attention_math.") for name in winners)


@pytest.mark.slow
def test_a_script_runs_alone_and_says_what_is_wrong(
    filled: Path, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = next(r for r in records(filled) if r.op == "mm" and not r.problem["dynamic"])
    path = tmp_path / "mm.py"
    written(filled, stored, path, capsys)
    text = path.read_text(encoding="utf-8")
    assert text.count("    return torch.mm(a, b)\n") == 2  # as compiled, and exact
    broken = tmp_path / "broken.py"
    broken.write_text(
        text.replace("return torch.mm(a, b)\n", "return torch.mm(a, b) * 1.5\n", 1),
        encoding="utf-8",
    )
    for script_, status, verdict in ((path, 0, "right"), (broken, 1, "WRONG")):
        done = subprocess.run(
            [
                sys.executable,
                str(script_),
                "--register",
                "tests.support.candidates.wrong_in_process:TraitorTemplate",
            ],
            cwd=tmp_path,
            env={**process_environment(), "PYTHONPATH": str(repository)},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stderr.decode()[-4000:]
        lines = done.stdout.decode().splitlines()
        assert lines[0].startswith("chosen: traitor.mm-")
        assert lines[-1] == verdict


@pytest.mark.slow
def test_a_script_of_a_bare_call_runs_where_there_is_no_plugin(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = next(r for r in records(filled) if r.op == "mm" and not r.problem["dynamic"])
    path = tmp_path / "mm.py"
    written(filled, stored, path, capsys)
    code = (
        "import runpy, sys\n"
        "sys.modules['inductor_plugin'] = None\n"
        "sys.argv = ['mm.py', '--stock']\n"
        f"runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**process_environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert done.stdout.decode().splitlines()[-1] == "right"


@pytest.mark.slow
def test_a_record_is_timed_against_the_library_kernel(
    filled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CALM))
    stored = next(r for r in records(filled) if r.op == "attention")
    command = ["bench", stored.digest, "--seconds", "0.1", "--json", "--cache-dir", str(filled)]
    assert main(command) in (0, 1)
    times = json.loads(capsys.readouterr().out)
    follow("bench", times)
    assert times["low"] <= times["speedup"] <= times["high"]
    assert times["rounds"] >= 10
    assert min(times["winner_ms"], times["library_ms"]) > 0


@pytest.mark.slow
def test_a_winner_that_is_not_the_fastest_is_regretted(
    filled: Path,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAITOR_REPEATS", "300")
    monkeypatch.setenv("PYTHONPATH", f"{CALM}{os.pathsep}{repository}")
    template = "tests.support.candidates.wrong_in_process:TraitorTemplate"
    command = ["bench", "--regret", "--op", "mm", "--seconds", "0.1", "--register", template]
    assert main([*command, "--json", "--cache-dir", str(filled)]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["not_timed"]
    assert len(said["records"]) == sum(r.op == "mm" for r in records(filled))
    for row in said["records"]:
        assert row["winner"].startswith("traitor.mm-")
        assert not row["fastest"].startswith("traitor.mm-")
        assert row["ratio"] > 3.0
        assert row["lost_ms"] > 0.6 * row["winner_ms"]
        assert not row["missing"]
    # A template that is not registered is not offered: the record's winner does not run either.
    assert main([*command[:-2], "--json", "--cache-dir", str(filled)]) == 2
    without = json.loads(capsys.readouterr().out)
    follow("bench_regret", said, without)
    assert main([*command[:-2], "--cache-dir", str(filled)]) == 2
    assert "not timed: mm(" in capsys.readouterr().out


def test_what_cannot_be_rebuilt_keeps_its_metadata_and_says_so(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(cache_dir)
    plain = record(measured("fast", 1.0), decision=decision("fast"))
    operand = {
        "size": [4, 8],
        "stride": [8, 1],
        "dtype": "float32",
        "device": "cpu",
        "offset": 0,
        "layout": "strided",
        "constant": False,
    }
    problem = {
        "schema": 2,
        "op": "grouped_mm",
        "inputs": [operand],
        "output": operand,
        "arguments": [],
        "epilogue": "",
        "dynamic": [],
    }
    stored = replace(plain, op="grouped_mm", problem=problem, describe="grouped_mm(4x8)")
    store.put_record(stored)
    path = tmp_path / "grouped.py"
    assert main(["repro", stored.digest, "--cache-dir", str(cache_dir), "--out", str(path)]) == 0
    said = capsys.readouterr()
    assert "metadata only: this version cannot rebuild a call of grouped_mm" in said.err
    assert main(["bench", stored.digest, "--cache-dir", str(cache_dir)]) == 2
    assert "cannot be run alone" in capsys.readouterr().err
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 3
    assert b"grouped_mm(4x8): the call cannot be rebuilt: this version" in done.stdout
    assert b"'size': (4, 8)" in done.stdout
    for odd in (replace(stored, problem={}), replace(stored, describe="grouped_mm")):
        assert "are not those of grouped_mm" in script(odd, {}, "/nowhere").refused
    fused = replace(stored, op="mm", problem={**problem, "op": "mm", "epilogue": "relu"})
    assert "epilogue" in script(fused, {}, "/nowhere").refused


def test_every_operator_that_is_recorded_is_rebuilt_or_refused_by_name() -> None:
    from inductor_plugin.inductor.graph.deferral import DEFERRABLE

    known = {*FORMS, *ATTENTIONS}
    assert known == DEFERRABLE | {"attention", "attention_backward"}
    for op in {*OPS, *GROUPED_OPS, "weight_int4pack_mm", "flex_attention"} - known:
        bare: dict[str, Any] = {"op": op, "inputs": [], "arguments": [], "output": {}}
        with pytest.raises(NotReproducible, match=f"this version cannot rebuild a call of {op}"):
            call_of(bare, [])


@pytest.mark.parametrize("key", ["0123456789", ""])
def test_an_unknown_key_is_an_error(
    known: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repro", key, "--cache-dir", str(known)]) == 2
    assert "nothing in" in capsys.readouterr().err


def test_a_key_of_another_kind_is_an_error(known: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stored,) = records(known)
    assert main(["repro", f"{stored.environment[:6]}/", "--cache-dir", str(known)]) == 2
    assert "only records are of one call" in capsys.readouterr().err


def test_an_ambiguous_key_names_what_it_may_mean(
    cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(cache_dir)
    entries = [record(measured("fast", 1.0), problem=number) for number in range(17)]
    for entry in entries:
        store.put_record(entry)
    # Seventeen digests, sixteen digits: two begin alike.
    first, count = Counter(entry.digest[0] for entry in entries).most_common(1)[0]
    assert count > 1
    key = f"{entries[0].environment[:6]}/{first}"
    assert main(["repro", key, "--cache-dir", str(cache_dir)]) == 2
    assert "is not unique: record " in capsys.readouterr().err


def test_the_verb_needs_no_torch(known: Path) -> None:
    (stored,) = records(known)
    code = (
        "import sys; from inductor_plugin.cli import main; "
        f"main(['repro', '{stored.digest}', '--cache-dir', {str(known)!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b'"""One call, alone: ')
