// The call of every CUTLASS attention kernel; inductor_plugin/fmha_abi.py has the same fields.
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
};
static_assert(sizeof(FmhaCall) == 376, "inductor_plugin/fmha_abi.py has another layout");

enum FmhaMode : int32_t { kCanImplement = 0, kWorkspaceBytes = 1, kRun = 2 };
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

// Elements of q, k and v in 16 bytes, which TMA moves at once.
constexpr int64_t kAlign = @align@;

inline int32_t check_tensor(void const* pointer, int64_t const (&stride)[3], FmhaCall const& call, int64_t heads,
                            int64_t rows) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16) return kPointer;
  int64_t const extent[3] = {call.batch, heads, rows};
  for (int at = 0; at < 3; ++at) {
    if (extent[at] == 1) continue;  // never used, may be anything
    // The example's strides are of 32 bits.
    if (stride[at] % kAlign || stride[at] < call.dim || stride[at] > INT32_MAX) return kStride;
  }
  return kOk;
}

inline int32_t check_extents(FmhaCall const& call) {
  for (int64_t extent : {call.batch, call.heads, call.heads_kv, call.seq_q, call.seq_k, call.dim}) {
    if (extent < 1 || extent >= Mask::kFar / 2) return kExtent;
  }
  // Batch and heads are the grid's second and third dimension, which count in 16 bits.
  if (call.batch > UINT16_MAX || call.heads > UINT16_MAX) return kExtent;
  return call.batch * call.heads > INT32_MAX / call.seq_q ? kExtent : kOk;
}

// What forward and backward have in common.
inline int32_t check_common(FmhaCall const& call, int64_t most_dim) {
  if (int32_t status = check_extents(call)) return status;
  if (call.heads % call.heads_kv) return kHeads;
  if (call.dim > most_dim || call.dim % kAlign) return kDim;
  // Scores are scaled behind their maximum, which a scale that is not positive would make the minimum.
  if (!(call.scale > 0) || call.scale > FLT_MAX || call.sm_count < 1) return kScalar;
  if (int32_t status = check_tensor(call.q, call.stride_q, call, call.heads, call.seq_q)) return status;
  if (int32_t status = check_tensor(call.k, call.stride_k, call, call.heads_kv, call.seq_k)) return status;
  return check_tensor(call.v, call.stride_v, call, call.heads_kv, call.seq_k);
}

inline Mask mask_of(FmhaCall const& call) {
  return Mask::of(call.seq_q, call.seq_k, call.window_left, call.window_right, call.bottom_right != 0);
}

// A stride as TMA takes it: one of an extent of 1 is never used, and may be of no legal value.
inline int stride_of(int64_t stride, int64_t extent, int64_t dim) {
  return extent == 1 ? int((dim + kAlign - 1) / kAlign * kAlign) : int(stride);
}
