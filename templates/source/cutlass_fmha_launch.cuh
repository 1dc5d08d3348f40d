// Starts a kernel on the current device. The example asks for shared memory once a process, which leaves out
// every device but the first; this asks before each start.
template <class Kernel>
inline int32_t start(typename Kernel::Params const& params, cudaStream_t stream) {
  auto const entry = cutlass::device_kernel<Kernel>;
  int const bytes = Kernel::SharedStorageSize;
  if (cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) return kStart;
  entry<<<Kernel::get_grid_shape(params), Kernel::get_block_shape(), bytes, stream>>>(params);
  return cudaPeekAtLastError() == cudaSuccess ? kOk : kStart;
}
