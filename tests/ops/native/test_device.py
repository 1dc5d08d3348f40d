"""A call site launches on the device of its output and on that device's current stream: seen with a torch made of stubs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from inductor_plugin.kernels.unit import unique_symbol
from inductor_plugin.ops.native import source
from inductor_plugin.templates.cutlass.source import INTERFACE
from tests.support.native import call_sites

# What the library calls of torch, for two devices, and a kernel that notes where it runs.
TORCH = """
#include <cstdint>
#include <cstdlib>
#include <cstring>
{header}
struct Tensor {{ int64_t dim, size[4], stride[4]; void* data; int32_t dtype, device_type, device; }};
static Tensor* of(void* handle) {{ return *static_cast<Tensor**>(handle); }}
static int32_t current, guards, open_guards, status;
static int64_t needed, allocated_on, allocated_while;
static int64_t ran_on, stream_of_run, runs;
extern "C" {{
int32_t aoti_torch_get_sizes(void* t, int64_t** out) {{ return *out = of(t)->size, 0; }}
int32_t aoti_torch_get_strides(void* t, int64_t** out) {{ return *out = of(t)->stride, 0; }}
int32_t aoti_torch_get_dim(void* t, int64_t* out) {{ return *out = of(t)->dim, 0; }}
int32_t aoti_torch_get_data_ptr(void* t, void** out) {{ return *out = of(t)->data, 0; }}
int32_t aoti_torch_get_dtype(void* t, int32_t* out) {{ return *out = of(t)->dtype, 0; }}
int32_t aoti_torch_get_device_type(void* t, int32_t* out) {{ return *out = of(t)->device_type, 0; }}
int32_t aoti_torch_get_device_index(void* t, int32_t* out) {{ return *out = of(t)->device, 0; }}
int32_t aoti_torch_empty_strided(int64_t, int64_t const* size, int64_t const*, int32_t dtype, int32_t type, int32_t device, void** out) {{
  auto** handle = static_cast<Tensor**>(std::malloc(sizeof(Tensor*)));
  *handle = new Tensor{{1, {{*size}}, {{1}}, std::malloc(*size), dtype, type, device}};
  allocated_on = device, allocated_while = current;
  return *out = handle, 0;
}}
int32_t aoti_torch_delete_tensor_object(void* t) {{ return std::free(of(t)->data), delete of(t), std::free(t), 0; }}
int32_t aoti_torch_create_device_guard(int32_t device, void** out) {{
  ++guards, ++open_guards;
  *out = reinterpret_cast<void*>(intptr_t{{current}} + 1), current = device;
  return 0;
}}
int32_t aoti_torch_delete_device_guard(void* guard) {{
  --open_guards;
  return current = int32_t(reinterpret_cast<intptr_t>(guard)) - 1, 0;
}}
int32_t aoti_torch_get_current_device_index(int32_t* out) {{ return *out = current, 0; }}
int32_t aoti_torch_device_type_cuda() {{ return 1; }}
int32_t aoti_torch_dtype_uint8() {{ return 0; }}
int32_t aoti_torch_dtype_int32() {{ return 3; }}
int32_t aoti_torch_dtype_bfloat16() {{ return 15; }}
int32_t aoti_torch_dtype_float8_e4m3fn() {{ return 24; }}
int32_t aoti_torch_dtype_float32() {{ return 6; }}
void begin(int32_t on, int32_t answer, int64_t needs) {{
  current = on, status = answer, needed = needs;
  guards = open_guards = 0, runs = 0, allocated_on = allocated_while = ran_on = stream_of_run = -1;
}}
void seen(int64_t* all) {{
  int64_t const values[] = {{runs, ran_on, stream_of_run, guards, open_guards, current, allocated_on, allocated_while}};
  std::memcpy(all, values, sizeof values);
}}
int32_t kernel(int32_t mode, GemmCall*, uint64_t* bytes, void* stream) {{
  if (mode == kWorkspaceBytes) *bytes = needed;
  if (mode != kRun) return kOk;
  ++runs, ran_on = current, stream_of_run = reinterpret_cast<intptr_t>(stream);
  return status;
}}
}}
"""
STREAMS = """
#include <cstdint>
extern "C" int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** out) {
  return *out = reinterpret_cast<void*>(intptr_t{1000} + device), 0;
}
"""
# Runs where no torch is loaded; prints what was seen in each case.
PROGRAM = """
import ctypes, json, sys
cpu, cuda, library, symbol, cases = sys.argv[1:]
stub = ctypes.CDLL(cpu, ctypes.RTLD_GLOBAL)
ctypes.CDLL(cuda, ctypes.RTLD_GLOBAL)

class Fields(ctypes.Structure):
    _fields_ = [("dim", ctypes.c_int64), ("size", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4),
                ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("type", ctypes.c_int32), ("device", ctypes.c_int32)]

class Tensor:
    def __init__(self, rows, columns, device):
        self.data = ctypes.create_string_buffer(4 * rows * columns)
        size, stride = (ctypes.c_int64 * 4)(rows, columns), (ctypes.c_int64 * 4)(columns, 1)
        self.fields = Fields(2, size, stride, ctypes.addressof(self.data), 6, 1, device)
        self._cdata = ctypes.addressof(self.fields)

class Parameter(Tensor):
    pass

function = getattr(ctypes.PyDLL(library), symbol)
function.argtypes, function.restype = 4 * (ctypes.py_object,), ctypes.py_object
sites = function(Tensor, Parameter, {}, None)
stub.begin.argtypes = ctypes.c_int32, ctypes.c_int32, ctypes.c_int64
address = ctypes.cast(stub.kernel, ctypes.c_void_p).value
for current, bound, device, status, needed, others in json.loads(cases):
    slow = []
    site = sites.product_site("site", lambda *_, out: slow.append(out), 0, 1, 1, 1, 0, 1, 0, 0, 0, 1.0, 0.0)
    site.bind(address, bound, 132)
    on = {**dict.fromkeys(("a", "b", "workspace", "out"), device), **others}
    a, b, out = Tensor(5, 7, on["a"]), Tensor(7, 6, on["b"]), Tensor(5, 6, on["out"])
    workspace = Tensor(1, 256, on["workspace"])
    workspace.fields.dtype = 0
    workspace.fields.data += -workspace.fields.data % 64
    given = workspace if "workspace" in others else None
    site.launch(a, b, given, out=out)  # the operator accepts their dtypes
    slow.clear()
    stub.begin(current, status, needed)
    site.launch(a, b, given, out=out)
    seen = (ctypes.c_int64 * 8)()
    stub.seen(seen)
    print(json.dumps([len(slow), *seen]))
"""
CASES: dict[str, tuple[int, int, int, int, int, dict[str, int]]] = {
    "another device is current": (0, 1, 1, 0, 0, {}),
    "its device is current": (1, 1, 1, 0, 0, {}),
    "a workspace is needed": (0, 1, 1, 0, 64, {}),
    "the kernel does not start": (0, 1, 1, 7, 0, {}),
    "it is bound to another device": (0, 1, 0, 0, 0, {}),
    "a workspace is given": (0, 1, 1, 0, 64, {"workspace": 1}),
    "the workspace is on another device": (0, 1, 1, 0, 64, {"workspace": 0}),
    "A is on another device": (0, 1, 1, 0, 0, {"a": 0}),
    "B is on another device": (0, 1, 1, 0, 0, {"b": 0}),
}
"""The current device, that of the bound kernel, that of the tensors, the kernel's answer, the workspace it needs, and the
devices of single tensors; a workspace is given where it has one."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what was seen in each case."""
    folder = tmp_path_factory.mktemp("torch")
    texts = {"libtorch_cpu": TORCH.format(header=INTERFACE.read_text()), "libtorch_cuda": STREAMS}
    for name, text in texts.items():
        source_file, flags = folder / f"{name}.cpp", ["-shared", "-fPIC", f"-Wl,-soname,{name}.so"]
        source_file.write_text(text, encoding="utf-8")
        command = ["g++", "-std=c++17", *flags, str(source_file), "-o", str(folder / f"{name}.so")]
        subprocess.run(command, check=True)
    libraries = [str(folder / f"{name}.so") for name in texts]
    operands = [
        str(call_sites.compiled()),
        unique_symbol(source.unit()),
        json.dumps(list(CASES.values())),
    ]
    command = [sys.executable, "-c", PROGRAM, *libraries, *operands]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    names: list[str] = ["slow", "runs", "device", "stream", "guards", "open_guards", "left"]
    names += ["memory", "while"]
    rows = (dict(zip(names, json.loads(line), strict=True)) for line in done.stdout.splitlines())
    return dict(zip(CASES, rows, strict=True))


def test_a_kernel_runs_on_the_device_and_the_stream_of_its_output(
    seen: dict[str, dict[str, Any]],
) -> None:
    row = seen["another device is current"]
    assert (row["runs"], row["slow"]) == (1, 0)
    assert (row["device"], row["stream"]) == (1, 1001)
    assert (row["guards"], row["open_guards"], row["left"]) == (1, 0, 0)


def test_a_device_that_is_current_is_not_set_again(seen: dict[str, dict[str, Any]]) -> None:
    row = seen["its device is current"]
    assert (row["runs"], row["device"], row["stream"]) == (1, 1, 1001)
    assert (row["guards"], row["left"]) == (0, 1)


def test_a_workspace_is_allocated_while_its_device_is_current(
    seen: dict[str, dict[str, Any]],
) -> None:
    row = seen["a workspace is needed"]
    assert (row["runs"], row["memory"], row["while"]) == (1, 1, 1)
    assert (row["open_guards"], row["left"]) == (0, 0)


def test_a_device_is_set_back_where_a_kernel_does_not_start(
    seen: dict[str, dict[str, Any]],
) -> None:
    row = seen["the kernel does not start"]
    assert (row["runs"], row["slow"]) == (1, 1)
    assert (row["open_guards"], row["left"]) == (0, 0)


@pytest.mark.parametrize("case", [name for name in CASES if name.endswith("another device")])
def test_tensors_of_another_device_never_reach_the_kernel(
    case: str, seen: dict[str, dict[str, Any]]
) -> None:
    assert (seen[case]["runs"], seen[case]["slow"]) == (0, 1)


def test_a_workspace_of_the_same_device_does(seen: dict[str, dict[str, Any]]) -> None:
    row = seen["a workspace is given"]
    assert (row["runs"], row["slow"], row["memory"]) == (1, 0, -1)
