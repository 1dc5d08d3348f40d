// Host side of a CUTLASS 2.x kernel (sm_80 and everything newer).
using Kernel = @kernel@;
using Adapter = cutlass::gemm::device::GemmUniversalBase<Kernel>;
constexpr int32_t kSharedBytes = sizeof(typename Kernel::SharedStorage), kThreads = Kernel::kThreadCount;

inline typename Adapter::Arguments arguments_of(GemmCall const& call) {
  int64_t const m = call.m, n = call.n, k = call.k;
  bool const batched = call.batch > 1;
  // A leading stride of zero reads the same row of C again and again: a bias of n elements.
  int64_t const lead_c = @full_c@ ? lead_of(call.lead_c, m, n, @align_c@) : 0;
  return {batched ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm,
          {int(m), int(n), int(k)},
          batched ? int(call.batch) : int(call.split_k),
          @thread@,
          call.a,
          call.b,
          call.c,
          call.d,
          call.batch_a,
          call.batch_b,
          call.batch_c,
          call.batch_d,
          typename Kernel::LayoutA::Stride(lead_of(call.lead_a, @outer_a@, @inner_a@, @align_a@)),
          typename Kernel::LayoutB::Stride(lead_of(call.lead_b, @outer_b@, @inner_b@, @align_b@)),
          typename Kernel::LayoutC::Stride(lead_c),
          typename Kernel::LayoutC::Stride(lead_of(call.lead_d, m, n, @align_d@))};
}

inline int32_t run_call(GemmCall& call, typename Adapter::Arguments const& arguments, cudaStream_t stream, bool keeps) {
  return start<Adapter>(call, arguments, call.workspace, stream, keeps);
}

// Adapter::can_implement and Adapter::get_workspace_size ask the device; these do not.
inline bool implements(typename Adapter::Arguments const& arguments) {
  int64_t const rows = (int64_t(arguments.problem_size.n()) + Kernel::ThreadblockShape::kN - 1) /
                       Kernel::ThreadblockShape::kN;
  return rows <= UINT16_MAX && Kernel::can_implement(arguments) == cutlass::Status::kSuccess;
}

inline uint64_t workspace_of(GemmCall const& call, typename Adapter::Arguments const& arguments) {
  typename Kernel::Params params(arguments, call.sm_count, 1);
  return params.get_workspace_size();
}
