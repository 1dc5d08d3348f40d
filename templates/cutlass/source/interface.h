// The call of every CUTLASS kernel; inductor_plugin/ops/gemm_abi.py has the same fields.
// Strides and sizes are in elements; "lead" is the stride of the dimension that is not contiguous.
// What an epilogue reads, or writes besides D, with its strides under D: 0 where it is the same.
struct GemmOperand {
  void* pointer;
  int64_t along_m, along_n, batch;
};

struct GemmCall {
  void const* a;        // A[batch, m, k]
  void const* b;        // B[batch, k, n]
  void const* c;        // bias: C[n], C[m] or C[batch, m, n]
  void* d;              // D[batch, m, n], row-major
  void const* scale_a;  // float32, one or [m]
  void const* scale_b;  // float32, one or [n]
  void* workspace;
  uint64_t workspace_bytes;
  int64_t m, n, k, batch;
  int64_t lead_a, lead_b, lead_c, lead_d;
  int64_t batch_a, batch_b, batch_c, batch_d;
  float alpha, beta;
  int32_t sm_count;  // multiprocessors to plan for; queries never ask the device
  int32_t swizzle, split_k, raster;
  int32_t cutlass_status;  // out: what CUTLASS said last
  int32_t cuda_error;      // out: what the runtime said last
  int32_t const* offsets;  // grouped only, on the device: where the rows of each group end, [batch]
  GemmOperand operands[8];  // of an epilogue: what it reads, then what it writes besides D
  void** kept;  // where the kernel keeps what it has prepared for the next call; null to keep nothing
};
static_assert(sizeof(GemmCall) == 464, "inductor_plugin/ops/gemm_abi.py has another layout");

// kForget gives back what ``kept`` points to.
enum GemmMode : int32_t { kCanImplement = 0, kWorkspaceBytes = 1, kRun = 2, kForget = 3 };
enum GemmStatus : int32_t {
  kOk = 0,
  kPointer = 1,    // a pointer is missing or not aligned
  kStride = 2,     // a stride is not a multiple of the alignment, or rows overlap
  kExtent = 3,     // an extent is zero or negative, too large, or not a multiple of the alignment
  kScalar = 4,     // alpha, beta or split_k has a value this kernel cannot have
  kRefused = 5,    // CUTLASS says that it cannot run this
  kWorkspace = 6,  // the workspace is missing or too small
  kStart = 7,      // CUTLASS or the runtime failed to start the kernel
  kBadMode = 8,
};
