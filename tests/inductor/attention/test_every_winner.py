"""Each candidate for an attention made to win: what is called with what, and what is given back.

The code is run on fake tensors: see `tests.support.attention.run`; code for unknown lengths on others than
it was made with. What has to come out is in `tests.support.attention.candidates`, for every candidate.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor.async_compile import AsyncCompile
from torch.nn.attention import SDPBackend

from inductor_plugin.attention.library import extern_name
from inductor_plugin.inductor.facts.compat import torch_version
from tests.support.attention.candidates import ROWS, Row, call, candidates
from tests.support.attention.graphs import body, lowered, varlen
from tests.support.attention.marks import ON_FAKE_GPU
from tests.support.attention.run import Called, Run, Wanted, ran, strides, truth
from tests.support.lowering import Lab

pytestmark = ON_FAKE_GPU

_UNKNOWN = {(row.candidate, row.gradient): row for row in reversed(ROWS) if True in row.lengths}
"""Of each candidate the first kind of call of unknown lengths: the rest differ in what is known, too."""
CASES = [
    (row, unknown)
    for row in ROWS
    for unknown in row.lengths
    if not unknown or row is _UNKNOWN[row.candidate, row.gradient]
]
NOT_COMPARED = {"kernel", "workspace", "ws_ptr", "ks0", "ks1", "ks2", "ks3"}
"""A CUTLASS kernel's digest, scratch memory, and unknown extents of a Triton kernel."""


def named(case: tuple[Row, bool]) -> str:
    row, unknown = case
    way = "backward" if row.gradient else "forward"
    return f"{row.candidate}-{way}-for_{row.kind}-{'unknown' if unknown else 'static'}"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have FlashAttention's packages where they are looked for; nothing imports what they compute."""
    cute = tmp_path / "site" / "flash_attn" / "cute"
    cute.mkdir(parents=True)
    for file in (cute / "__init__.py", cute.parent / "__init__.py"):
        file.touch()
    (tmp_path / "site" / "flash_attn_interface.py").touch()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    for name in {module for module in sys.modules if module.startswith("flash_attn")} - before:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile none of the kernels: what is generated is not run on a device."""
    for name in ("triton", "cpp_pybinding"):
        monkeypatch.setattr(AsyncCompile, name, lambda *_, **__: None)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("case", CASES, ids=named)
def test_who_wins_is_called_as_it_has_to_be(case: tuple[Row, bool], cache_dir: Path) -> None:
    row, unknown = case
    if row.candidate == "cutlass_fmha":
        pytest.importorskip("cutlass_library")
    run = forced(row, unknown, cache_dir)
    (invocation,) = run.calls
    assert invocation.name == row.called
    assert compared(invocation) == {
        name: argument.of(run) if isinstance(argument, Wanted) else argument
        for name, argument in row.arguments.items()
    }
    assert run.sources == row.sources


RUNS: dict[tuple[str, bool, str, bool], Run] = {}
"""The code of each case is made and run once."""


def forced(row: Row, unknown: bool, cache_dir: Path) -> Run:
    """Run the code in which a candidate wins, and compare its outputs with the traced operator's."""
    case = row.candidate, row.gradient, row.kind, unknown
    if case not in RUNS:
        RUNS[case] = _forced(row, unknown, cache_dir)
    return RUNS[case]


def _forced(row: Row, unknown: bool, cache_dir: Path) -> Run:
    traced = real = call(row.kind, gradient=row.gradient, unknown=unknown)
    code, lab = lowered(traced.graph, row.winner, cache_dir)
    assert re.match(f"{row.winner}-", lab.record()["decision"]["winner"])
    if row.sources[0] == "made of 0":
        is_measured_with_its_copy(row, lab)
    if unknown:
        real = call(row.kind, gradient=row.gradient, unknown=False, other=True)
    run = ran(code, real.graph, real.names)
    wanted = truth(real.graph)
    assert len(run.outputs) == len(wanted)
    for got, right in zip(run.outputs, wanted, strict=True):
        assert (got.dtype, got.size(), got.device) == (right.dtype, right.size(), right.device)
        assert strides(got) == strides(right)
    return run


def is_measured_with_its_copy(row: Row, lab: Lab) -> None:
    """Another order in memory: Inductor would mend the outputs of a graph, not the time of a candidate."""
    kernels = [screen.candidate for screen in lab.screens]
    (kernel,) = {
        compiled_kernel.kernel
        for compiled_kernel in kernels
        if re.match(f"{row.winner}-", compiled_kernel.candidate_id)
    }
    assert dict(getattr(kernel, "kwargs", ()))["order"] == ((0, 1, 2, 3),)


def compared(invocation: Called) -> dict[str, object]:
    return {name: value for name, value in invocation.arguments.items() if name not in NOT_COMPARED}


@pytest.mark.parametrize("unknown", [False, True], ids=["static", "unknown"])
def test_no_candidate_is_left_out(unknown: bool) -> None:
    """A new kernel or template has to have a row: in each direction, for known and unknown lengths."""
    wanted = candidates()
    if unknown:
        wanted -= {("attention_math", False), ("attention_math", True)}
    assert {(row.candidate, row.gradient) for row, case in CASES if case == unknown} == wanted


ALONE = [("cpu", False), ("cpu", True), ("window", False), ("window", True)]


@pytest.mark.parametrize(("kind", "gradient"), ALONE)
@pytest.mark.parametrize("unknown", [False, True], ids=["static", "unknown"])
def test_an_operator_that_wins_its_own_call_is_called_as_inductor_calls_it(
    kind: str, gradient: bool, unknown: bool, cache_dir: Path
) -> None:
    graph = call(kind, gradient=gradient, unknown=unknown).graph
    name = extern_name({"window": "fmha"}.get(kind, kind), gradient=gradient)
    assert body(lowered(graph, name, cache_dir)[0]) == body(graph.stock())


PAIRS = [
    ("flash", "cutlass_fmha", "triton_attention_backward"),
    ("flash", "flash4", "cudnn"),
    ("flash", "triton_attention", "efficient"),
    ("efficient", "cudnn", "flash"),
    ("efficient", "flash3", "cutlass_fmha"),
    ("cudnn", "efficient", "triton_attention_backward"),
    ("cudnn", "triton_attention", "flash"),
    ("window", "flash_window", "fmha"),
    ("window", "flash3", "triton_attention_backward"),
    ("packed", "flash4", "flash_varlen"),
    ("packed", "triton_attention", "triton_attention_backward"),
    ("varlen", "flash4", "varlen"),
    ("cpu", "attention_math", "cpu"),
    ("cpu", "cpu", "attention_math"),
]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(("kind", "first", "then"), PAIRS)
def test_one_forward_and_another_backward(
    kind: str, first: str, then: str, cache_dir: Path
) -> None:
    """What one winner gives back is what the code of the other takes, in size, stride and type."""
    if "cutlass_fmha" in (first, then):
        pytest.importorskip("cutlass_library")
    before, after = (
        next(
            row for row in ROWS if (row.candidate, row.gradient, row.kind) == (name, gradient, kind)
        )
        for name, gradient in ((first, False), (then, True))
    )
    forward = forced(before, False, cache_dir / "forward")
    traced = call(kind, gradient=True, unknown=False)
    code, _ = lowered(traced.graph, after.winner, cache_dir / "backward")
    out, lse = forward.outputs
    operands = {"out": out, "lse": lse} | {name: forward.input(name) for name in forward.names}
    tensors = [operands.get(n, t) for n, t in zip(traced.names, traced.graph.tensors, strict=True)]
    run = ran(code, traced.graph, traced.names, tensors)
    assert [invocation.name for invocation in run.calls] == [after.called]
    assert run.sources == after.sources


DECODES = [("decode", False), ("decode", True), ("few", False), ("few", True)]


@pytest.mark.parametrize(("kind", "unknown"), DECODES)
def test_a_decode_divides_the_keys_where_its_result_is_of_known_size(
    kind: str, unknown: bool, cache_dir: Path
) -> None:
    (row,) = (r for r in ROWS if (r.candidate, r.kind) == ("triton_attention_decode", kind))
    run = forced(row, unknown, cache_dir)
    (splits,) = re.findall(r"SPLITS : tl.constexpr = (\d+)", run.code)
    (invocation,) = run.calls
    divided = (kind, unknown) != ("few", True)
    assert (int(splits) > 1) == divided
    # Two sequences of two key heads each.
    assert invocation.grid == (4 * int(splits), 1, 1)
    assert ("ws_ptr" in invocation.arguments) == divided
    if divided:
        # The counters in it have to begin at zero.
        assert re.search(r"(workspace_\d+)\.zero_\(\)[\s\S]*\.run\(.*\1", body(run.code))


@pytest.mark.skipif(torch_version() < (2, 15), reason="where an argument names the backend")
def test_packed_sequences_for_cudnn_stay_with_it(cache_dir: Path) -> None:
    """cuDNN's kernel for packed sequences is no candidate of its own: it is torch's operator's."""
    backend = SDPBackend.CUDNN_ATTENTION.value
    graph = varlen(window=(-1, -1), backend=backend)
    code, lab = lowered(graph, "triton_attention_varlen", cache_dir / "read")
    assert body(code) == body(graph.stock())
    assert "cuDNN's statistics" in lab.record()["rejected"]["attention"]
    # Where nobody reads lse there are others, and what is measured is told of the backend.
    graph = varlen(window=(-1, -1), keep=(0,), backend=backend)
    code, lab = lowered(graph, "attention_varlen", cache_dir / "alone")
    assert body(code) == body(graph.stock())
    (stock,) = [job.candidate.kernel for job in lab.screens if job.library == job.candidate]
    assert dict(getattr(stock, "kwargs", ()))["backend"] == backend
