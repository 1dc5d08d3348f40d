// What a block takes at launch, which ptxas does not see; read from the library's file, without loading it.
extern "C" __attribute__((visibility("default"), used)) int32_t const @symbol@_block[2] = {
    kSharedBytes, kThreads};

extern "C" __attribute__((visibility("default"))) int32_t @symbol@(
    int32_t mode, GemmCall* call, uint64_t* workspace_bytes, void* stream) {
  call->cutlass_status = 0;
  call->cuda_error = 0;
  if (mode == kForget) {
    Kept<GemmCall, Adapter>::forget(*call);
    return kOk;
  }
  int32_t status = kOk;
  // An error that an earlier call of this thread has left would be taken for the kernel's, which is then never tried
  // again. One that breaks the device is not forgotten: the launch returns it.
  if (mode == kRun) cudaGetLastError();
  if (mode == kRun && started_again<Adapter>(*call, static_cast<cudaStream_t>(stream), status)) return status;
  if ((status = check_call(*call))) return status;
  auto const arguments = arguments_of(*call);
  if (!implements(arguments)) return kRefused;
  if (mode == kCanImplement) return kOk;
  uint64_t const bytes = workspace_of(*call, arguments);
  if (mode == kWorkspaceBytes) {
    *workspace_bytes = bytes;
    return kOk;
  }
  if (mode != kRun) return kBadMode;
  if (!has_pointers(*call)) return kPointer;
  if (bytes && (!call->workspace || call->workspace_bytes < bytes)) return kWorkspace;
  // What is in a workspace is written when a kernel is prepared, before each run.
  return run_call(*call, arguments, static_cast<cudaStream_t>(stream), /*keeps=*/!bytes);
}
