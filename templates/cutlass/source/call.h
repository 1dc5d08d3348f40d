// Returns the leading stride; that of a single row or column is never used and may be anything.
inline int64_t lead_of(int64_t lead, int64_t outer, int64_t inner, int64_t align) {
  return outer == 1 ? (inner + align - 1) / align * align : lead;
}

inline int32_t check_operand(void const* pointer, int64_t outer, int64_t inner, int64_t lead,
                             int64_t batch, int64_t batch_stride, int64_t align, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % (align * bytes)) return kPointer;
  if (inner % align) return kExtent;
  if (lead % align || lead < inner) return kStride;
  if (batch > 1 && (batch_stride % align || batch_stride < 0)) return kStride;
  return kOk;
}

// A row, a column (a number is neither): contiguous, and the same along the other dimension.
inline int32_t check_vector(GemmOperand const& operand, int64_t m, int64_t n, bool along_m, bool along_n,
                            int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(operand.pointer) % bytes) return kPointer;
  if (m > 1 && operand.along_m != int64_t(along_m)) return kStride;
  if (n > 1 && operand.along_n != int64_t(along_n)) return kStride;
  return operand.batch < 0 ? kStride : kOk;
}

inline int32_t check_matrix(GemmOperand const& operand, GemmCall const& call, int64_t align, int64_t bytes) {
  int64_t const lead = lead_of(operand.along_m, call.m, call.n, align);
  if (call.n > 1 && operand.along_n != 1) return kStride;
  return check_operand(operand.pointer, call.m, call.n, lead, call.batch, operand.batch, align, bytes);
}

inline int32_t check_extents(GemmCall const& call) {
  for (int64_t extent : {call.m, call.n, call.k, call.batch}) {
    if (extent < 1 || extent > INT32_MAX) return kExtent;
  }
  // CUTLASS counts tiles and batches in 16 bits of the grid.
  return call.batch > UINT16_MAX ? kExtent : kOk;
}

// Operands of the kernel this file is compiled for.
inline int32_t check_call(GemmCall const& call) {
  if (int32_t status = check_extents(call)) return status;
  int64_t const m = call.m, n = call.n, k = call.k;
  if (int32_t status = check_operand(call.a, @outer_a@, @inner_a@, lead_of(call.lead_a, @outer_a@, @inner_a@, @align_a@),
                                     @batch_ad@, call.batch_a, @align_a@, @bytes_a@)) return status;
  if (int32_t status = check_operand(call.b, @outer_b@, @inner_b@, lead_of(call.lead_b, @outer_b@, @inner_b@, @align_b@),
                                     call.batch, call.batch_b, @align_b@, @bytes_b@)) return status;
  if (int32_t status = check_operand(call.d, m, n, lead_of(call.lead_d, m, n, @align_d@),
                                     @batch_ad@, call.batch_d, @align_d@, @bytes_d@)) return status;
  if (@batch_ad@ > 1 && call.batch_d == 0) return kStride;
  if (@has_full_c@) {
    if (int32_t status = check_operand(call.c, m, n, lead_of(call.lead_c, m, n, @align_c@),
                                       call.batch, call.batch_c, @align_c@, @bytes_c@)) return status;
  } else {
    if (reinterpret_cast<uintptr_t>(call.c) % (@align_bias@ * @bytes_c@)) return kPointer;
    if (call.batch > 1 && call.batch_c % @align_bias@) return kStride;
  }
  @operand_checks@
  if (@whole_scalars@ && (call.alpha != int32_t(call.alpha) || call.beta != int32_t(call.beta))) return kScalar;
  if (@ignores_alpha@ && call.alpha != 1.0f) return kScalar;
  if (call.sm_count < 1) return kScalar;
  if (call.split_k < 1 || (call.split_k > 1 && (!@can_split@ || call.batch > 1))) return kScalar;
  return call.split_k > call.k ? kScalar : kOk;
}

inline bool has_pointers(GemmCall const& call) {
  for (int32_t one = 0; one < @needs_operands@; ++one) {
    if (!call.operands[one].pointer) return false;
  }
  return call.a && call.b && call.d && (!@needs_c@ || call.c) &&
         (!@needs_scales@ || (call.scale_a && call.scale_b)) && (!@needs_offsets@ || call.offsets);
}
