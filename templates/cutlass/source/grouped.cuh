// Host side of a grouped CUTLASS 3.x kernel: one product a group, sizes known to the device alone.
using Adapter = cutlass::gemm::device::GemmUniversalAdapter<@kernel@>;
using Kernel = typename Adapter::GemmKernel;
constexpr int32_t kSharedBytes = Kernel::SharedStorageSize, kThreads = Kernel::MaxThreadsPerBlock;
using Shape = typename Kernel::ProblemShape::UnderlyingProblemShape;
using StrideA = typename Kernel::InternalStrideA;
using StrideB = typename Kernel::InternalStrideB;
using StrideD = typename Kernel::InternalStrideD;

// What CUTLASS reads of each group; it lies in the workspace, in front of CUTLASS's own part.
struct Groups {
  Shape* shapes;
  typename Kernel::ElementA const** a;
  typename Kernel::ElementB const** b;
  typename Kernel::ElementD** d;
  StrideA* stride_a;
  StrideB* stride_b;
  StrideD* stride_d;
};

template <class Array>
inline Array* taken(uint8_t*& next, int64_t count) {
  Array* here = reinterpret_cast<Array*>(next);
  next += (count * sizeof(Array) + 127) / 128 * 128;
  return here;
}

// Lays the arrays out from ``workspace`` on and returns how many bytes they take.
inline uint64_t lay_out(Groups& groups, void* workspace, int64_t count) {
  uint8_t* next = static_cast<uint8_t*>(workspace);
  groups.shapes = taken<Shape>(next, count);
  groups.a = taken<typename Kernel::ElementA const*>(next, count);
  groups.b = taken<typename Kernel::ElementB const*>(next, count);
  groups.d = taken<typename Kernel::ElementD*>(next, count);
  groups.stride_a = taken<StrideA>(next, count);
  groups.stride_b = taken<StrideB>(next, count);
  groups.stride_d = taken<StrideD>(next, count);
  return next - static_cast<uint8_t*>(workspace);
}

static __device__ int64_t within(int64_t number, int64_t low, int64_t high) {
  return number < low ? low : number > high ? high : number;
}

static __global__ void fill_groups(Groups groups, GemmCall call) {
  int64_t const group = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (group >= call.batch) return;
  // Offsets that run backwards or past A would make the kernel read and write elsewhere.
  int64_t const begin = group ? within(call.offsets[group - 1], 0, call.m) : 0;
  int64_t const end = within(call.offsets[group], begin, call.m);
  int64_t const lead_a = call.lead_a, lead_b = call.lead_b, lead_d = call.lead_d;
  groups.shapes[group] = Shape{int(end - begin), int(call.n), int(call.k)};
  groups.a[group] = static_cast<typename Kernel::ElementA const*>(call.a) + begin * lead_a;
  groups.b[group] = static_cast<typename Kernel::ElementB const*>(call.b) + group * call.batch_b;
  groups.d[group] = static_cast<typename Kernel::ElementD*>(call.d) + begin * lead_d;
  groups.stride_a[group] = StrideA{@group_stride_a@, cute::_0{}};
  groups.stride_b[group] = StrideB{@group_stride_b@, cute::_0{}};
  groups.stride_d[group] = StrideD{lead_d, cute::_1{}, cute::_0{}};
}

inline typename Adapter::Arguments arguments_of(GemmCall const& call) {
  Groups groups;
  lay_out(groups, call.workspace, call.batch);
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = 0;
  hardware.sm_count = call.sm_count;
  typename Adapter::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGrouped,
      {int(call.batch), groups.shapes, nullptr},
      {groups.a, groups.stride_a, groups.b, groups.stride_b},
      {@thread@, nullptr, groups.stride_d, groups.d, groups.stride_d},
      hardware};
  return arguments;
}

inline bool implements(typename Adapter::Arguments const& arguments) {
  return Adapter::can_implement(arguments) == cutlass::Status::kSuccess;
}

inline uint64_t workspace_of(GemmCall const& call, typename Adapter::Arguments const& arguments) {
  Groups groups;
  return lay_out(groups, nullptr, call.batch) + Adapter::get_workspace_size(arguments);
}

inline int32_t run_call(GemmCall& call, typename Adapter::Arguments const& arguments, cudaStream_t stream, bool) {
  Groups groups;
  uint64_t const bytes = lay_out(groups, call.workspace, call.batch);
  // A single group of one row may have any leading stride, as in lead_of.
  GemmCall plain = call;
  plain.lead_a = lead_of(call.lead_a, call.m, call.k, @align_a@);
  plain.lead_b = lead_of(call.lead_b, @outer_b_of_call@, @inner_b_of_call@, @align_b@);
  plain.lead_d = lead_of(call.lead_d, call.m, call.n, @align_d@);
  fill_groups<<<int((call.batch + 127) / 128), 128, 0, stream>>>(groups, plain);
  return start<Adapter>(call, arguments, static_cast<uint8_t*>(call.workspace) + bytes, stream, /*keeps=*/false);
}
