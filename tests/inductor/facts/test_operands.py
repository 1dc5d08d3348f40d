"""What a problem states of a call on a GPU, and what its candidates are measured on."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from inductor_plugin.kernels.call import RequestKernel
from inductor_plugin.problem import Problem
from inductor_plugin.worker.jobs import BenchCandidate, TritonCompileJob, TritonTarget
from tests.support.lowering import BF16, Arg, Lab, Milliseconds, library_first, library_last

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

FP8 = torch.float8_e4m3fn
CONVOLUTION = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
A, B = Arg((256, 128)), Arg((128, 512))


@pytest.fixture
def lab(cache_dir: Path) -> Callable[..., Any]:
    def opened(milliseconds: Milliseconds = library_first, **facts: Any) -> Any:
        return Lab(milliseconds, cache_dir, **facts).open()

    return opened


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


OPERATORS: dict[str, tuple[Callable[..., Any], Sequence[Arg], dict[str, Any]]] = {
    "mm": (
        product,
        (A, B),
        {"sizes": [(256, 128), (128, 512)], "strides": [(128, 1), (512, 1)]},
    ),
    "mm of a slice and a transposed": (
        lambda a, b: (torch.mm(a[:, 64:192], b.t()),),
        (Arg((256, 256)), Arg((512, 128))),
        {"sizes": [(256, 128), (128, 512)], "strides": [(256, 1), (1, 128)], "offsets": [64, 0]},
    ),
    "mm of a matrix with itself": (
        lambda a: (torch.mm(a, a.t()),),
        (A,),
        {
            "sizes": [(256, 128), (128, 256)],
            "strides": [(128, 1), (1, 128)],
            "output": (256, 256),
        },
    ),
    "addmm": (
        lambda c, a, b: (torch.addmm(c, a, b),),
        (Arg((512,)), A, B),
        {
            "sizes": [(256, 512), (256, 128), (128, 512)],
            "strides": [(0, 1), (128, 1), (512, 1)],
            "arguments": {"alpha": "1", "beta": "1"},
        },
    ),
    "addmm with a bias that is computed": (
        lambda c, a, b: (torch.addmm(c.to(BF16), a, b),),
        (Arg((512,), torch.float32), A, B),
        {"sizes": [(256, 512), (256, 128), (128, 512)]},
    ),
    "bmm": (
        lambda a, b: (torch.bmm(a, b),),
        (Arg((8, 256, 64)), Arg((8, 64, 128))),
        {"sizes": [(8, 256, 64), (8, 64, 128)], "output": (8, 256, 128)},
    ),
    "baddbmm": (
        lambda c, a, b: (torch.baddbmm(c, a, b),),
        (Arg((8, 256, 128)), Arg((8, 256, 64)), Arg((8, 64, 128))),
        {"sizes": [(8, 256, 128), (8, 256, 64), (8, 64, 128)], "output": (8, 256, 128)},
    ),
    "int_mm": (
        lambda a, b: (torch._int_mm(a, b),),
        (Arg((256, 128), torch.int8), Arg((128, 512), torch.int8)),
        {"sizes": [(256, 128), (128, 512)], "written": "int32", "dtypes": ["int8", "int8"]},
    ),
    "scaled_mm": (
        lambda a, b, s, t: (torch._scaled_mm(a, b, s, t, out_dtype=BF16),),
        (
            Arg((256, 128), FP8),
            Arg((128, 512), FP8, (1, 128)),
            Arg((), torch.float32),
            Arg((), torch.float32),
        ),
        {
            "sizes": [(256, 128), (128, 512), (), ()],
            "dtypes": ["float8_e4m3fn", "float8_e4m3fn", "float32", "float32"],
            "arguments": {"out_dtype": "torch.bfloat16", "use_fast_accum": "False"},
        },
    ),
    "mm_plus_mm": (
        lambda a, b, c, d: (torch.mm(a, b) + torch.mm(c, d),),
        (A, B, A, B),
        {"sizes": [(256, 128), (128, 512)] * 2},
    ),
    "convolution": (
        lambda x, w: (torch.ops.aten.convolution(x, w, *CONVOLUTION),),
        (Arg((4, 32, 28, 28)), Arg((64, 32, 3, 3))),
        {
            "sizes": [(4, 32, 28, 28), (64, 32, 3, 3)],
            "output": (4, 64, 28, 28),
            "arguments": {"groups": "1", "transposed": "False"},
        },
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_problem_states_the_facts_and_its_candidates_travel(
    name: str, lab: Callable[..., Any]
) -> None:
    function, arguments, expected = OPERATORS[name]
    with lab() as opened:
        opened.lower(function, *arguments)
    (task,) = opened.tasks
    problem: Problem = task.problem
    assert problem.op == name.split()[0]
    assert [operand.size for operand in problem.inputs] == expected["sizes"]
    if "strides" in expected:
        assert [operand.stride for operand in problem.inputs] == expected["strides"]
    offsets = expected.get("offsets", [0] * len(problem.inputs))
    assert [operand.offset for operand in problem.inputs] == offsets
    dtypes = expected.get("dtypes", ["bfloat16"] * len(problem.inputs))
    assert [operand.dtype for operand in problem.inputs] == dtypes
    assert {operand.device for operand in (*problem.inputs, problem.output)} == {"cuda"}
    assert problem.output.size == expected.get(
        "output", (256, expected["sizes"][1][-1]) if problem.op == "mm" else (256, 512)
    )
    assert problem.output.dtype == expected.get("written", "bfloat16")
    assert set(expected.get("arguments", {}).items()) <= set(problem.arguments)
    assert problem.dynamic == ()

    libraries = [entry for entry in task.entries if entry.library]
    templates = opened.entries("triton")
    assert libraries
    assert len(templates) >= 5
    assert len(libraries) + len(templates) == len(task.entries)
    assert len({entry.candidate_id for entry in task.entries}) == len(task.entries)
    assert {job.candidate.candidate_id for job in opened.screens} == {
        entry.candidate_id for entry in task.entries
    }
    for template in templates:
        _travels(template.build, template.candidate)


def _travels(job: TritonCompileJob, candidate: BenchCandidate) -> None:
    """Check that a Triton candidate is called as its kernel is written."""
    assert job.target == TritonTarget("cuda", 90, 32)
    assert f"def {job.kernel_name}(" in job.source
    compile(job.source, "kernel.py", "exec")
    assert isinstance(candidate.kernel, RequestKernel)
    request = pickle.loads(candidate.kernel.payload)
    assert request.kernel_name == job.kernel_name
    assert request.module_cache_key == job.key
    assert Path(request.module_path).read_text() == job.source
    signature = re.search(r"'signature': (\{[^}]*\})", job.source)
    assert signature is not None
    pointers = [load for load in json.loads(signature[1].replace("'", '"')).values() if "*" in load]
    assert len(pointers) == len(candidate.inputs) + 1
    metas: Any = request.input_tensor_meta
    metas = metas if isinstance(metas, (list, tuple)) else [metas]
    assert [(operand.size, operand.stride, operand.offset) for operand in candidate.inputs] == [
        (tuple(meta.sizes), tuple(meta.strides), meta.offset) for meta in metas
    ]
    assert [f"torch.{operand.dtype}" for operand in candidate.inputs] == [
        str(m.dtype) for m in metas
    ]
    assert (candidate.output.size, candidate.output.stride) == (
        tuple(request.output_tensor_meta.sizes),
        tuple(request.output_tensor_meta.strides),
    )


def test_all_candidates_see_the_same_values(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(
            lambda c, a, b: (torch.addmm(c.to(BF16), a, b),), Arg((512,), torch.float32), A, B
        )
    seeds = {
        tuple((operand.seed, operand.storage) for operand in job.candidate.inputs)
        for job in opened.screens
    }
    assert len(seeds) == 1


def test_a_dynamic_size_is_measured_once_for_its_class(lab: Callable[..., Any]) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(a, b)) + 1

    with lab(library_last) as first:
        first.lower_dynamic(function, Arg((300, 128)), B)
    (task,) = first.products
    ((operand, dim, low, high),) = [(d.operand, d.dim, d.low, d.high) for d in task.problem.dynamic]
    assert (operand, dim, low, high) == (0, 0, 257, 512)
    (entry, *_) = first.entries("triton")
    assert entry.candidate.inputs[0].size == (300, 128)
    assert pickle.loads(entry.candidate.kernel.payload).extra_args[0] == 300
    with lab(library_last) as second:
        second.lower_dynamic(function, Arg((310, 128)), B)
    assert second.products == []


def test_two_dynamic_calls_of_different_row_strides_are_two_problems(
    lab: Callable[..., Any],
) -> None:
    def function(a: torch.Tensor, wide: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.mm(a, b), torch.mm(wide[: a.shape[0], :128], b)

    with lab(library_last) as opened:
        opened.lower_dynamic(function, Arg((300, 128)), Arg((600, 136)), B)
    strides = [task.problem.fields()["inputs"][0]["stride"] for task in opened.products]
    assert sorted(strides) == [[128, 1], [136, 1]]


def test_a_frozen_weight_is_measured_as_any_other_operand(lab: Callable[..., Any]) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    graph = torch.fx.Graph()
    with mode:
        a, w, out = (tensor.tensor() for tensor in (A, B, Arg((256, 512))))
        root = torch.nn.Module()
        root.register_buffer("w", w)
    nodes = (graph.placeholder("a"), graph.get_attr("w"))
    child = graph.call_function(torch.ops.aten.mm.default, nodes)
    graph.output((child,))
    for node, value in zip((*nodes, child), (a, w, out), strict=True):
        node.meta["val"] = value
    with lab() as opened:
        opened.lower_graph(torch.fx.GraphModule(root, graph), mode, [a])
    (task,) = opened.tasks
    assert [operand.constant for operand in task.problem.inputs] == [False, True]
    operands = {job.candidate.inputs for job in opened.screens}
    assert len(operands) == 1
    assert {(operand.device, operand.file) for operand in operands.pop()} == {("cuda:0", None)}


def test_a_choice_that_changes_its_operands_layouts_does_so_for_itself_alone() -> None:
    from torch._inductor import ir

    from inductor_plugin.inductor.facts.operands import sizes_kept

    fixed: Any = ir.FixedLayout
    layout: Any = fixed(torch.device("cpu"), torch.float32, [8, 32], [32, 1])
    node: Any = ir.InputBuffer(name="x", layout=layout)
    with sizes_kept([node]):
        layout.size[0], layout.stride[0] = 16, 64
    assert (list(layout.size), list(layout.stride)) == ([8, 32], [32, 1])
