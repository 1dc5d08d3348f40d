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
