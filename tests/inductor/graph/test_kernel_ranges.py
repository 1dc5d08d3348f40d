"""A profile names the record and the candidate of each chosen kernel: in generated code of every kind, and run."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._inductor import ir
from torch._inductor.exc import InductorError
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

import inductor_plugin
from inductor_plugin.inductor.graph.chosen import Chosen
from inductor_plugin.inductor.graph.kernel_ranges import RangeWriter, are_written
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.attention.flex import Flex
from tests.support.attention.flex_lab import opened
from tests.support.attention.graphs import only
from tests.support.lowering import Arg, Lab, cpp_wrapper, library_first, visited_first
from tests.support.profiles import names_in, profile_of_the_host

pytestmark = pytest.mark.compat

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch"
)

A, B = Arg((256, 128)), Arg((128, 512))
_RANGE = re.compile(
    r"range_(\w+) = inductor_plugin\.ops\.ranges\.KernelRange\(globals\(\), '(\w+)', '(.+)'\)"
)
_CALL_RANGE = re.compile(r"range_(\w+) = inductor_plugin\.ops\.ranges\.CallRange\('(.+)'\)")


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (a @ b,)


def with_relu(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return ((a @ b).relu(),)


def ranges_in(code: str) -> dict[str, str]:
    """Return the name of each kernel's range."""
    return {kernel: label for same, kernel, label in _RANGE.findall(code) if same == kernel}


def calls_in(code: str) -> dict[str, tuple[str, str]]:
    """Return name of the range and called function by each buffer whose call is between the lines of a range."""
    labels = dict(_CALL_RANGE.findall(code))
    calls = re.findall(
        r"if range_(\w+)\.on: range_\1\.begin\(\)\n +(?:\w+ = )?([\w.]+)\(.*\n"
        r"(?: +assert_\w+\(.*\n)* +if range_\1\.begun: range_\1\.end\(\)\n",
        code,
    )
    return {buffer: (labels[buffer], function) for buffer, function in calls}


def record_of_fusion(cache_dir: Path) -> dict[str, Any]:
    """Return the only record of a product with its epilogue."""
    records = [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]
    (record,) = [record for record in records if record["problem"].get("epilogue")]
    return record


def expected(record: dict[str, Any]) -> str:
    """Return the start of a range's name: the winner of a record."""
    key = f"{record['environment'][:12]}/{record['digest'][:12]}"
    return f"inductor_plugin {key} {record['decision']['winner']} "


@needs_cuda_build
def test_a_triton_kernel_has_a_range(cache_dir: Path, fake_gpu: None) -> None:
    del fake_gpu
    with Lab(only(r"triton_\w+"), cache_dir).open() as lab:
        lab.lower(product, A, B)
    ((kernel, label),) = ranges_in(lab.written[0]).items()
    assert kernel.startswith("triton_tem")
    assert f"{kernel}.run(" in lab.written[0]
    assert label.startswith(expected(lab.record()))
    assert label.endswith(lab.record()["describe"])


@needs_cuda_build
def test_a_cutlass_kernel_has_a_range_with_its_epilogue_too(
    cache_dir: Path, fake_gpu: None
) -> None:
    del fake_gpu
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

    with Lab(visited_first, cache_dir).open() as lab:
        lab.lower(with_relu, A, B, gemm_backends="ATEN,TRITON,CUTLASS")
    ((site, label),) = ranges_in(lab.written[0]).items()
    assert re.search(rf"^ *{site}\(", lab.written[0], re.M)
    assert site.startswith("launch_")
    assert label.startswith(expected(record_of_fusion(cache_dir)))


def experts(a: Any, b: Any, ends: Any) -> tuple[torch.Tensor]:
    torch_untyped: Any = torch
    return (torch_untyped._grouped_mm(a, b.transpose(1, 2), ends),)


def two_products(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (a @ b, b.t() @ a.t())


@needs_cuda_build
def test_calls_of_library_kernels_have_a_range_each(cache_dir: Path, fake_gpu: None) -> None:
    del fake_gpu
    with Lab(library_first, cache_dir).open() as lab:
        lab.lower(two_products, A, B)
    calls = calls_in(lab.written[0])
    assert [function for _, function in calls.values()] == ["extern_kernels.mm"] * 2
    labels = {name for name, _ in calls.values()}
    assert len(labels) == 2
    for known in [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]:
        (name,) = [name for name in labels if name.startswith(expected(known))]
        assert name.endswith(known["describe"])


@needs_cuda_build
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_kernel_of_flex_attention_has_a_range(way: str, cache_dir: Path) -> None:
    with opened("H200", cache_dir) as lab:
        code = getattr(Flex(), way)(lab)
    ((kernel, label),) = ranges_in(code).items()
    assert kernel.startswith("triton_tem")
    assert label.startswith(expected(lab.record()))
    assert label.endswith(lab.record()["describe"])


@needs_cuda_build
def test_the_call_of_a_decomposed_product_has_a_range(cache_dir: Path, fake_gpu: None) -> None:
    del fake_gpu

    def decomposed_first(candidate: BenchCandidate) -> float:
        return 0.1 if candidate.candidate_id.startswith("decompose_k") else 1.0

    with Lab(decomposed_first, cache_dir).open() as lab:
        lab.lower(product, Arg((64, 8192)), Arg((8192, 64)))
    (label,) = dict(_CALL_RANGE.findall(lab.written[0])).values()
    assert label.startswith(expected(lab.record()))
    assert re.search(
        r"if range_(\w+)\.on: range_\1\.begin\(\)\n(?:.*\n)*?.* = decompose_k_mm_\d+_split_\d+\(.*\n"
        r"(?:.*\n)*? +if range_\1\.begun: range_\1\.end\(\)\n",
        lab.written[0],
    )


@needs_cuda_build
def test_a_grouped_product_has_a_range(cache_dir: Path, fake_gpu: None) -> None:
    del fake_gpu
    operands = (Arg((4000, 512)), Arg((8, 1024, 512)), Arg((8,), torch.int32))
    with Lab(only(r"triton_\w+"), cache_dir).open() as lab:
        lab.lower(experts, *operands)
    ((kernel, label),) = ranges_in(lab.written[0]).items()
    assert f"{kernel}.run(" in lab.written[0]
    assert label.startswith(expected(lab.record()))


@needs_cuda_build
@pytest.mark.parametrize("profiles", [False, True])
def test_generated_cpp_has_ranges_where_inductor_writes_its_own(
    cache_dir: Path, fake_gpu: None, profiles: bool
) -> None:
    del fake_gpu
    lab = Lab(library_first, cache_dir)
    with (
        lab.open(),
        cpp_wrapper(),
        inductor_config.patch({"cpp.enable_kernel_profile": profiles}),
        suppress(InductorError),
    ):
        lab.lower(product, A, B)
    begin = re.search(
        r'auto range_(\w+) = std::make_unique<torch::aot_inductor::RAIIAtenRecordFunctionHandle>\("(.+)", nullptr\);'
        r".*?aoti_torch_\w*mm_out\(.*?range_\1\.reset\(\);",
        lab.written[0],
        re.S,
    )
    assert (begin is not None) == profiles
    if begin is not None:
        assert begin[2].startswith(expected(lab.record()))


@pytest.mark.parametrize(("cpp", "fx"), [(True, False), (False, True)])
def test_what_has_no_lines_of_python_has_no_ranges(cpp: bool, fx: bool) -> None:
    graph: Any = SimpleNamespace(cpp_wrapper=cpp, fx_wrapper=fx)
    assert not are_written(graph)


def test_the_range_of_a_kernel_in_a_subgraph_is_at_the_end_of_the_module() -> None:
    """A subgraph is a function before the line that waits for kernels."""
    ends: list[str] = []
    imports: list[str] = []
    module = SimpleNamespace(suffix=SimpleNamespace(writeline=ends.append))
    subgraph = SimpleNamespace(lines=[], add_import_once=imports.append, parent_wrapper=module)
    graph: Any = SimpleNamespace(wrapper_code=subgraph, cpp_wrapper=False)
    with V.set_graph_handler(graph):
        behind = RangeWriter().before(None, [], Chosen("c-1", "c", "mm(2x3, 3x4)", "e/d"))
        subgraph.lines.append("launch_buf0(a, b, None, out=buf0)")
        behind()
    assert ranges_in("\n".join(ends)) == {"launch_buf0": "inductor_plugin e/d c-1 mm(2x3, 3x4)"}
    assert imports == ["import inductor_plugin.ops.ranges"]


def test_a_profile_of_a_model_names_record_and_candidate(cache_dir: Path) -> None:
    layer = torch.nn.Linear(256, 320).eval()
    model = torch.nn.Sequential(layer, torch.nn.GELU()).eval()
    x = torch.randn(192, 256)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        run = torch.compile(model, options=inductor_plugin.options(cache_dir=str(cache_dir)))
        with Lab(only(r"cpp_\w+"), cache_dir).open(), profile_of_the_host() as first:
            _, (code,) = run_and_get_code(run, x)
        with profile_of_the_host() as later:
            run(x)
    ((kernel, label),) = ranges_in(code).items()
    assert kernel.startswith("cpp_")
    assert code.index("async_compile.wait(globals())") < code.index(".KernelRange(")
    assert [names_in(profile).count(label) for profile in (first, later)] == [1, 1]
    records = [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]
    assert any(label.startswith(expected(record)) for record in records)


def test_a_profile_of_a_model_names_library_kernels_and_operators(cache_dir: Path) -> None:
    """oneDNN's and MKL's packed layers are operators."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 320), torch.nn.Linear(320, 64)).eval()
    x = torch.randn(192, 256)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        run = torch.compile(model, options=inductor_plugin.options(cache_dir=str(cache_dir)))
        with Lab(library_first, cache_dir).open(), profile_of_the_host() as first:
            _, (code,) = run_and_get_code(run, x)
        with profile_of_the_host() as later:
            run(x)
        run(x)
    labels = [name for name, _ in calls_in(code).values()]
    assert len(labels) == 2
    records = [json.loads(path.read_text()) for path in cache_dir.glob("records/*/*/*.json")]
    for known in records:
        assert sum(name.startswith(expected(known)) for name in labels) == 1
    for profile in (first, later):
        assert [names_in(profile).count(name) for name in labels] == [1, 1]


def test_a_result_of_a_call_has_no_range_of_its_own() -> None:
    node = SimpleNamespace(node=mock.Mock(spec=ir.MultiOutput))
    wrapper = mock.Mock(lines=[], parent_wrapper=None)
    graph: Any = SimpleNamespace(wrapper_code=wrapper, cpp_wrapper=False)
    with V.set_graph_handler(graph):
        behind = RangeWriter().before(None, [node], Chosen("c-1", "c", "attention(2x3)", "e/d"))
        wrapper.lines.append("buf1 = buf0[0]")
        behind()
    assert wrapper.lines == ["buf1 = buf0[0]"]
    wrapper.suffix.writeline.assert_not_called()
