// The call of every CUTLASS attention kernel; inductor_plugin/attention/cutlass_abi.py has the same fields.
// Sizes and strides are in elements; strides are of (batch, head, row), the last dimension is contiguous.
struct FmhaCall {
  void const* q;        // [batch, heads, seq_q, dim]
  void const* k;        // [batch, heads_kv, seq_k, dim]
  void const* v;        // [batch, heads_kv, seq_k, dim]
  void* out;            // [batch, heads, seq_q, dim]; backward does not read it
  float* lse;           // [batch, heads, seq_q], dense; forward: null if nobody wants it
  void const* d_out;    // [batch, heads, seq_q, dim]
  float const* delta;   // [batch, heads, seq_q], dense: the sum of out * d_out over dim
  void* dq;
  void* dk;
  void* dv;
  void* workspace;
  uint64_t workspace_bytes;
  int64_t batch, heads, heads_kv, seq_q, seq_k, dim;
  int64_t stride_q[3], stride_k[3], stride_v[3], stride_out[3];
  int64_t stride_d_out[3], stride_dq[3], stride_dk[3], stride_dv[3];
  int64_t window_left, window_right;  // negative: unlimited
  float scale;
  int32_t bottom_right;    // the window is counted from the last key, not from the first
  int32_t sm_count;        // multiprocessors to plan for; queries never ask the device
  int32_t device;          // index of the CUDA device the operands are on
  int32_t cuda_error;      // out: what the runtime said last
  void** kept;             // where the kernel keeps what it has prepared for the next call; null to keep nothing
};
static_assert(sizeof(FmhaCall) == 384, "inductor_plugin/attention/cutlass_abi.py has another layout");

// kForget gives back what ``kept`` points to.
enum FmhaMode : int32_t { kCanImplement = 0, kWorkspaceBytes = 1, kRun = 2, kForget = 3 };
enum FmhaStatus : int32_t {
  kOk = 0,
  kPointer = 1,    // a pointer is missing or not aligned to 16 bytes
  kStride = 2,     // a stride is not a positive multiple of 16 bytes, rows overlap, or it is too large
  kExtent = 3,     // an extent is zero or negative, or too large
  kScalar = 4,     // scale or sm_count has a value no kernel can have
  kHeads = 5,      // heads are no multiple of heads_kv
  kDim = 6,        // this kernel is for smaller heads, or dim is no multiple of 16 bytes
  kWorkspace = 7,  // the workspace is missing, too small or not aligned to 128 bytes
  kStart = 8,      // the runtime failed to start the kernel
  kBadMode = 9,
};
