"""The call's layout against the C header, with a C function made by the host compiler."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from inductor_plugin.errors import CallRefusedError, KernelError
from inductor_plugin.ops import gemm_abi
from inductor_plugin.ops.abi import KernelFunction
from inductor_plugin.ops.gemm_abi import GemmCall, GemmStatus
from tests.support.repository import REPOSITORY

SOURCE = Path("templates") / "cutlass" / "source"
HEADER = SOURCE / "interface.h"

STUB = """
#include <cstdint>
#include <initializer_list>
{header}
extern "C" int32_t echo(int32_t mode, GemmCall* call, uint64_t* bytes, void* stream) {{
  call->cutlass_status = 70 + mode;
  call->cuda_error = 9;
  if (mode == kWorkspaceBytes && call->m) *bytes = call->m * 1000000 + call->batch_d;
  return int32_t(call->k);
}}
"""


@pytest.fixture(name="echo", scope="module")
def an_echo(tmp_path_factory: pytest.TempPathFactory) -> KernelFunction[GemmCall]:
    """Return a function that answers with its call's fields, compiled from the real header."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    root = REPOSITORY
    text = (root / HEADER).read_text() + (root / SOURCE / "call.h").read_text()
    # What a kernel's source puts into the places does not matter here.
    header = re.sub(r"@(has|whole|ignores|can|needs)_\w+@", "0", text)
    header = re.sub(r"@(outer|inner)_[ab]@", "k", header).replace("@operand_checks@", "")
    header = re.sub(r"@\w+@", "8", header)
    folder = tmp_path_factory.mktemp("abi")
    source, library = folder / "echo.cpp", folder / "echo.so"
    source.write_text(STUB.format(header=header))
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    return gemm_abi.load(library, "echo")


def test_the_fields_are_those_of_the_header() -> None:
    text = (REPOSITORY / HEADER).read_text()
    body = text[text.index("struct GemmCall {") :].split("};")[0]
    body = re.sub(r"//.*", "", body.split("{", 1)[1])
    names: list[str] = []
    for declaration in body.split(";"):
        names.extend(re.findall(r"(\w+)(?:\[8\])?\s*(?:,|$)", declaration.strip()))
    assert names == [field[0] for field in GemmCall._fields_]
    assert f"sizeof(GemmCall) == {ctypes.sizeof(GemmCall)}" in text
    assert gemm_abi.SLOTS == 8
    body = text[text.index("struct GemmOperand {") :].split("};")[0]
    names = re.findall(r"(\w+)[,;]", body)
    assert names == [field[0] for field in gemm_abi.GemmOperand._fields_]


def test_the_statuses_are_those_of_the_header() -> None:
    text = (REPOSITORY / HEADER).read_text()
    body = text[text.index("enum GemmStatus") :].split("};")[0]
    stated = {name.upper(): int(value) for name, value in re.findall(r"k(\w+) = (\d+)", body)}
    assert stated == {status.name.replace("_", ""): status.value for status in GemmStatus}


def test_fields_reach_the_function_where_it_looks_for_them(echo: KernelFunction[GemmCall]) -> None:
    call = gemm_abi.new_call(m=7, batch_d=42, k=GemmStatus.OK)
    assert gemm_abi.workspace_bytes(echo, call) == 7_000_042
    assert call.cutlass_status == 71
    assert gemm_abi.can_implement(echo, call) is None


@pytest.mark.parametrize("status", [status for status in GemmStatus if status])
def test_every_refusal_has_a_reason_with_the_sizes(
    echo: KernelFunction[GemmCall], status: GemmStatus
) -> None:
    reason = gemm_abi.can_implement(echo, gemm_abi.new_call(m=5, n=6, k=int(status)))
    assert reason is not None
    assert reason.startswith("echo: ")
    assert f"m=5 n=6 k={int(status)} batch=1" in reason
    with pytest.raises(KernelError) as raised:
        gemm_abi.run(echo, gemm_abi.new_call(k=int(status)), 0)
    refused = status < GemmStatus.WORKSPACE
    assert raised.type is (CallRefusedError if refused else KernelError)


def test_a_status_of_another_version_is_told_as_it_is(echo: KernelFunction[GemmCall]) -> None:
    assert "it returned 99" in str(gemm_abi.can_implement(echo, gemm_abi.new_call(k=99)))


def test_a_failed_start_tells_both_error_numbers(echo: KernelFunction[GemmCall]) -> None:
    call = gemm_abi.new_call(k=int(GemmStatus.START))
    with pytest.raises(KernelError, match=r"CUTLASS status 72, CUDA error 9"):
        gemm_abi.run(echo, call, 0)
    with pytest.raises(KernelError, match="did not start"):
        gemm_abi.workspace_bytes(echo, call)


def test_what_cannot_be_loaded_is_said(echo: KernelFunction[GemmCall], tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"cannot load f from .*gone\.so"):
        gemm_abi.load(tmp_path / "gone.so", "f")
    with pytest.raises(KernelError, match="cannot load missing from"):
        gemm_abi.load(echo.library, "missing")
    runtime, library = tmp_path / "libcudart.so.99", tmp_path / "needs.so"
    shared = ["g++", "-shared", "-x", "c++", "/dev/null", "-o"]
    subprocess.run([*shared, str(runtime), f"-Wl,-soname,{runtime.name}"], check=True)
    needed = ["-x", "none", "-Wl,--no-as-needed", str(runtime)]
    subprocess.run([*shared, str(library), *needed], check=True)
    runtime.unlink()
    with pytest.raises(KernelError, match=r"libcudart\.so\.99.*import a CUDA build of torch first"):
        gemm_abi.load(library, "echo")


def test_a_new_call_multiplies_by_one() -> None:
    call = gemm_abi.new_call(m=3)
    assert (call.alpha, call.beta, call.batch, call.split_k, call.swizzle) == (1.0, 0.0, 1, 1, 1)
    assert call.a is None
