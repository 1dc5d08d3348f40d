"""Runs code that Inductor generated on a CPU: its wrapper unchanged, its kernels in Triton's interpreter.

`outputs` starts one process for many graphs, because Triton decides on import whether it interprets.
There, memory the wrapper allocates is full of NaN (bytes of 0xFF), so that a kernel that reads memory
it has not written fails; and a kernel with scratch memory is launched a second time, without zeroing it
and with its programs in the opposite order, and must write the same bits.

`compiled` compiles such a kernel for a GPU instead, and returns its resources.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.repository import REPOSITORY

_NUMBER = itertools.count()


@dataclass(frozen=True)
class Usage:
    """Resources of a compiled kernel.

    Attributes:
        registers: Registers of a thread.
        spills: Bytes of spill stores and loads of a thread.
        shared: Bytes of shared memory of a block.
        ptx: Its PTX.
        ttir: Its Triton IR.
        log: The output of ptxas.
    """

    registers: int
    spills: int
    shared: int
    ptx: str
    ttir: str
    log: str = ""


def outputs(cases: Sequence[tuple[str, Sequence[torch.Tensor]]]) -> list[tuple[torch.Tensor, ...]]:
    """Return the results of generated modules, each called with its tensors."""
    with tempfile.TemporaryDirectory() as folder:
        cases_path, results_path = Path(folder) / "cases.pt", Path(folder) / "results.pt"
        torch.save([(code, list(tensors)) for code, tensors in cases], cases_path)
        environment = os.environ | {"TRITON_INTERPRET": "1", "TORCHINDUCTOR_CACHE_DIR": folder}
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.support.triton.interpreter",
                str(cases_path),
                str(results_path),
            ],
            cwd=REPOSITORY,
            env=environment,
            timeout=500,
            check=True,
        )
        return torch.load(results_path)


def compiled(source: str, arch: int) -> Usage:
    """Compile the one kernel of a generated source for a compute capability, 90 for 9.0."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as folder:
        function, facts = function_of(source, Path(folder))
        meta = facts["triton_meta"]
        names: list[str] = function.arg_names
        constants = {(names.index(name),): value for name, value in meta["constants"].items()}
        signature = {name: meta["signature"][name] for name in names}
        attributes = meta["configs"][0]
        with warnings.catch_warnings():
            # Triton 3.9 announces another default of an option that has no effect here.
            warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")
            kernel = triton.compile(
                ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes),
                target=GPUTarget("cuda", arch, 32),
                options={"num_warps": facts["num_warps"], "num_stages": facts["num_stages"]},
            )
        ptx, ttir = str(kernel.asm["ptx"]), str(kernel.asm["ttir"])
        log = _assembled(ptx, arch)
        return Usage(*_resources(log), kernel.metadata.shared, ptx, ttir, log)


def _resources(text: str) -> tuple[int, int]:
    """Return registers of a thread and bytes spilled, from the output of ptxas.

    cuobjdump's STACK is no measure: for sm_100a it is 8 or 16 where nothing is spilled.
    """
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", text)
    (registers,) = re.findall(r"Used (\d+) registers", text)
    assert len(spilled) >= 2, text
    return int(registers), sum(map(int, spilled))


def _assembled(ptx: str, arch: int) -> str:
    """Return the output of ptxas for a kernel."""
    import triton
    from triton import knobs

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    # Triton has a ptxas for each generation, and torch may have set another; which of them accepts
    # the PTX depends on the version.
    names = ("ptxas", "ptxas-blackwell") if arch < 100 else ("ptxas-blackwell", "ptxas")
    paths = [Path(knobs.nvidia.ptxas.path), *(folder / name for name in names)]
    tools = [path for path in paths if path.exists()]
    name = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
    with tempfile.TemporaryDirectory() as folder_name:
        path = Path(folder_name) / "kernel.ptx"
        path.write_text(ptx)
        options = ["-v", f"--gpu-name={name}", path, "-o", path.with_suffix(".cubin")]
        runs = (subprocess.run([tool, *options], capture_output=True, text=True) for tool in tools)
        completed = next(run for run in runs if run.returncode == 0)
    return completed.stdout + completed.stderr


def function_of(source: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return the Triton function of a generated source, and the arguments of its decorator."""
    from torch._inductor.runtime import triton_helpers, triton_heuristics

    decorator_facts: dict[str, Any] = {}

    def template(**facts: Any) -> Callable[[Any], Any]:
        decorator_facts.update(facts)
        return lambda function: function

    path = folder / f"kernel{next(_NUMBER)}.py"
    path.write_text(source)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    kept = triton_heuristics.template, triton_helpers.set_driver_to_gpu
    triton_heuristics.template, triton_helpers.set_driver_to_gpu = template, lambda: None
    try:
        specification.loader.exec_module(module)
    finally:
        triton_heuristics.template, triton_helpers.set_driver_to_gpu = kept
    (name,) = re.findall(r"^def (triton_\w+)\(", source, re.MULTILINE)[:1]
    return getattr(module, name), decorator_facts


class _Kernel:
    """Replaces a compiled kernel: the last three of its arguments are the grid."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def run(self, *arguments: Any, stream: int) -> None:
        *operands, x, y, z = arguments
        scratch = any(
            isinstance(operand, torch.Tensor) and operand.dtype == torch.uint8
            for operand in operands
        )
        self._function[(x, y, z)](*operands)
        if scratch:
            tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
            before = [_bits(tensor) for tensor in tensors]
            with _backwards(x, y, z):
                self._function[(x, y, z)](*operands)
            assert [_bits(tensor) for tensor in tensors] == before


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.untyped_storage())


@contextlib.contextmanager
def _backwards(*grid: int) -> Any:
    """Let the interpreter start the programs of a grid from the last to the first."""
    from triton.runtime import interpreter

    builder: Any = interpreter.interpreter_builder
    forwards = builder.set_grid_idx
    last = [extent - 1 for extent in grid]
    builder.set_grid_idx = lambda *at: forwards(*(a - b for a, b in zip(last, at, strict=True)))
    try:
        yield
    finally:
        builder.set_grid_idx = forwards


def dirty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a buffer of a generated module, full of NaN."""
    tensor = torch.empty_strided(size, stride, dtype=dtype)
    storage: Any = tensor.untyped_storage()
    storage.fill_(0xFF)
    return tensor


def loaded(
    code: str, folder: Path, launcher: Callable[[str, Path], Any] | None = None
) -> Callable[[list[torch.Tensor]], tuple[torch.Tensor, ...]]:
    """Return a generated module as a function of its tensors; its kernels are written to ``folder``.

    Args:
        code: The generated module.
        folder: Where the kernels' sources go.
        launcher: Returns what launches a kernel, from its source and the folder; by default the interpreter does.
    """
    from torch._inductor import async_compile

    stub: Any = async_compile.AsyncCompile

    def kernel(compiler: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        return launcher(source, folder) if launcher else _Kernel(function_of(source, folder)[0])

    stub.triton, stub.wait = kernel, lambda compiler, scope: None
    scope: dict[str, Any] = {"__name__": "generated"}
    exec(compile(code, "generated.py", "exec"), scope)
    scope["empty_strided_cuda"] = dirty
    scope["get_raw_stream"] = lambda index: 0
    return lambda tensors: scope["call"](_arguments(code, tensors))


def _arguments(code: str, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return the arguments of generated code: the tensors, and the rows of the first if they are unknown."""
    (names,) = re.findall(r"^ +([\w, ]+) = args$", code, re.MULTILINE)
    rows = re.findall(r"^ +s\d+ = (\w+)$", code, re.MULTILINE)
    rest = iter(tensors)
    return [
        tensors[0].size(0) if name in rows else next(rest) for name in re.findall(r"\w+", names)
    ]


class _Whole(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)

    def __call__(cls, value: Any = 0) -> int:
        return int(value.item() if hasattr(value, "item") else value)


def _let_numpy_count() -> None:
    """Let Triton 3.6 convert arrays of one element to integers, which numpy 2.4 refuses."""
    import triton
    from triton.runtime import interpreter

    if triton.__version__.startswith("3.6"):
        setattr(interpreter, "int", _Whole("int", (), {}))  # noqa: B010  it has no such name


def _let_bfloat16_multiply() -> None:
    """Let the interpreter multiply matrices of bfloat16, which it treats as 16-bit integers."""
    import numpy as np
    from triton import language as tl
    from triton.runtime import interpreter

    builder: Any = type(interpreter.interpreter_builder)
    stock = builder.create_dot

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return stock(self, wide(a), wide(b), *others)

    builder.create_dot = create_dot


def _let_nan_of_8_bits_stay_nan() -> None:
    """Convert NaN of float8_e4m3fn, which has no exponent of its own for it, to NaN; the interpreter makes 480 of it."""
    import numpy as np
    from triton import language as tl
    from triton.runtime import interpreter

    stock: Any = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        bits = stock(data, source, target, rounding)
        if source != tl.float8e4nv:
            return bits
        nan = (data.view(np.uint8) & 0x7F) == 0x7F
        return np.where(nan, bits.dtype.type(np.iinfo(bits.dtype).max >> 1), bits)

    interpreter._convert_float = convert


def _let_libdevice_compute() -> None:
    """Give the interpreter the libdevice functions that epilogues call; it has none."""
    from torch._inductor.runtime import triton_helpers
    from triton import language as tl
    from triton.runtime import interpreter

    def elementwise(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
        def call(argument: Any) -> Any:
            values = function(torch.from_numpy(argument.handle.data)).numpy()
            return tl.tensor(interpreter.TensorHandle(values, argument.handle.dtype), argument.type)

        return call

    library: Any = triton_helpers.libdevice
    library.erf = elementwise(torch.erf)


def prepare() -> None:
    """Let generated modules run in this process, where Triton interprets."""
    _let_numpy_count()
    _let_bfloat16_multiply()
    _let_nan_of_8_bits_stay_nan()
    _let_libdevice_compute()
    guard: Any = contextlib.nullcontext
    torch.cuda._DeviceGuard, torch.cuda.set_device = guard, lambda index: None


def main() -> None:
    """Run all cases of a file."""
    prepare()
    cases_path, results_path = (Path(argument) for argument in sys.argv[1:])
    results: list[tuple[torch.Tensor, ...]] = []
    for number, (code, tensors) in enumerate(torch.load(cases_path)):
        print(f"case {number}", flush=True)  # pytest shows it where the next line fails
        results.append(loaded(code, cases_path.parent)(tensors))
    torch.save(results, results_path)


if __name__ == "__main__":
    main()
