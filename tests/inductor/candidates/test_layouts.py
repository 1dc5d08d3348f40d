"""The layouts an operand comes in: judged as the view that is read, and right, on a CPU and for a GPU."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch._dynamo import config as dynamo_config
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

import inductor_plugin
from inductor_plugin.inductor.candidates import layouts as layouts_module
from inductor_plugin.problem import Problem
from tests.support import gpu
from tests.support.candidates import fast_templates
from tests.support.candidates.row_major_ops import CALLS, first, picky_offered
from tests.support.cutlass.forced import BACKENDS, calls, opened
from tests.support.graphs.layouts import CASES, Spec, fought_over, turned, turned_inputs, unbacked
from tests.support.lowering import Arg, Lab, library_first, library_last

pytestmark = pytest.mark.compat
needs_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

SMALL = (256, 128, 512)
LARGE = (4096, 4096, 4096)
"""On an H100 a copy of either operand takes a sixth of the product's time."""


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with (
        inductor_config.patch(fx_graph_cache=False),
        dynamo_config.patch(capture_dynamic_output_shape_ops=True),
    ):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def tensor(spec: Spec) -> torch.Tensor:
    size, stride = spec
    dense = torch.empty(size) if stride is None else torch.empty_strided(size, stride)
    return dense.normal_()


def run(function: Callable[..., Any], operands: Any, lab: Lab, **options: Any) -> tuple[Any, str]:
    """Return what the compiled function gives on a CPU, and its code."""
    settings = {"cache_dir": str(lab.cache_dir), "table": "off", "progress": "off"} | options
    compiled = torch.compile(function, backend="inductor_plugin", options=settings)
    answer, codes = run_and_get_code(compiled, *operands)
    return answer, codes[0]


def lowered(lab: Lab, function: Callable[..., Any], *specs: Spec, **options: Any) -> str:
    """Return the code of a function for a GPU that is not there."""
    arguments = [Arg(size, stride=stride) for size, stride in specs]

    def listed(*tensors: torch.Tensor) -> Any:
        answer = function(*tensors)
        return answer if isinstance(answer, tuple) else (answer,)

    return lab.lower(listed, *arguments, **options)


def layouts(problem: Problem) -> tuple[Any, ...]:
    return tuple((operand.stride, operand.offset) for operand in problem.inputs)


@pytest.mark.parametrize("name", CASES)
def test_a_picky_kernel_gets_what_it_takes_and_is_right(name: str, cache_dir: Path) -> None:
    case = CASES[name]
    operands = [tensor(operand) for operand in case.inputs(*SMALL)]
    with picky_offered(), Lab(first, cache_dir).open() as lab:
        answer, code = run(case.function, operands, lab)
    torch.testing.assert_close(answer, case.function(*operands), rtol=1e-4, atol=1e-3)
    problem = lab.tasks[-1].problem
    assert layouts(problem) == tuple(zip(case.strides(*SMALL), case.offsets, strict=True))
    which = "".join(f"_{index}" for index in case.picky)
    ours = [entry.name for entry in lab.tasks[-1].entries if "picky" in entry.name]
    assert ours == [f"picky::{problem.op}" + (f"_copied{which}" if which else "")]
    # What is written is what was measured: the operator behind its copies, or alone.
    wanted = f"inductor_plugin.copied_{len(problem.inputs)}" if which else f"picky.{problem.op}"
    assert f"torch.ops.{wanted}" in code
    called, strides = CALLS[-1]  # each call checks what its operands lie like
    assert called == problem.op
    for index, stride in enumerate(strides):
        assert index in case.picky or stride == case.strides(*SMALL)[index]


def test_the_number_of_rows_may_depend_on_data(cache_dir: Path) -> None:
    operands = (torch.randn(300, 128), torch.arange(300) % 3 > 0, torch.randn(128, 512))
    with picky_offered(), Lab(first, cache_dir).open() as lab:
        answer, _ = run(unbacked, operands, lab)
    torch.testing.assert_close(answer, unbacked(*operands), rtol=1e-4, atol=1e-3)
    assert CALLS[-1] == ("mm", ((128, 1), (512, 1)))


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convolve; the channels of a pixel lie together."""
    return torch.nn.functional.conv2d(x, w, padding=w.shape[-1] // 2)


PIXELS: Spec = ((4, 128, 8, 8), (8192, 1, 1024, 128))
FILTERS: Spec = ((512, 128, 1, 1), None)


@pytest.mark.parametrize(
    ("filters", "op", "strides"),
    [
        (((512, 128, 1, 1), None), "mm", ((128, 1), (1, 128))),
        (((512, 128, 3, 3), None), "convolution", ((8192, 1, 1024, 128), (1152, 1, 384, 128))),
    ],
)
def test_a_convolution_reads_channels_that_lie_together(
    filters: Spec, op: str, strides: tuple[Any, ...], cache_dir: Path
) -> None:
    # Without gradients oneDNN's own convolution takes the call's place.
    operands = tensor(PIXELS), tensor(filters).requires_grad_()

    def clock(candidate: Any) -> float:
        return 1.0 if "rivals" in repr(candidate.kernel) else 10.0

    with fast_templates.rivals_offered(), Lab(clock, cache_dir).open() as lab:
        fast_templates.CALLS.clear()
        answer, _ = run(convolved, operands, lab)
    torch.testing.assert_close(answer, convolved(*operands), rtol=1e-3, atol=1e-3)
    assert dict(fast_templates.CALLS) == {op: 1}
    assert tuple(operand.stride for operand in lab.tasks[0].problem.inputs) == strides
    assert answer.stride()[1] == 1


@needs_cuda
def test_on_a_gpu_a_filter_of_1x1_is_a_product_of_pixels(cache_dir: Path) -> None:
    with gpu.installed(), Lab(library_last, cache_dir).open() as lab:
        code = lowered(lab, convolved, PIXELS, FILTERS)
    (task,) = lab.tasks
    assert task.problem.op == "mm"
    assert layouts(task.problem) == (((128, 1), 0), ((1, 128), 0))
    assert "extern_kernels." not in code
    assert any("stride_am = 128" in job.source for job in lab.builds)


def test_a_copy_that_cannot_pay_is_not_offered(cache_dir: Path) -> None:
    case = CASES["transposed weight"]
    operands = [tensor(operand) for operand in case.inputs(8, 128, 512)]
    with picky_offered(), Lab(first, cache_dir).open() as lab:
        answer, code = run(case.function, operands, lab)
    torch.testing.assert_close(answer, case.function(*operands), rtol=1e-4, atol=1e-3)
    assert "copied" not in code
    assert not CALLS


@needs_cuda
@pytest.mark.parametrize("name", CASES)
def test_a_cutlass_kernel_reads_the_view(name: str, cache_dir: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    case = CASES[name]
    part = "_copied_" if case.cutlass else "cutlass"
    with opened(part, cache_dir) as lab:
        code = lowered(lab, case.function, *case.inputs(*LARGE), gemm_backends=BACKENDS)
    problem = lab.tasks[-1].problem
    assert layouts(problem) == tuple(zip(case.strides(*LARGE), case.offsets, strict=True))
    names = [entry.name for entry in lab.tasks[-1].entries]
    assert any("_copied_" in key for key in names) == bool(case.cutlass)
    *_, call = calls(code)
    read = case.read(*LARGE)
    assert len(call.operands) == len(read)
    for wanted, written in zip(read, call.operands, strict=True):
        assert written.endswith(wanted)
        assert wanted or "reinterpret_tensor" not in written
    if not case.cutlass:
        return
    assert call.op == f"copied_{len(read)}.out"
    # Kernels with TMA are behind the copies alone: the operand as it lies is too far from 16 bytes.
    assert all(("sm90" in key) == ("_copied_" in key) for key in names if "cutlass" in key)
    assert '"copies": {"0": ["row", 16, []]}' in str(call.arguments[1])


@needs_cuda
@pytest.mark.parametrize("name", CASES)
def test_a_triton_kernel_is_written_for_the_view(name: str, cache_dir: Path) -> None:
    case = CASES[name]
    with gpu.installed(), Lab(library_last, cache_dir).open() as lab:
        code = lowered(lab, case.function, *case.inputs(*SMALL), gemm_backends="ATEN,TRITON")
    problem = lab.tasks[-1].problem
    assert layouts(problem) == tuple(zip(case.strides(*SMALL), case.offsets, strict=True))
    kernels = [job.source for job in lab.builds if "stride_am" in job.source]
    assert kernels
    a, b = problem.inputs[-2:]
    source = kernels[-1]
    assert f"stride_am = {a.stride[-2]}" in source
    assert f"stride_bk = {b.stride[-2]}" in source
    assert f"stride_bn = {b.stride[-1]}" in source
    assert "extern_kernels." not in code


@needs_cuda
def test_rows_of_a_number_that_depends_on_data_are_lowered(cache_dir: Path) -> None:
    arguments = (Arg((300, 128)), Arg((300,), torch.bool), Arg((128, 512)))
    with gpu.installed(), Lab(library_last, cache_dir).open() as lab:
        code = lab.lower(lambda a, which, b: (unbacked(a, which, b),), *arguments)
    (task,) = lab.tasks
    assert [operand.stride for operand in task.problem.inputs] == [(128, 1), (512, 1)]
    assert [(size.operand, size.dim) for size in task.problem.dynamic] == [(0, 0)]
    assert re.search(r"empty_strided_cuda\(\(u0, 512\), \(512, 1\)", code)


OPEN = {"gemm_backends": "ATEN"}
"""Inductor's C++ template fixes its operands' layouts as soon as it is offered."""
BY_ROWS, BY_COLUMNS = (256 * 128, 128, 1), (256 * 128, 1, 256)


def product_strides(code: str) -> tuple[int, ...]:
    """Return the strides of the buffer that the product reads."""
    match = re.search(r"buf0 = empty_strided_\w+\(\([\d, ]+\), \(([\d, ]+)\)", code)
    assert match is not None
    return tuple(int(part) for part in match[1].split(",") if part.strip())


def test_what_was_open_keeps_the_strides_it_was_measured_with(cache_dir: Path) -> None:
    operands = [tensor(operand) for operand in turned_inputs(*SMALL)]
    with picky_offered(), Lab(first, cache_dir).open() as lab:
        answer, code = run(turned, operands, lab, **OPEN)
    torch.testing.assert_close(answer, turned(*operands), rtol=1e-4, atol=1e-3)
    assert lab.tasks[0].problem.inputs[0].stride == BY_ROWS
    assert product_strides(code) == BY_ROWS
    assert CALLS == [("bmm", (BY_ROWS, (128 * 512, 512, 1)))]


def test_where_the_library_wins_inductor_decides(cache_dir: Path) -> None:
    operands = [tensor(operand) for operand in turned_inputs(*SMALL)]
    with picky_offered(), Lab(library_first, cache_dir).open() as lab:
        answer, code = run(turned, operands, lab, **OPEN)
    torch.testing.assert_close(answer, turned(*operands), rtol=1e-4, atol=1e-3)
    assert product_strides(code) == BY_COLUMNS
    assert not CALLS


def test_the_library_runs_where_something_else_wants_other_strides(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operands = [tensor(operand) for operand in turned_inputs(*SMALL)]
    for turn in ("first", "again"):
        with picky_offered(), Lab(first, cache_dir / turn).open() as lab:
            answer, code = run(fought_over, operands, lab, **OPEN)
        for answered, two in zip(answer, fought_over(*operands), strict=True):
            torch.testing.assert_close(answered, two, rtol=1e-4, atol=1e-3)
        assert lab.tasks[0].problem.inputs[0].stride == BY_ROWS
        assert product_strides(code) == BY_COLUMNS
        assert "extern_kernels.bmm" in code
        assert not CALLS
        torch._dynamo.reset()
    (said,) = [record.message for record in caplog.records if "was measured with" in record.message]
    for part in ("buf0", str(BY_ROWS), str(BY_COLUMNS), "bmm runs instead of picky::bmm"):
        assert part in said


@needs_cuda
@pytest.mark.parametrize("backends", ["ATEN,TRITON", BACKENDS])
def test_a_gpu_kernel_reads_what_it_was_measured_on(backends: str, cache_dir: Path) -> None:
    if backends == BACKENDS:
        pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with gpu.installed(), Lab(library_last, cache_dir).open() as lab:
        code = lowered(lab, turned, *turned_inputs(*SMALL), gemm_backends=backends)
    assert lab.tasks[0].problem.inputs[0].stride == BY_ROWS
    assert product_strides(code) == BY_ROWS
    assert "extern_kernels." not in code


@needs_cuda
@pytest.mark.parametrize("backends", ["ATEN,TRITON", BACKENDS])
def test_a_gpu_runs_the_library_where_something_else_wants_other_strides(
    backends: str, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if backends == BACKENDS:
        pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with gpu.installed(), Lab(library_last, cache_dir).open() as lab:
        code = lowered(lab, fought_over, *turned_inputs(*SMALL), gemm_backends=backends)
    assert product_strides(code) == BY_COLUMNS
    assert "extern_kernels.bmm" in code
    assert not calls(code)
    said = [record.message for record in caplog.records if "was measured with" in record.message]
    assert len(said) == 1
    assert f"{BY_ROWS} and has {BY_COLUMNS}" in said[0]


@needs_cuda
@pytest.mark.parametrize("clock", [library_first, library_last])
@pytest.mark.parametrize("name", CASES)
def test_what_has_no_conflict_is_written_as_before(name: str, clock: Any, cache_dir: Path) -> None:
    case = CASES[name]

    def code(folder: str) -> str:
        with gpu.installed(), Lab(clock, cache_dir / folder).open() as lab:
            return lowered(lab, case.function, *case.inputs(*SMALL), gemm_backends="ATEN,TRITON")

    now = code("now")
    with (
        mock.patch.object(layouts_module.Layouts, "hold"),
        mock.patch.object(layouts_module.Layouts, "moved", return_value=[]),
    ):
        assert code("before") == now


_IR: Any = ir  # untyped


@contextmanager
def lowering(**constraints: Any) -> Generator[Any, None, None]:
    """Have a graph, with the layouts that it constrains buffers to."""
    graph: Any = SimpleNamespace(
        sizevars=SizeVarAllocator(), buffer_layout_constraints=constraints, unaligned_buffers=()
    )
    with V.set_graph_handler(graph):
        yield graph


def layout_of(size: Any, stride: Any = None) -> Any:
    """Return a layout, which is open without strides."""
    facts = torch.device("cpu"), torch.float32, [*size]
    return _IR.FixedLayout(*facts, [*stride]) if stride else _IR.FlexibleLayout(*facts)


@pytest.mark.parametrize(
    ("size", "now", "moved"),
    [
        ((4, 512), (512, 1), False),
        ((4, 512), (1, 4), True),
        ((1, 512), (1, 1), False),
        ((1, 512), (512, 2), True),
        ((4, 512), None, False),  # still open
    ],
)
def test_the_stride_of_a_dimension_of_one_element_means_nothing(
    size: Any, now: Any, *, moved: bool
) -> None:
    with lowering():
        buffer = _IR.ConstantBuffer(name="a", layout=layout_of(size, now))
        assert layouts_module.MeasuredInput(buffer, (512, 1)).moved is moved


def test_open_inputs_are_fixed_to_the_strides_that_they_were_measured_with() -> None:
    constrained = layout_of((4, 8), (1, 4))
    with lowering(b=constrained):
        layouts = layout_of((4, 8)), layout_of((4, 8)), layout_of((4, 8), (2, 8))
        nodes = [
            _IR.ConstantBuffer(name=name, layout=layout)
            for name, layout in zip("abc", layouts, strict=True)
        ]
        call: Any = SimpleNamespace(nodes=nodes)
        inputs = layouts_module.Layouts(call)
        assert inputs.open
        inputs.hold()
        assert not inputs.open
        assert [tuple(node.get_stride()) for node in nodes] == [(8, 1), (1, 4), (2, 8)]
        assert inputs.moved() == []


def test_only_the_library_takes_inputs_that_have_moved(caplog: pytest.LogCaptureFixture) -> None:
    problem = SimpleNamespace(describe=lambda: "mm(4x8, 8x4)")
    library, ours = SimpleNamespace(name="mm"), SimpleNamespace(name="a kernel")
    with lowering():
        moved = _IR.ConstantBuffer(name="a", layout=layout_of((4, 8), (8, 1)))
        call: Any = SimpleNamespace(nodes=[moved], problem=problem)
        inputs = layouts_module.Layouts(call)
        assert inputs.kept(ours, [library]) is ours
        moved.layout = layout_of((4, 8), (1, 4))
        assert inputs.kept(library, [library]) is library
        assert inputs.kept(ours, []) is ours
        assert not caplog.records
        assert inputs.kept(ours, [library]) is library
    (said,) = [record.getMessage() for record in caplog.records]
    assert "a was measured with strides (8, 1) and has (1, 4)" in said
    assert "mm runs instead of a kernel" in said
