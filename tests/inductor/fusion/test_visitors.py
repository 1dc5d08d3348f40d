"""Products with an epilogue of visitors: offered, chosen, called, and what the written call computes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.exc import InductorError
from torch.nn import functional

import inductor_plugin
from inductor_plugin.kernels.call import ExternKernel, OpKernel, SequenceKernel
from inductor_plugin.ops import gemm_epilogue
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.lowering import Arg, Lab, cpp_wrapper

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

M, N, K = 256, 384, 128
A, B = Arg((M, K)), Arg((K, N))
BACKENDS = {"gemm_backends": "ATEN,TRITON,CUTLASS"}
Graph = Callable[..., tuple[Any, ...]]


def is_visited(candidate: BenchCandidate) -> bool:
    """Return True for a kernel with an epilogue of visitors."""
    kernel = candidate.kernel
    return isinstance(kernel, SequenceKernel) and isinstance(kernel.parts[0].kernel, OpKernel)


def visited_first(candidate: BenchCandidate) -> float:
    """Say that kernels with visitors are the fastest, at times a GPU could have."""
    if isinstance(candidate.kernel, SequenceKernel):
        return 0.0090 if is_visited(candidate) else 0.0200
    return 0.0100 if isinstance(candidate.kernel, ExternKernel) else 0.0102


def visited_last(candidate: BenchCandidate) -> float:
    """Say that kernels with visitors are the slowest."""
    return 0.0300 if is_visited(candidate) else visited_first(candidate)


@pytest.fixture
def lab(cache_dir: Path) -> Iterator[Lab]:
    with Lab(visited_first, cache_dir).open() as opened:
        yield opened


def call_in(code: str) -> str:
    """Return the one call of a kernel with visitors in generated code."""
    (call,) = re.findall(
        r"^ *(torch\.ops\.inductor_plugin\.cutlass_mm_epilogue\.out\(.*\))$", code, re.M
    )
    return call


_READ = ("a", "b", "operands", "epilogue", "aux")
"""What the library product reads of a call."""


def run_on_cpu(code: str, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run the call that was written, and nothing else, on CPU tensors, by way of the library product."""
    names = re.search(r"^ *(\w+(?:, \w+)*),? = args$", code, re.M)
    assert names is not None
    space: dict[str, Any] = dict(zip(names[1].split(", "), tensors, strict=True))
    for name, size, stride, dtype in re.findall(
        r"^ *(buf\d+) = empty_strided_cuda\((\(.*?\)), (\(.*?\)), torch\.(\w+)\)", code, re.M
    ):
        space[name] = torch.empty_strided(eval(size), eval(stride), dtype=getattr(torch, dtype))

    signature = inspect.signature(gemm_epilogue.cutlass_mm_epilogue)

    def library(*arguments: Any, out: torch.Tensor) -> None:
        given = signature.bind(*arguments, out=out).arguments
        a, b, operands, text, aux = (given[name] for name in _READ)
        gemm_epilogue._library(a, b, operands, text, aux, out)

    space |= {"reinterpret_tensor": torch.as_strided, "library": library}
    eval(
        call_in(code).replace("torch.ops.inductor_plugin.cutlass_mm_epilogue.out", "library"), space
    )
    (returned,) = re.findall(r"^ *return \((buf\d.*?),? ?\)$", code, re.M)
    return tuple(space[part] for part in returned.split(", "))


CASES: dict[str, tuple[Graph, tuple[Arg, ...]]] = {
    "bias and relu": (lambda a, b, c: (functional.relu(a @ b + c),), (A, B, Arg((N,)))),
    "column": (lambda a, b, c: (functional.relu(a @ b + c),), (A, B, Arg((M, 1)))),
    "silu gate": (lambda a, b, c: (functional.silu(a @ b) * c,), (A, B, Arg((M, N)))),
    "padded residual": (
        lambda a, b, c: (functional.relu(a @ b) + c,),
        (A, B, Arg((M, N), stride=(N + 8, 1))),
    ),
    "gelu of addmm": (
        lambda a, b, c: (functional.gelu(torch.addmm(c, a, b)),),
        (A, B, Arg((N,))),
    ),
    "scaled addmm": (
        lambda a, b, c: (functional.relu(torch.addmm(c, a, b, alpha=0.5, beta=2.0)),),
        (A, B, Arg((M, N))),
    ),
    "batches with a bias each": (
        lambda a, b, c: (functional.relu(torch.bmm(a, b) + c),),
        (Arg((3, M, K)), Arg((3, K, N)), Arg((3, 1, N))),
    ),
    "transposed weight": (
        lambda a, b, c: (functional.relu(a @ b.t() + c),),
        (A, Arg((N, K)), Arg((N,))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_written_call_computes_the_graph(name: str, lab: Lab) -> None:
    function, arguments = CASES[name]
    code = lab.lower(function, *arguments, **BACKENDS)
    torch.manual_seed(0)
    tensors = [
        torch.randn(argument.size, dtype=torch.float32).to(argument.dtype)
        if argument.stride is None
        else torch.empty_strided(argument.size, argument.stride, dtype=argument.dtype).normal_()
        for argument in arguments
    ]
    (actual,) = run_on_cpu(code, tensors)
    (wanted,) = function(*(tensor.float() for tensor in tensors))
    error = (actual.float() - wanted).abs().max() / wanted.abs().max()
    assert error < 2e-2, f"{name}: {error:.2e}"
    assert code.count(" = empty_strided_cuda(") == 1, "the product needs no memory"
    assert "import inductor_plugin.ops.sites" in code


def test_a_product_that_others_read_is_written_too(lab: Lab) -> None:
    def graph(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = torch.mm(a, b)
        return product, functional.relu(product)

    code = lab.lower(graph, A, B, **BACKENDS)
    tensors = [torch.randn(tensor.size).to(tensor.dtype) for tensor in (A, B)]
    product, relu = run_on_cpu(code, tensors)
    wanted = torch.mm(*tensors)
    torch.testing.assert_close(product, wanted)
    torch.testing.assert_close(relu, wanted.relu())


def test_rows_known_only_at_run_time_are_in_the_call(lab: Lab) -> None:
    def graph(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return functional.relu((a @ b) * c)

    call = call_in(lab.lower_dynamic(graph, A, B, Arg((1, N)), **BACKENDS))
    assert re.search(rf"\[reinterpret_tensor\(\w+, \(1, {N}\), \(0, 1\), 0\)\]", call), call


@pytest.mark.parametrize(
    ("graph", "third"),
    [
        pytest.param(
            lambda a, b, c: functional.relu(a @ b) + c.narrow(0, a.shape[0], a.shape[0]),
            Arg((4 * M, N)),
            id="offset of an operand",
        ),
        pytest.param(
            lambda a, b, c: functional.relu(torch.addmm(c.narrow(0, a.shape[0], a.shape[0]), a, b)),
            Arg((4 * M, N)),
            id="offset of what addmm adds",
        ),
        pytest.param(
            lambda a, b, c: (
                functional.relu(a @ b)
                + c[: a.shape[0] * (N + a.shape[0])].view(a.shape[0], -1)[:, :N]
            ),
            Arg((4 * M * (N + M),)),
            id="stride of an operand",
        ),
    ],
)
def test_strides_of_run_time_are_not_written_as_numbers(graph: Graph, third: Arg, lab: Lab) -> None:
    code = lab.lower_dynamic(graph, A, B, third, **BACKENDS)
    assert "cutlass_mm_epilogue" not in code
    (record,) = [kept for kept in _records(lab) if kept["problem"]["epilogue"]]
    assert "only at run time" in record["rejected"]["visitors"]


@pytest.mark.parametrize("flipped_first", [True, False])
def test_an_operand_read_backwards_is_another_problem(
    flipped_first: bool,
    cache_dir: Path,
) -> None:
    def graph(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.relu(a @ b) + c

    def plain(a: Any, b: Any, c: Any) -> tuple[Any]:
        return (graph(c, a, b),)

    def flipped(a: Any, b: Any, c: Any) -> tuple[Any]:
        return (graph(c.flip(0), a, b),)

    codes: dict[Any, str] = {}
    for branch in (flipped, plain) if flipped_first else (plain, flipped):
        with Lab(visited_first, cache_dir).open() as lab:
            codes[branch] = lab.lower(branch, A, B, Arg((M, N)), **BACKENDS)
            assert lab.screens, "nothing is known of it from the other"
    assert "cutlass_mm_epilogue" in codes[plain]
    assert "cutlass_mm_epilogue" not in codes[flipped]


def test_a_number_on_the_host_is_inductors(lab: Lab) -> None:
    code = lab.lower(
        lambda a, b, c: (functional.relu(a @ b) * c,),
        A,
        B,
        Arg((), torch.float32, None, "cpu"),
        **BACKENDS,
    )
    assert "cutlass_mm_epilogue" not in code
    assert not [task for task in lab.tasks if task.problem.epilogue]


@pytest.mark.parametrize(
    ("graph", "third", "reason"),
    [
        (lambda a, b, c: (a @ b + c,), Arg((M, N), stride=(1, M)), "cutlass"),
        (lambda a, b, c: ((a @ b).t() + c,), Arg((N, M)), "view|stride|row|cutlass"),
        (lambda a, b, c: (torch.erfinv(a @ b) + c,), Arg((N,)), "erfinv"),
    ],
)
def test_what_visitors_cannot_take_is_left_to_others(
    graph: Graph, third: Arg, reason: str, lab: Lab
) -> None:
    code = lab.lower(graph, A, B, third, **BACKENDS)
    assert "cutlass_mm_epilogue" not in code
    records = [kept for kept in _records(lab) if kept["problem"]["epilogue"]]
    for record in records:
        assert re.search(reason, record["rejected"]["visitors"])


def test_a_slower_kernel_is_not_called(cache_dir: Path) -> None:
    function, arguments = CASES["bias and relu"]
    with Lab(visited_last, cache_dir).open() as lab:
        code = lab.lower(function, *arguments, **BACKENDS)
    assert "cutlass_mm_epilogue" not in code
    assert any(is_visited(job.candidate) for job in lab.screens)


def test_a_warm_process_measures_nothing(cache_dir: Path) -> None:
    function, arguments = CASES["bias and relu"]
    with Lab(visited_first, cache_dir).open() as cold:
        first = call_in(cold.lower(function, *arguments, **BACKENDS))
    with Lab(visited_first, cache_dir).open() as warm:
        assert call_in(warm.lower(function, *arguments, **BACKENDS)) == first
    assert cold.screens
    assert (warm.screens, warm.finals, warm.units) == ([], [], [])


def test_a_wrapper_in_cpp_gets_no_such_call(lab: Lab) -> None:
    function, arguments = CASES["bias and relu"]
    # Behind the scheduler, C++ wants the parameters of Triton kernels, which nobody compiles here.
    with cpp_wrapper(), contextlib.suppress(InductorError):
        lab.lower(function, *arguments, **BACKENDS)
    (record,) = [kept for kept in _records(lab) if kept["problem"]["epilogue"]]
    assert "C++" in record["rejected"]["visitors"]
    assert not any(is_visited(job.candidate) for job in lab.screens)


def test_a_look_at_its_output_names_the_kernel(lab: Lab) -> None:
    function, arguments = CASES["bias and relu"]
    code = lab.lower(function, *arguments, check_outputs="nan", **BACKENDS)
    (look,) = re.findall(r"^ *inductor_plugin\.ops\.output_check\.check\((.*)\)$", code, re.M)
    assert "'buf1', buf1" in look
    assert re.search(r"kernel='fused\.cutlass\.cutlass_sm90_\w+_evt_add_relu_", look)
    assert "+ add.relu'" in look


def test_values_that_must_be_rounded_between_are_left_to_others(lab: Lab) -> None:
    function, arguments = CASES["bias and relu"]
    with inductor_config.patch(emulate_precision_casts=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's, about a libdevice of another version
        code = lab.lower(function, *arguments, **BACKENDS)
    assert "cutlass_mm_epilogue" not in code


def test_disable_gives_inductors_writer_back(cache_dir: Path) -> None:
    inductor_plugin.disable()
    stock = CUDACombinedScheduling.codegen_template
    with Lab(visited_first, cache_dir).open() as lab:
        lab.lower(lambda a, b: (a @ b,), A, B)
        assert CUDACombinedScheduling.codegen_template is not stock
    inductor_plugin.disable()
    assert CUDACombinedScheduling.codegen_template is stock


def _records(lab: Lab) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in lab.cache_dir.glob("records/*/*/*.json")]
