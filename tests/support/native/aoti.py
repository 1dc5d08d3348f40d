"""Programs of AOTInductor without Python: how they are compiled and run; and the C++ they include, as a library."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor import codecache
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from tests.support.lowering import cpp_wrapper

_ROOT = Path(torch.__file__).parent
_FLAGS = (
    *("-O1", "-std=c++20", "-fopenmp", "-w"),
    *(f"-I{_ROOT / folder}" for folder in ("include", "include/torch/csrc/api/include")),
)
_LIBRARIES = (
    *(f"-L{_ROOT / 'lib'}", f"-Wl,-rpath,{_ROOT / 'lib'}"),
    *("-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"),
)

# Reads NAME.shape (dtype's number, then sizes) and NAME.data of each input, and writes those of each output.
RUNNER = """
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <ATen/ATen.h>
#include <fstream>
#include <iostream>

static at::Tensor read(std::string const& name) {
  std::ifstream shape(name + ".shape"), data(name + ".data", std::ios::binary);
  int dtype;
  shape >> dtype;
  std::vector<int64_t> sizes;
  for (int64_t size; shape >> size;) sizes.push_back(size);
  at::Tensor tensor = at::empty(sizes, static_cast<at::ScalarType>(dtype));
  data.read(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  return tensor;
}

int main(int count, char** names) try {
  torch::inductor::AOTIModelPackageLoader loader(names[1]);
  std::vector<at::Tensor> inputs;
  for (int at = 3; at < count; ++at) inputs.push_back(read(names[at]));
  loader.run(inputs);
  std::vector<at::Tensor> const outputs = loader.run(inputs);
  for (size_t at = 0; at < outputs.size(); ++at) {
    at::Tensor const tensor = outputs[at].contiguous();
    std::string const name = std::string(names[2]) + "/output" + std::to_string(at);
    std::ofstream(name + ".data", std::ios::binary).write(static_cast<char const*>(tensor.data_ptr()), tensor.nbytes());
  }
  return 0;
} catch (std::exception const& error) {
  std::cerr << error.what() << std::endl;
  return 3;
}
"""


@functools.cache
def runner() -> Path:
    """Return the program that loads a package and runs it twice; it has no Python."""
    folder = Path(tempfile.mkdtemp(prefix="aoti-runner-"))
    source, program = folder / "runner.cpp", folder / "runner"
    source.write_text(RUNNER, encoding="utf-8")
    subprocess.run(["g++", str(source), "-o", str(program), *_FLAGS, *_LIBRARIES], check=True)
    linked = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True)
    assert "libpython" not in linked.stdout
    return program


def run(
    package: Path, inputs: Sequence[torch.Tensor], like: Sequence[torch.Tensor], folder: Path
) -> tuple[list[torch.Tensor], str]:
    """Run a package in a process without Python.

    Args:
        package: The package.
        inputs: Its inputs.
        like: Tensors of the types and shapes of its outputs.
        folder: For files.

    Returns:
        The outputs, and what the process has written to stderr.
    """
    names = [str(folder / f"input{index}") for index in range(len(inputs))]
    for name, tensor in zip(names, inputs, strict=True):
        numbers = [_scalar_type(tensor.dtype), *tensor.shape]
        Path(f"{name}.shape").write_text(" ".join(map(str, numbers)), encoding="utf-8")
        Path(f"{name}.data").write_bytes(_bytes(tensor))
    command = [str(runner()), str(package), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr)
    written = [(folder / f"output{index}.data").read_bytes() for index in range(len(like))]
    outputs = [
        torch.frombuffer(bytearray(data), dtype=x.dtype) if data else x.new_empty(0)
        for data, x in zip(written, like, strict=True)
    ]
    return [output.reshape(x.shape) for output, x in zip(outputs, like, strict=True)], done.stderr


def library(text: str) -> ctypes.CDLL:
    """Return the loaded library of a C++ text that uses torch's headers."""
    folder = Path(tempfile.mkdtemp(prefix="aoti-text-"))
    source, built = folder / "text.cpp", folder / "text.so"
    source.write_text(text, encoding="utf-8")
    # As with Inductor's cpp.enable_unsafe_math_opt_flag, the harder case.
    flags = (*_FLAGS, "-march=native", "-funsafe-math-optimizations")
    command = ["g++", "-shared", "-fPIC", str(source), "-o", str(built), *flags, *_LIBRARIES]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


@contextmanager
def programs() -> Generator[list[list[str]]]:
    """Generate programs of AOTInductor in the block; yields the files that each program takes along."""
    taken: list[list[str]] = []

    def kept(graph: Any, wrapper: Any, *others: Any, **more: Any) -> list[str]:
        GraphLowering.save_output_code(str(wrapper))  # pyright: ignore[reportOptionalCall] - `Lab` sets it
        taken.append([str(path) for path in graph.wrapper_code.additional_files])
        return []

    with (
        V.set_aot_compilation(True),
        cpp_wrapper(),
        mock.patch.object(codecache.AotCodeCompiler, "compile", kept),
    ):
        yield taken


def _scalar_type(dtype: torch.dtype) -> int:
    return [
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16),
        *(torch.float32, torch.float64),
    ].index(dtype)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
