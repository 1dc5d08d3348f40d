"""A record of a product with its epilogue, made by a lowering, as a script that meets it again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from inductor_plugin.cache import Record, digest_of, open_store
from inductor_plugin.cli import main
from inductor_plugin.cli.again.child import chosen
from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.inductor.graph.session import OBSERVERS
from inductor_plugin.ops.epilogue_eval import evaluate
from inductor_plugin.problem.epilogue_text import load
from inductor_plugin.repro.script import script
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.cli.command import answer_of
from tests.support.fusion_lab import APART, FUSED, A, B, C, activated
from tests.support.lowering import Arg, Lab
from tests.support.processes.repro import ran

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F32, F8, I8 = torch.float32, torch.float8_e4m3fn, torch.int8


def split_rows(x: Any, w: Any, r: Any) -> Any:
    return (functional.silu((x.view(1024, 512) @ w).view(8, 128, 2048)) * r,)


def squared(a: Any, b: Any, c: Any) -> Any:
    return (functional.relu(a @ b + c).square(),)


def column(a: Any, b: Any, s: Any) -> Any:
    return ((a @ b) * s[:, None],)


def halves(a: Any, b: Any, r: Any) -> Any:
    return ((a @ b) * torch.sigmoid(r[:, 2048:]) * r[:, :2048],)


def turned(a: Any, b: Any, r: Any) -> Any:
    return (functional.relu(a @ b) + r.t(),)


def kept(a: Any, b: Any, r: Any, w: Any) -> Any:
    product = a @ b
    return product, torch.sigmoid(product) * r, product @ w


def biased(c: Any, a: Any, b: Any) -> Any:
    product = torch.addmm(c, a, b)
    return product, functional.relu(product)


def scaled(a: Any, b: Any, sa: Any, sb: Any, c: Any) -> Any:
    return (functional.relu(torch._scaled_mm(a, b, sa, sb, out_dtype=torch.bfloat16)) * c,)


def convolved(x: Any, w: Any, b: Any) -> Any:
    product = torch.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return (functional.relu(product),)


def dequantized(a: Any, b: Any, s: Any) -> Any:
    return ((torch._int_mm(a, b).float() * s).to(torch.bfloat16),)


def wide(a: Any, b: Any) -> Any:
    return (functional.relu(torch.mm(a, b, out_dtype=torch.float32)),)


def batched(a: Any, b: Any, c: Any) -> Any:
    return (torch.tanh(torch.bmm(a, b)) * c,)


GRAPHS: dict[Callable[..., Any], tuple[Arg, ...]] = {
    activated: (A, B, C),
    split_rows: (Arg((8, 128, 512)), B, Arg((8, 128, 2048))),
    squared: (A, B, C),
    column: (A, B, Arg((1024,))),
    halves: (A, B, Arg((1024, 4096))),
    turned: (A, B, Arg((2048, 1024))),
    kept: (A, B, Arg((1024, 2048)), Arg((2048, 64))),
    biased: (C, A, B),
    batched: (Arg((4, 256, 512)), Arg((4, 512, 1024)), Arg((4, 1, 1024))),
    scaled: (Arg((1024, 512), F8), Arg((512, 2048), F8, (1, 512)), Arg((), F32), Arg((), F32), C),
    convolved: (Arg((32, 64, 32, 32)), Arg((64, 64, 3, 3)), Arg((64,))),
    dequantized: (Arg((1024, 512), I8), Arg((512, 2048), I8), Arg((2048,), F32)),
    wide: (A, B),
}

COMPUTED = (activated, split_rows, column, halves, turned, dequantized)
"""Those whose two parts a CPU computes with the code of the tests."""
ASKED = [graph for graph in GRAPHS if graph is not split_rows or torch_version() >= (2, 13)]
"""torch 2.11 does not ask about what reads a product through a view that splits its rows."""


def fused_record(cache_dir: Path) -> Record:
    (record,) = (
        record for record in open_store(cache_dir).iter_records() if record.problem["epilogue"]
    )
    return record


def loaded(text: str) -> dict[str, Any]:
    """Return what a script defines; its operands are on the CPU."""
    # Dynamo imports the module of a function that it inlines (torch 2.11).
    module = sys.modules["repro_script"] = ModuleType("repro_script")
    text = text.replace("'device': 'cuda'", "'device': 'cpu'")
    exec(compile(text, "repro_script.py", "exec"), module.__dict__)
    return module.__dict__


def met(
    call: Callable[..., Any], arguments: Sequence[Arg], cache_dir: Path, **more: Any
) -> list[TuningTicket]:
    """Return what is decided of a call by the records that are there."""
    tickets: list[TuningTicket] = []
    OBSERVERS.append(tickets.extend)
    try:
        with Lab(APART, cache_dir).open() as lab:
            lower = lab.lower_dynamic if more else lab.lower
            lower(call, *arguments, policy="cached")
    finally:
        OBSERVERS.remove(tickets.extend)
    assert lab.screens == []
    return tickets


def listed(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        out = call(*arguments)
        return out if isinstance(out, tuple) else (out,)

    return called


@pytest.mark.parametrize("graph", ASKED, ids=lambda graph: graph.__name__)
def test_a_fused_record_becomes_a_script_that_meets_it(
    graph: Callable[..., Any], cache_dir: Path
) -> None:
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower(graph, *GRAPHS[graph])
    record = fused_record(cache_dir)
    assert record.decision is not None
    assert record.decision.winner.startswith("fused.")
    repro = script(record, {}, str(cache_dir))
    assert repro.refused == ""
    names = loaded(repro.text)
    arguments = [
        Arg(tuple(operand["size"]), getattr(torch, operand["dtype"]), tuple(operand["stride"]))
        for operand in names["OPERANDS"]
    ]
    tickets = met(listed(names["call"]), arguments, cache_dir)
    (same,) = [ticket for ticket in tickets if ticket.digest == record.digest]
    assert same.verdict is not None
    assert same.verdict.winner == record.decision.winner


@pytest.mark.parametrize("graph", [graph for graph in ASKED if graph in COMPUTED])
def test_a_script_computes_what_the_epilogue_does(
    graph: Callable[..., Any], cache_dir: Path
) -> None:
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower(graph, *GRAPHS[graph])
    record = fused_record(cache_dir)
    names = loaded(script(record, {}, str(cache_dir)).text)
    flats = [names["storage"](operand) for operand in names["OPERANDS"]]
    values = [names["inside"](operand, names["outside"](operand)) for operand in names["OPERANDS"]]
    epilogue = load(record.epilogue).epilogue
    product = (
        torch._int_mm(*values[:2])
        if graph is dequantized
        else torch.mm(*(value.float() for value in values[:2]))
    )
    # Straight from the memory, by the strides of the note.
    read = [
        torch.as_strided(
            flats[2 + int(access.buffer[-1])], epilogue.size, access.stride, access.offset
        )
        for access in epilogue.reads
    ]
    (wanted,) = evaluate(epilogue, product, read)
    (result,) = names["call"](*values)
    assert list(result.shape) == record.problem["output"]["size"]
    (exact,) = names["exact"](*map(names["exactly"], names["OPERANDS"]))
    assert names["error"]([wanted.view(exact.shape)], [exact]) <= names["TOLERANCE"]
    # Eager rounds after each step.
    assert names["error"]([result], [exact]) <= 4 * names["TOLERANCE"]
    assert names["error"]([result * 1.5], [exact]) > 4 * names["TOLERANCE"]


def test_unknown_sizes_stay_unknown(cache_dir: Path) -> None:
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower_dynamic(activated, A, B, C)
    record = fused_record(cache_dir)
    assert record.problem["dynamic"]
    repro = script(record, {}, str(cache_dir))
    assert "DYNAMIC = [(0, 0, 513, 1024)]" in repro.text
    tickets = met(listed(loaded(repro.text)["call"]), (A, B, C), cache_dir, dynamic=True)
    assert record.digest in [ticket.digest for ticket in tickets]


def test_a_record_without_a_note_keeps_its_metadata(cache_dir: Path) -> None:
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower(activated, A, B, C)
    record = fused_record(cache_dir)
    repro = script(replace(record, epilogue={}), {}, str(cache_dir))
    assert "an earlier version wrote the record" in repro.refused
    assert "'size': (1024, 512)" in repro.text
    unmeasured = replace(record, epilogue={}, candidates={})
    assert "nothing was measured" in script(unmeasured, {}, str(cache_dir)).refused
    later = replace(record, epilogue={**record.epilogue, "version": "2"})
    assert "noted in form '2', not 1" in script(later, {}, str(cache_dir)).refused
    steps = {**record.epilogue, "step 3": "masked_subblock 2"}
    repro = script(replace(record, epilogue=steps), {}, str(cache_dir))
    assert "'masked_subblock'" in repro.refused
    assert "EPILOGUE = {" in repro.text


def test_the_note_is_no_part_of_what_a_record_is(cache_dir: Path) -> None:
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower(activated, A, B, C)
    record = fused_record(cache_dir)
    assert record.epilogue["step 3"] == "relu 2"
    assert record.digest == digest_of(record.problem)
    assert not {"step 3", "version"} & set(record.problem)
    assert record.problem["epilogue"] == load(record.epilogue).epilogue.signature


def test_the_note_goes_where_the_record_goes(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower(activated, A, B, C)
    record, other = fused_record(cache_dir), tmp_path / "other"
    assert main(["export", str(tmp_path / "all.tar.gz"), "--cache-dir", str(cache_dir)]) == 0
    assert main(["import", str(tmp_path / "all.tar.gz"), "--trust", "--cache-dir", str(other)]) == 0
    assert fused_record(other) == record
    assert main(["verify", "--cache-dir", str(other)]) == 0
    capsys.readouterr()
    assert answer_of(open_store(other), capsys, "show", record.digest)["epilogue"]
    said = answer_of(open_store(other), capsys, "repro", record.digest)
    assert said["runs"]
    assert "\nafter = inductor_plugin.replay(EPILOGUE, OPERANDS[2:])\n" in said["script"]
    assert "    return after(torch.mm(a, b), operand0)\n" in said["script"]
    assert "'step 3': 'relu 2'" in said["script"]


@pytest.mark.slow
def test_a_script_says_what_is_right_and_what_is_wrong(
    cache_dir: Path, tmp_path: Path, repository: Path
) -> None:
    """All of it but the GPU: on a CPU the call is another record, which it says."""
    with Lab(FUSED, cache_dir).open() as lab:
        lab.lower(kept, *GRAPHS[kept])
    text = script(fused_record(cache_dir), {}, str(cache_dir)).text
    text = text.replace("'device': 'cuda'", "'device': 'cpu'")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(text, encoding="utf-8")
    line = "    off, accepted = error(run(), wanted)"
    assert text.count(line) == 1
    # As if the kernel had left out a part; what eager gives stays right.
    odd = line.replace("run()", "[run()[0] * 1.25, *run()[1:]]")
    wrong.write_text(text.replace(line, odd), encoding="utf-8")
    ended = ran([str(right), str(wrong)], repository, tmp_path / "inductor")
    assert [status for status, _ in ended.values()] == [0, 1]
    said = [text for _, text in ended.values()]
    assert all("chosen: the call was not this record" in output for output in said)
    assert said[0].endswith("\nright\n")
    assert said[1].endswith("\nWRONG\n")


@pytest.mark.parametrize(
    ("times", "how"), [(FUSED, "one kernel, fused"), (APART, "two kernels, not fused")]
)
def test_a_script_says_whether_it_is_fused(
    times: Any, how: str, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lab(times, cache_dir).open() as lab:
        lab.lower(activated, A, B, C)
    record = fused_record(cache_dir)
    names = loaded(script(record, {}, str(cache_dir)).text)
    tickets = met(listed(names["call"]), (A, B, C), cache_dir)
    assert record.decision is not None
    assert chosen(SimpleNamespace(**names), tickets) == record.decision.winner
    assert f"(as recorded; {record.decision.reason}" in (said := capsys.readouterr().out)
    assert said.endswith(f"; {how})\n")
