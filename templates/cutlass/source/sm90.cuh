// Host side of a CUTLASS 3.x kernel (sm_90a, sm_100a).
using Adapter = cutlass::gemm::device::GemmUniversalAdapter<@kernel@>;
using Kernel = typename Adapter::GemmKernel;
constexpr int32_t kSharedBytes = Kernel::SharedStorageSize, kThreads = Kernel::MaxThreadsPerBlock;

inline typename Adapter::Arguments arguments_of(GemmCall const& call) {
  int64_t const m = call.m, n = call.n, k = call.k;
  bool const batched = call.batch > 1;
  int64_t const lead_a = lead_of(call.lead_a, @outer_a@, @inner_a@, @align_a@);
  int64_t const lead_b = lead_of(call.lead_b, @outer_b@, @inner_b@, @align_b@);
  int64_t const lead_c = lead_of(@lead_c@, m, n, @align_c@);
  int64_t const lead_d = lead_of(call.lead_d, m, n, @align_d@);
  int64_t const batch_a = batched ? call.batch_a : 0, batch_b = batched ? call.batch_b : 0;
  int64_t const batch_c = batched ? @batch_c@ : 0, batch_d = batched ? call.batch_d : 0;
  typename Kernel::StrideA stride_a{@stride_a@};
  typename Kernel::StrideB stride_b{@stride_b@};
  typename Kernel::StrideC stride_c{lead_c, cute::_1{}, batch_c};
  typename Kernel::StrideD stride_d{lead_d, cute::_1{}, batch_d};
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0;
  hardware.sm_count = call.sm_count;
  typename Adapter::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {int(m), int(n), int(k), int(call.batch)},
      {static_cast<typename Kernel::ElementA const*>(call.a), stride_a,
       static_cast<typename Kernel::ElementB const*>(call.b), stride_b},
      {@thread@,
       static_cast<typename Kernel::ElementC const*>(@pointer_c@), stride_c,
       static_cast<typename Kernel::ElementD*>(call.d), stride_d},
      hardware};
  using Raster = decltype(arguments.scheduler.raster_order);
  arguments.scheduler.max_swizzle_size = call.swizzle;
  arguments.scheduler.raster_order = call.raster == 1   ? Raster::AlongM
                                     : call.raster == 2 ? Raster::AlongN
                                                        : Raster::Heuristic;
  @splits@
  return arguments;
}

inline int32_t run_call(GemmCall& call, typename Adapter::Arguments const& arguments, cudaStream_t stream, bool keeps) {
  return start<Adapter>(call, arguments, call.workspace, stream, keeps);
}

inline bool implements(typename Adapter::Arguments const& arguments) {
  return Adapter::can_implement(arguments) == cutlass::Status::kSuccess;
}

inline uint64_t workspace_of(GemmCall const&, typename Adapter::Arguments const& arguments) {
  return Adapter::get_workspace_size(arguments);
}
