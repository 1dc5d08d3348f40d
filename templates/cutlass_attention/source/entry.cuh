// What a block takes at launch, which ptxas does not see; read from the library's file, without loading it.
extern "C" __attribute__((visibility("default"), used)) int32_t const @symbol@_block[2] = {
    kSharedBytes, kThreads};

extern "C" __attribute__((visibility("default"))) int32_t @symbol@(
    int32_t mode, FmhaCall* call, uint64_t* workspace_bytes, void* stream) {
  call->cuda_error = 0;
  if (mode == kForget) {
    Kept<FmhaCall, typename Kernel::Params>::forget(*call);
    return kOk;
  }
  if (int32_t status = check_call(*call)) return status;
  if (mode == kCanImplement) return kOk;
  uint64_t const bytes = workspace_of(*call);
  if (mode == kWorkspaceBytes) {
    *workspace_bytes = bytes;
    return kOk;
  }
  if (mode != kRun) return kBadMode;
  if (!has_pointers(*call)) return kPointer;
  if (bytes && (!call->workspace || call->workspace_bytes < bytes)) return kWorkspace;
  if (bytes && reinterpret_cast<uintptr_t>(call->workspace) % 128) return kWorkspace;
  // An error that an earlier call of this thread has left would be taken for the kernel's, which is then never tried
  // again. One that breaks the device is not forgotten: the launch returns it.
  cudaGetLastError();
  // A thread that has not used the device yet, as those of autograd, has no context to encode tensor maps in.
  int32_t status = cudaSetDevice(call->device) == cudaSuccess ? kOk : kStart;
  if (!status) status = run_call(*call, static_cast<cudaStream_t>(stream));
  if (status) call->cuda_error = int32_t(cudaGetLastError());
  return status;
}
