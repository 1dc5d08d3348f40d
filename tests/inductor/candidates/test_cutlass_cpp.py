"""The C++ wrapper calls operators of templates by way of Python; AOTInductor's programs call their kernels themselves."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import codecache
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering
from torch._inductor.package.package import package_aoti
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch.utils import cpp_extension

from inductor_plugin.inductor.candidates.template_choice import TemplateChoice
from inductor_plugin.inductor.graph.pending import PendingChoice
from inductor_plugin.kernels import nvcc
from tests.support.candidates import providers
from tests.support.cutlass.forced import BACKENDS, opened
from tests.support.lowering import Arg, Lab, cpp_wrapper
from tests.support.native.aoti import programs

pytestmark = pytest.mark.compat
needs_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

A, B_T = Arg((256, 128)), Arg((512, 128))


def mm(a: Any, b: Any) -> tuple[torch.Tensor]:
    return (torch.mm(a, b.t()),)


def addmm(c: Any, a: Any, b: Any) -> tuple[torch.Tensor]:
    return (torch.addmm(c, a, b.t(), alpha=0.5, beta=2),)


def bmm(a: Any, b: Any) -> tuple[torch.Tensor]:
    return (torch.bmm(a, b.transpose(1, 2)),)


def baddbmm(c: Any, a: Any, b: Any) -> tuple[torch.Tensor]:
    return (torch.baddbmm(c, a, b.transpose(1, 2), alpha=0.5, beta=2),)


def experts(a: Any, b: Any, ends: Any) -> tuple[torch.Tensor]:
    untyped: Any = torch
    return (untyped._grouped_mm(a, b.transpose(1, 2), ends),)


def cpp_of(lab: Lab, function: Callable[..., Any], *arguments: Arg) -> str:
    """Return the C++ of a graph; nothing compiles it, for that takes headers of CUDA."""
    with (
        cpp_wrapper(),
        mock.patch.object(codecache.CppWrapperCodeCache, "load_pybinding", mock.Mock()),
    ):
        return lab.lower(function, *arguments, gemm_backends=BACKENDS)


def handed_over(code: str) -> list[str]:
    """Return the arguments of the one call of an operator by way of Python, the operator first."""
    matches = re.findall(r"PyTuple_SetItem\(py_args_\d+, (\d+), (.*)\);", code)
    assert [int(place) for place, _ in matches] == list(range(len(matches)))
    return [value for _, value in matches]


def tensor(name: str) -> str:
    return f"PyCapsule_New(reinterpret_cast<void*>({name}.get()), NULL, NULL)"


@needs_cuda
def test_the_cpp_wrapper_hands_over_what_the_operator_takes(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with opened("cutlass", cache_dir) as lab:
        code = cpp_of(lab, mm, A, B_T)
    assert code.index("if (!launch_buf0({a_1, ") < code.index("py_args_")
    op, a, b, kernel, *rest = handed_over(code)
    assert op == 'PyUnicode_FromString("torch.ops.inductor_plugin.cutlass_mm.out")'
    assert a == tensor("a_1")
    turned = re.search(r"auto (var_\d+) = \w+\(reinterpret_tensor_wrapper\(b_1, 2, .*0L\)\);", code)
    assert turned is not None
    assert b == tensor(turned[1])
    assert re.fullmatch(r'PyUnicode_FromString\("cutlass_sm90_\w+@[0-9a-f]{64}"\)', kernel)
    assert rest == [
        'PyUnicode_FromString("tn")',
        "PyLong_FromLongLong(1)",
        "PyLong_FromLongLong(0)",
        "PyLong_FromLongLong(1)",
        "Py_None",
        tensor("buf0"),
    ]


@needs_cuda
def test_scalars_and_bias_in_the_cpp_wrapper(cache_dir: Path, inductor_cache: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with opened("cutlass", cache_dir) as lab:
        code = cpp_of(lab, addmm, Arg((512,)), A, B_T)
    op, *_, bias, alpha, beta, workspace, out = handed_over(code)
    assert "cutlass_addmm.out" in op
    assert (bias, alpha, beta) == (
        'PyUnicode_FromString("row")',
        "PyFloat_FromDouble(0.5)",
        "PyFloat_FromDouble(2.0)",
    )
    assert (workspace, out) == ("Py_None", tensor("buf0"))


@needs_cuda
def test_a_grouped_product_in_the_cpp_wrapper(cache_dir: Path, inductor_cache: Path) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    arguments = (Arg((4096, 512)), Arg((8, 1024, 512)), Arg((8,), torch.int32))
    with opened("cutlass", cache_dir) as lab:
        op, a, _, ends, *_ = handed_over(cpp_of(lab, experts, *arguments))
    assert "cutlass_grouped_mm.out" in op
    assert (a, ends) == (tensor("a_1"), tensor("ends_1"))


@needs_cuda
def test_the_operator_is_imported_and_returns_nothing(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with opened("cutlass", cache_dir) as lab:
        code = cpp_of(lab, mm, A, B_T)
    imported = code.index('PyImport_ImportModule("inductor_plugin.ops.gemm")')
    called = code.index("PyObject_CallObject(custom_op_wrapper")
    assert imported < called
    assert "buf0_returned" not in code


@needs_cuda
def test_a_program_of_aotinductor_calls_the_kernel_without_python(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with opened("cutlass", cache_dir) as lab, programs() as taken:
        code = lab.lower(mm, A, B_T, gemm_backends="ATEN,CUTLASS")
    assert "if (!launch_buf0({a_1, " in code
    assert "aoti_torch_cuda_mm_out(buf0, a_1, " in code  # where the kernel cannot run
    declared = re.search(
        r'Kernel launch_buf0_kernel\("(\w+)\.kernel", "[^"]+", "(\w+)", 132\)', code
    )
    assert declared is not None
    assert declared[1] == declared[2]
    site = re.search(r"launch_buf0\(launch_buf0_kernel, \S+GemmSite\{([^}]*)\}", code)
    assert site is not None
    assert site[1] == "0, 1, 0, 1, 0, 1, 0, 0, 0, 1.0f, 0.0f, 0"
    ((library,),) = taken
    assert Path(library).name == f"{declared[1]}.kernel"
    assert Path(library).is_file()


@needs_cuda
@pytest.mark.claim
def test_a_program_has_torchs_product_with_bias_where_the_kernel_cannot_run(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with opened("cutlass", cache_dir) as lab, programs():
        code = lab.lower(addmm, Arg((512,)), A, B_T, gemm_backends="ATEN,CUTLASS")
    assert re.search(r"aoti_torch_cuda_addmm_out\(buf0, .*c_1, .*, a_1, .*, 2\.0, 0\.5\)\)", code)
    assert re.search(r"GemmSite\{1, 1, 0, \d, \d, 1, 1, 0, 0, 0\.5f, 2\.0f, 0\}", code)


@needs_cuda
@pytest.mark.parametrize(
    ("product", "bias", "call"),
    [
        (bmm, (), r"aoti_torch_cuda_bmm_out\(buf0, a_1, .*b_1, .*\)\)"),
        (baddbmm, (Arg((4, 256, 512)),), r"_baddbmm_out\(buf0, c_1, a_1, .*, 2\.0, 0\.5\)\)"),
    ],
    ids=["bmm", "baddbmm"],
)
def test_a_program_has_torchs_product_of_a_batch_where_the_kernel_cannot_run(
    product: Callable[..., Any],
    bias: tuple[Arg, ...],
    call: str,
    cache_dir: Path,
    inductor_cache: Path,
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    operands = Arg((4, 256, 128)), Arg((4, 512, 128))
    with opened("cutlass", cache_dir) as lab, programs():
        code = lab.lower(product, *bias, *operands, gemm_backends="ATEN,CUTLASS")
    assert "if (!launch_buf0({" in code
    assert re.search(call, code)


@needs_cuda
def test_a_program_has_torchs_product_of_int8_where_the_kernel_cannot_run(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

    def product(a: Any, b: Any) -> tuple[torch.Tensor]:
        untyped: Any = torch
        return (untyped._int_mm(a, b.t()),)

    with opened("cutlass", cache_dir) as lab, programs():
        operands = Arg((256, 128), torch.int8), Arg((512, 128), torch.int8)
        code = lab.lower(product, *operands, gemm_backends="ATEN,CUTLASS")
    assert "if (!launch_buf0({a_1, " in code
    assert "aoti_torch_cuda__int_mm_out(buf0, a_1, " in code
    assert "mm_out(buf0" not in code.replace("__int_mm_out", "")


@needs_cuda
def test_a_program_has_no_product_of_torchs_with_another_dtype(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

    def product(a: Any, b: Any) -> tuple[torch.Tensor]:
        return (torch.ops.aten.mm.dtype(a, b.t(), torch.float32),)

    with opened("cutlass", cache_dir) as lab, programs():
        code = lab.lower(product, A, B_T, gemm_backends="ATEN,CUTLASS")
    assert "if (!launch_buf0({a_1, " in code
    assert "throw std::runtime_error(launch_buf0.why())" in code
    assert "mm_out(buf0" not in code


@needs_cuda
def test_a_program_that_is_built_elsewhere_gets_no_kernels(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    with (
        opened("cutlass", cache_dir) as lab,
        programs() as taken,
        inductor_config.patch({"aot_inductor.package_cpp_only": True}),
    ):
        code = lab.lower(mm, A, B_T, gemm_backends="ATEN,CUTLASS")
        assert "package_cpp_only" in lab.record()["rejected"]["cutlass"]
    assert "launch_buf0" not in code
    assert taken == [[]]


@needs_cuda
def test_a_program_says_why_a_grouped_product_cannot_run(
    cache_dir: Path, inductor_cache: Path
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    arguments = (Arg((4096, 512)), Arg((8, 1024, 512)), Arg((8,), torch.int32))
    with opened("cutlass", cache_dir) as lab, programs():
        code = lab.lower(experts, *arguments, gemm_backends="ATEN,CUTLASS")
    assert "throw std::runtime_error(launch_buf0.why());" in code


@needs_cuda
@pytest.mark.slow
def test_a_program_for_an_h200_is_compiled_and_linked(
    cache_dir: Path, inductor_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    toolkit = nvcc.find("", dict(os.environ))
    if isinstance(toolkit, nvcc.NoToolkit):
        pytest.skip("needs the headers of CUDA, which come with nvcc")
    home = tmp_path / "cuda"
    (home / "lib64").mkdir(parents=True)
    headers = (Path(folder) for folder in toolkit.include_dirs)
    cuda = next(folder for folder in headers if (folder / "crt" / "host_defines.h").is_file())
    (home / "include").symlink_to(cuda)
    driver = home / "lib64" / "libcuda.so"  # a machine without a GPU has none; it is not called
    driver_command = ["g++", "-shared", "-x", "c++", "/dev/null", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*driver_command, "-o", str(driver)], check=True)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(home))
    built: list[Any] = []
    stock: Any = codecache.AotCodeCompiler.compile

    def compiled(graph: Any, wrapper: Any, *others: Any, **more: Any) -> Any:
        GraphLowering.save_output_code("")  # pyright: ignore[reportOptionalCall] - `Lab` sets it
        built.append(stock(graph, wrapper, *others, **more))
        return built[-1]

    with (
        opened("cutlass", cache_dir) as lab,
        V.set_aot_compilation(True),
        cpp_wrapper(),
        inductor_config.patch({"aot_inductor.package": True}),
        mock.patch.object(codecache.AotCodeCompiler, "compile", compiled),
    ):
        lab.lower(mm, A, B_T, gemm_backends="ATEN,CUTLASS")
    package = package_aoti(str(tmp_path / "model.pt2"), {"model": built[0]})
    with zipfile.ZipFile(package) as archive:
        libraries = [
            Path(name).name for name in archive.namelist() if name.endswith((".so", ".kernel"))
        ]
    kernels = [name for name in libraries if name.startswith("cutlass_sm90_")]
    assert len(kernels) == 1
    assert len(libraries) == 2  # the program, too


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["good", "returns_nothing"])
def test_a_call_out_of_compiled_cpp_is_right(
    cache_dir: Path, inductor_cache: Path, operator: str
) -> None:
    def ours(pending: Any) -> Any:
        return next(
            choice for choice in pending.choices.values() if isinstance(choice, TemplateChoice)
        )

    def graph(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.mm(a[:, :64], b) + 1, torch.mm(c[:, :64], b)

    a, b, c = torch.randn(32, 128), torch.randn(64, 96), torch.randn(32, 128)
    with (
        providers.offered(operator),
        mock.patch.object(PendingChoice, "winner", ours),
        inductor_config.patch(cpp_wrapper=True),
    ):
        compiled = torch.compile(
            graph, backend="inductor_plugin", options={"cache_dir": str(cache_dir)}
        )
        (first, second), codes = run_and_get_code(compiled, a, b, c)
    assert codes[0].count("PyObject_CallObject(custom_op_wrapper") == 2
    torch.testing.assert_close((first, second), graph(a, b, c))
