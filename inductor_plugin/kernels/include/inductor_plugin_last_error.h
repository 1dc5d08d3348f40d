// Keeps the last error of the CUDA runtime. GemmUniversalAdapter::run (CUTLASS 4) asks cudaGetLastError, which forgets
// it, and returns "internal error": what failed could not be said.
#pragma once
#include <cuda_runtime.h>

inline thread_local cudaError_t inductor_plugin_cuda_error = cudaSuccess;

inline cudaError_t inductor_plugin_last_error() {
  cudaError_t const error = cudaGetLastError();
  if (error != cudaSuccess) inductor_plugin_cuda_error = error;
  return error;
}

#define cudaGetLastError inductor_plugin_last_error
