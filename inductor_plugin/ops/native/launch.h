// Launches a compiled CUTLASS kernel on the current stream of its output's device.

using Entry = int32_t (*)(int32_t, void*, uint64_t*, void*);

// Bytes; as the families of `inductor_plugin.ops.launch` say.
constexpr int32_t kProductAlignment = 64, kAttentionAlignment = 128;

// The kernels take no empty dimension.
inline bool has_work(GemmCall const& call) { return call.m && call.n && call.k && call.batch; }
inline bool has_work(FmhaCall const& call) {
  return call.batch && call.heads && call.heads_kv && call.seq_q && call.seq_k && call.dim;
}

// Returns false where the kernel has no workspace it can use, or does not start.
// ``workspace`` may be null or begin elsewhere than at a multiple of ``alignment``, as in the pools of Inductor's memory
// planning: then it comes from torch's allocator. ``start`` calls the kernel's function.
template <class Call, class Start>
bool started(Entry entry, Call& call, View const* workspace, View const& out, int32_t alignment, Start const& start) {
  DeviceGuard guard(out);
  Scratch scratch;
  if (workspace && (workspace->dtype != torch_.uint8 || !workspace->dense() || !workspace->beside(out))) return false;
  if (workspace && reinterpret_cast<uintptr_t>(workspace->pointer) % alignment == 0) {
    call.workspace = workspace->pointer, call.workspace_bytes = workspace->numel();
  } else {
    uint64_t bytes = 0;
    if (entry(kWorkspaceBytes, &call, &bytes, nullptr)) return false;
    if (bytes) {
      call.workspace = scratch.allocate(bytes, out), call.workspace_bytes = bytes;
      if (!call.workspace) return false;
    }
  }
  void* stream = nullptr;
  if (out.device_type == torch_.cuda) {
    if (!torch_.current_stream || torch_.current_stream(out.device, &stream)) return false;
  }
  return start(call, stream) == 0;
}
