// Says how a run ended. CUTLASS has read the runtime's reason away, hence `inductor_plugin_cuda_error`.
inline int32_t finished(GemmCall& call, cutlass::Status status) {
  if (status == cutlass::Status::kSuccess) return kOk;
  if (inductor_plugin_cuda_error == cudaSuccess) cudaGetLastError();  // what CUTLASS has not read is read here
  call.cutlass_status = int32_t(status);
  call.cuda_error = int32_t(inductor_plugin_cuda_error);
  return kStart;
}

// Prepares and starts a kernel. What is prepared is kept if the caller wants that, and if nothing has to be done before
// each run; CUTLASS 2.x and 3.x keep what `initialize` computed for any number of runs on any stream.
template <class Adapter>
inline int32_t start(GemmCall& call, typename Adapter::Arguments const& arguments, void* workspace, cudaStream_t stream,
                     bool keeps) {
  using Last = Kept<GemmCall, Adapter>;
  inductor_plugin_cuda_error = cudaSuccess;
  // A thread that has not used the device yet has no context to encode tensor maps in, and CUTLASS does not return that.
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
    return finished(call, cutlass::Status::kErrorInternal);
  }
  Adapter adapter;
  cutlass::Status status = adapter.initialize(arguments, workspace, stream);
  if (status == cutlass::Status::kSuccess) status = adapter.run(stream);
  if (keeps && status == cutlass::Status::kSuccess) Last::keep(call, adapter);
  return finished(call, status);
}

// Starts a kernel that is prepared for the same call, as most of a model are from the second step on.
template <class Adapter>
inline bool started_again(GemmCall& call, cudaStream_t stream, int32_t& status) {
  using Last = Kept<GemmCall, Adapter>;
  if (!Last::same(call)) return false;
  inductor_plugin_cuda_error = cudaSuccess;
  status = finished(call, Last::of(call)->prepared.run(stream));
  return true;
}
