"""A graph that was recorded is decided by its pins: fusions and built kernels, too, on a GPU that is not there."""

# pyright: reportUnknownParameterType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._inductor.exc import InductorError
from torch.nn import functional

import inductor_plugin
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError, PinError
from inductor_plugin.inductor.graph import pinning
from inductor_plugin.inductor.graph.pinning import Pinning
from inductor_plugin.inductor.graph.trial import Trial
from inductor_plugin.kernels.call import SequenceKernel
from inductor_plugin.tuning.pins.document import dump, read_file
from inductor_plugin.tuning.pins.merge import merge
from inductor_plugin.tuning.pins.pin import PinFile
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.fakes.tasks import problem
from tests.support.lowering import Arg, Lab, library_last, visited_first

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

A, B, C = Arg((1024, 512)), Arg((512, 2048)), Arg((2048,))


SMALL = (Arg((256, 128)), Arg((128, 384)), Arg((384,)))
Inputs = tuple[Arg, ...]


def activated(a: Any, b: Any, c: Any) -> Any:
    return (functional.relu(a @ b + c),)


def product(a: Any, b: Any, _c: Any) -> Any:
    return (a @ b,)


def times(fused: float, apart: float) -> Callable[[BenchCandidate], float]:
    def taken(candidate: BenchCandidate) -> float:
        kernel = candidate.kernel
        if isinstance(kernel, SequenceKernel):
            return fused if len(kernel.parts) == 1 else apart
        return 0.010 if "extern" in type(kernel).__name__.lower() else 0.0105

    return taken


FUSED, APART = times(0.011, 0.020), times(0.020, 0.011)


def recorded(
    taken: Any, function: Any, folder: Path, inputs: Inputs = (A, B, C), **options: Any
) -> tuple[str, Path]:
    """Return the code of a tuned graph, and the pins recorded of it."""
    file = folder / "pins.json"
    with Lab(taken, folder / "tuned").open() as lab, inductor_plugin.record(file):
        code = lab.lower(function, *inputs, **options)
    return code, file


def replayed(
    function: Any, folder: Path, file: Path, inputs: Inputs = (A, B, C), **options: Any
) -> tuple[str, Lab]:
    """Return the code of a graph that pins decide, in an empty cache."""
    settings: dict[str, Any] = {"policy": "pinned", "pin_file": str(file), "strict": True}
    with Lab(library_last, folder / "empty").open() as lab:
        return lab.lower(function, *inputs, **{**settings, **options}), lab


@pytest.mark.parametrize("taken", [FUSED, APART], ids=["fused", "apart"])
def test_a_fusion_is_decided_by_its_pin(taken: Any, tmp_path: Path) -> None:
    tuned, file = recorded(taken, activated, tmp_path)
    assert any("+ add.relu" in pin.describe for pin in read_file(file).pins.values())
    code, lab = replayed(activated, tmp_path, file)
    assert code == tuned
    assert ("triton_tem_fused" in code) is (taken is FUSED)
    assert not lab.screens
    assert not lab.finals


def test_a_fusion_without_a_pin_is_two_kernels_or_an_error(tmp_path: Path) -> None:
    _, file = recorded(FUSED, activated, tmp_path)
    content = read_file(file)
    plain = {place: pin for place, pin in content.pins.items() if "+" not in pin.describe}
    assert len(plain) < len(content.pins)
    file.write_text(dump(PinFile(plain, content.environments)))
    code, lab = replayed(activated, tmp_path, file, strict=False)
    assert "triton_tem_fused" not in code
    assert not lab.screens
    assert not lab.finals
    with pytest.raises(
        InductorError, match=r"PinError: .* 1 problems .* \+ add.relu: it is not in the pin file"
    ):
        replayed(activated, tmp_path, file)


def test_what_the_file_calls_failed_is_the_library_kernel_or_an_error(tmp_path: Path) -> None:
    """The product alone and with its epilogue."""
    _, file = recorded(FUSED, activated, tmp_path)
    content = read_file(file)
    seen = PinFile({}, failed={pin.tried: "wrong" for pin in content.pins.values()})
    file.write_text(dump(merge([content, seen])))
    assert not read_file(file).pins
    code, lab = replayed(activated, tmp_path, file, strict=False)
    assert "triton_tem_fused" not in code
    assert "extern_kernels." in code
    assert not lab.screens
    assert not lab.finals
    lines = r".*what the pin file had for it was seen to fail: \S+ \(wrong\)"
    with pytest.raises(InductorError, match=rf"PinError: .* 2 problems {lines};{lines}"):
        replayed(activated, tmp_path, file)


def test_the_library_of_a_pinned_kernel_is_built_and_not_measured(tmp_path: Path) -> None:
    options: dict[str, Any] = {"gemm_backends": "ATEN,CUTLASS"}
    tuned, file = recorded(library_last, product, tmp_path, **options)
    (pin,) = read_file(file).pins.values()
    assert pin.template.startswith("cutlass")
    code, lab = replayed(product, tmp_path, file, **options)
    assert code == tuned
    (unit,) = lab.units
    assert [source.symbol in pin.winner or source.symbol in code for source in unit.sources] == [
        True
    ]
    assert not lab.screens
    assert not lab.finals


def test_a_fused_kernel_of_cutlass_is_decided_by_its_pin(tmp_path: Path) -> None:
    options = {"gemm_backends": "ATEN,TRITON,CUTLASS"}
    tuned, file = recorded(visited_first, activated, tmp_path, SMALL, **options)
    (pin,) = [each for each in read_file(file).pins.values() if "+" in each.describe]
    assert pin.winner.startswith("fused.cutlass")
    assert pin.template.startswith("cutlass")
    code, lab = replayed(activated, tmp_path, file, SMALL, **options)
    assert code == tuned
    assert len(lab.units) == 1
    assert not lab.screens
    assert not lab.finals


def test_recording_twice_writes_the_same_file(tmp_path: Path) -> None:
    _, file = recorded(FUSED, activated, tmp_path)
    again = tmp_path / "again.json"
    with Lab(FUSED, tmp_path / "tuned").open() as lab, inductor_plugin.record(again):
        lab.lower(activated, A, B, C)
    assert not lab.screens
    assert again.read_text() == file.read_text()
    replay = tmp_path / "replay.json"
    with inductor_plugin.record(replay):
        replayed(activated, tmp_path, file)
    assert (
        json.loads(replay.read_text())["environments"]
        == json.loads(file.read_text())["environments"]
    )


def test_a_recording_of_nothing_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    with pytest.raises(PinError, match="no graph was compiled"), inductor_plugin.record(file):
        pass
    assert not file.exists()
    with pytest.raises(OptionError, match="existing folder"), inductor_plugin.record(file / "x"):
        pass
    with pytest.raises(KeyError), inductor_plugin.record(file):
        raise KeyError
    assert not file.exists()


PROBLEM = problem()
SELECTION: Any = SimpleNamespace(environment="here", environment_fields={})


def pins_of(winner: str | None) -> Any:
    pin = None if winner is None else SimpleNamespace(winner=winner, template="")
    return SimpleNamespace(pin=lambda *_: pin, absence=lambda *_: "it is not in the pin file")


def test_a_problem_that_no_pin_decides_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    pinned = Pinning(Config(), pins_of("a"))
    pin = pinned.fusion(PROBLEM, SELECTION)
    assert pin is not None
    assert pin.winner == "a"
    pinned.only(PROBLEM, SELECTION, "a")
    Pinning(Config(), pins_of(None)).only(PROBLEM, SELECTION, "b")
    assert (pinned.unpinned, caplog.records) == ({}, [])
    pinned.only(PROBLEM, SELECTION, "b")
    assert len(pinned.unpinned) == 1
    assert "b, the only candidate, runs" in caplog.text
    without = Pinning(Config(), pins_of(None))
    assert without.fusion(PROBLEM, SELECTION) is None
    assert [*without.unpinned.values()] == ["it is not in the pin file"]


def test_strict_refuses_what_its_pin_does_not_decide() -> None:
    rows = range(1, 13)
    tickets: list[Any] = [
        SimpleNamespace(problem=problem(rows=each), unpinned="gone" if each > 1 else "")
        for each in rows
    ]
    Pinning(Config()).refuse(tickets)
    strict = Config(policy="pinned", strict=True, pin_file="pins.json")
    Pinning(strict).refuse(tickets[:1])
    with pytest.raises(PinError, match=r"11 problems of this graph .*; 1 more\. Record") as caught:
        Pinning(strict).refuse(tickets)
    assert str(caught.value).count(": gone") == 10
    with pytest.raises(PinError, match=r"1 problems of this graph .* a fusion: no pin\. Record"):
        Pinning(strict, None, {"a fusion": "no pin"}).refuse(tickets[:1])
    with pytest.raises(PinError, match=r"10 problems .*: gone\. Record"):
        Pinning(strict).refuse(tickets[:11])


def test_without_times_the_library_runs_or_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "is_library", lambda choice: choice.startswith("library"))
    assert pinning.untimed(["a", "library", "library of another kind"]) == ["library"]
    assert pinning.untimed(["a", "b"]) == ["a"]
    assert pinning.untimed([]) == []


def test_a_recording_keeps_a_graph_only_where_it_was_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Any] = []
    recording = SimpleNamespace(take=taken.append, take_graph=lambda *graph: taken.append(graph))
    monkeypatch.setattr(pinning, "active", lambda: [recording])
    tickets, known = list[Any](), cast("Any", "a store")
    pinned = Pinning(Config(), pins_of("tuned"))
    pinned.keep(tickets, None)
    pinned.keep(tickets, Trial("digest"))
    assert taken == [tickets, tickets]
    pinned.keep(tickets, Trial("digest", store=known, environment="here"))
    environment, digest, kept, pin = taken[-1]
    assert (environment, digest, kept, pin.winner) == ("here", "digest", known, "tuned")
    Pinning(Config()).keep(tickets, Trial("digest", store=known, environment="here"))
    assert taken[-1][3] is None
