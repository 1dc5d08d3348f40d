"""What a kernel keeps from call to call is used for the same call alone: the very file the kernels are compiled from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from inductor_plugin.templates.cutlass.source import INTERFACE
from inductor_plugin.templates.cutlass.source_folder import KEPT
from tests.support.repository import REPOSITORY

PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>
%s
%s
namespace cutlass { enum class Status { kSuccess, kErrorInternal }; }
enum cudaError_t { cudaSuccess, cudaErrorUnknown = 999 };
using cudaStream_t = void*;
static cudaError_t inductor_plugin_cuda_error;
static cudaError_t cudaGetLastError() { return inductor_plugin_cuda_error = cudaErrorUnknown; }
static int prepared, runs, device = 3, context = -1;
static cudaError_t cudaGetDevice(int* current) { *current = device; return cudaSuccess; }
static cudaError_t cudaSetDevice(int chosen) {
  if (chosen != device || chosen < 0) return cudaErrorUnknown;
  context = chosen;
  return cudaSuccess;
}
static cutlass::Status answer = cutlass::Status::kSuccess;
struct Adapter {
  struct Arguments {};
  cutlass::Status initialize(Arguments const&, void*, cudaStream_t) {
    if (context != device) return cutlass::Status::kErrorInternal;  // in fact it returns success
    ++prepared; return cutlass::Status::kSuccess;
  }
  cutlass::Status run(cudaStream_t) { ++runs; return answer; }
};
%s
static int32_t call_once(GemmCall& call, bool keeps) {
  int32_t status = kOk;
  if (started_again<Adapter>(call, nullptr, status)) return status;
  return start<Adapter>(call, {}, nullptr, nullptr, keeps);
}
#define EXPECT(text) if (!(text)) { std::printf("line %%d: %%s\n", __LINE__, #text); return 1; }
int main() {
  void* kept = nullptr;
  GemmCall call;
  std::memset(&call, 0, sizeof call);
  call.m = call.n = call.k = 8, call.kept = &kept;
  EXPECT(call_once(call, false) == kOk && prepared == 1 && !kept);  // a workspace is written for each run
  EXPECT(call_once(call, true) == kOk && prepared == 2 && kept);
  EXPECT(call_once(call, true) == kOk && prepared == 2 && runs == 3);
  int expected = 2;
  for (int field = 0; field < 4; ++field) {
    GemmCall other = call;
    if (field == 0) other.a = &other;
    if (field == 1) other.m = 9;
    if (field == 2) other.lead_b = 16;
    if (field == 3) other.workspace = &other;
    EXPECT(call_once(other, true) == kOk && prepared == ++expected);
    EXPECT(call_once(call, true) == kOk && prepared == ++expected);
  }
  GemmCall alone = call;
  alone.kept = nullptr;  // another thread is in a call of the site
  EXPECT(call_once(alone, true) == kOk && prepared == ++expected);
  EXPECT(call_once(call, true) == kOk && prepared == expected);
  answer = cutlass::Status::kErrorInternal;
  EXPECT(call_once(call, true) == kStart && call.cuda_error == 999 && call.cutlass_status == 1);
  Kept<GemmCall, Adapter>::forget(call);
  EXPECT(!kept);
  device = -1;
  EXPECT(call_once(call, true) == kStart && call.cuda_error == 999 && !kept);
  return 0;
}
"""


def test_what_is_kept_is_for_the_same_call_alone(tmp_path: Path) -> None:
    start = REPOSITORY / "templates" / "cutlass" / "source" / "start.cuh"
    texts = (path.read_text(encoding="utf-8") for path in (INTERFACE, KEPT, start))
    source, program = tmp_path / "kept.cpp", tmp_path / "kept"
    source.write_text(_filled(PROGRAM, *texts), encoding="utf-8")
    command = ["g++", "-std=c++17", "-O1", "-fsanitize=address,undefined", "-o", str(program)]
    subprocess.run([*command, str(source)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _filled(program: str, *texts: str) -> str:
    for text in texts:
        program = program.replace("%s\n", text + "\n", 1)
    return program.replace("%%", "%")
