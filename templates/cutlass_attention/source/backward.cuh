// Host side of the backward: the example's kernel around the main loop above, which adds up dQ in float32,
// and what turns that, and gradients of heads that share K and V, into the operands' type.
using Element = @element@;
using Stride = cute::tuple<int, int, int, cute::_1>;
using Mainloop = patched::FmhaBwdMainloopTmaWarpSpecialized<
    Element, float, cute::Shape<cute::Int<@rows@>, cute::Int<@columns@>, cute::Int<@dim@>>,
    cutlass::fmha::collective::DefaultFusion>;

// Writes the gradients of K and V.
struct Epilogue {
  using TensorStorage = NoPipeline::SharedStorage;
  using PipelineStorage = NoPipeline::SharedStorage;
  using LoadPipeline = NoPipeline;
  static constexpr int TmaTransactionBytes = 0;

  struct Arguments {
    Target<Element> dk, dv;
  };
  using Params = Arguments;

  template <class Problem>
  static Params to_underlying_arguments(Problem const&, Arguments const& arguments, void*) { return arguments; }

  template <class Tile, class Coord, class Result, class TiledMma, class Problem>
  CUTLASS_DEVICE void operator()(Tile const& tile, Coord const& coord, Result& result, TiledMma const& mma,
                                 Problem const&, Params const& params, NoPipeline, TensorStorage&) {
    int64_t const first = int64_t(cute::get<1>(coord)) * cute::get<0>(tile);
    int64_t const batch = cute::get<2, 0>(coord), head = cute::get<2, 1>(coord);
    store_rows(tile, cute::get<0>(result), mma, params.dk, first, batch, head);
    store_rows(tile, cute::get<1>(result), mma, params.dv, first, batch, head);
  }
};
using Scheduler = cutlass::fmha::kernel::TileSchedulerBwdAdapter<cutlass::fmha::kernel::IndividualTileScheduler>;

struct @kernel@ : cutlass::fmha::kernel::FmhaKernelTmaWarpSpecialized<Mainloop, Epilogue, Scheduler> {};
using Kernel = @kernel@;
constexpr int32_t kSharedBytes = Kernel::SharedStorageSize, kThreads = Kernel::MaxThreadsPerBlock;

// Tensors of (batch, head, row, dim); rows of the workspace are dense.
struct Rows {
  int64_t batch, heads, rows, dim;
  int64_t from[3], to[3];  // strides of (batch, head, row)
  int64_t group;           // heads of ``from`` that are added up to one of ``to``
};

template <class From>
static __global__ void @symbol@_sum(From const* from, Element* to, Rows shape) {
  int64_t const chunks = shape.dim / kAlign;
  int64_t const all = shape.batch * shape.heads * shape.rows * chunks;
  for (int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < all; at += int64_t(gridDim.x) * blockDim.x) {
    int64_t const column = at % chunks * kAlign, row = at / chunks % shape.rows;
    int64_t const head = at / chunks / shape.rows % shape.heads, batch = at / chunks / shape.rows / shape.heads;
    float sums[kAlign] = {};
    for (int64_t one = 0; one < shape.group; ++one) {
      auto const part = *reinterpret_cast<cutlass::AlignedArray<From, kAlign, 16> const*>(
          from + batch * shape.from[0] + (head * shape.group + one) * shape.from[1] + row * shape.from[2] + column);
      CUTLASS_PRAGMA_UNROLL
      for (int place = 0; place < kAlign; ++place) sums[place] += float(part[place]);
    }
    cutlass::AlignedArray<Element, kAlign, 16> rounded;
    CUTLASS_PRAGMA_UNROLL
    for (int place = 0; place < kAlign; ++place) rounded[place] = Element(sums[place]);
    *reinterpret_cast<cutlass::AlignedArray<Element, kAlign, 16>*>(
        to + batch * shape.to[0] + head * shape.to[1] + row * shape.to[2] + column) = rounded;
  }
}

// Rows of LSE and delta at multiples of 16 bytes, as TMA wants them.
static __global__ void @symbol@_pad(float const* lse, float const* delta, float* padded_lse, float* padded_delta,
                                    int64_t rows, int64_t length, int64_t padded) {
  for (int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < rows * padded;
       at += int64_t(gridDim.x) * blockDim.x) {
    int64_t const place = at % padded;
    if (place >= length) continue;
    padded_lse[at] = lse[at / padded * length + place];
    padded_delta[at] = delta[at / padded * length + place];
  }
}

// What the workspace holds, one behind the other at multiples of 128 bytes.
struct Parts {
  float *lse = nullptr, *delta = nullptr, *dq;
  Element *dk = nullptr, *dv = nullptr;
  uint64_t dq_bytes, bytes;
};

inline int64_t padded_rows(FmhaCall const& call) { return (call.seq_q + 3) / 4 * 4; }

inline Parts parts_of(FmhaCall const& call) {
  uint64_t next = 0;
  auto const taken = [&](int64_t bytes) {
    uint64_t const here = next;
    next += (uint64_t(bytes) + 127) / 128 * 128;
    return static_cast<uint8_t*>(call.workspace) + here;
  };
  Parts parts;
  int64_t const heads = call.batch * call.heads;
  if (padded_rows(call) != call.seq_q) {
    parts.lse = reinterpret_cast<float*>(taken(heads * padded_rows(call) * 4));
    parts.delta = reinterpret_cast<float*>(taken(heads * padded_rows(call) * 4));
  }
  parts.dq_bytes = uint64_t(heads * call.seq_q * call.dim * 4);
  parts.dq = reinterpret_cast<float*>(taken(int64_t(parts.dq_bytes)));
  if (call.heads != call.heads_kv) {
    parts.dk = reinterpret_cast<Element*>(taken(heads * call.seq_k * call.dim * int64_t(sizeof(Element))));
    parts.dv = reinterpret_cast<Element*>(taken(heads * call.seq_k * call.dim * int64_t(sizeof(Element))));
  }
  parts.bytes = next;
  return parts;
}

inline uint64_t workspace_of(FmhaCall const& call) {
  FmhaCall plain = call;
  plain.workspace = nullptr;
  return parts_of(plain).bytes;
}

inline int32_t check_call(FmhaCall const& call) {
  if (int32_t status = check_common(call, @dim@)) return status;
  if (int32_t status = check_tensor(call.d_out, call.stride_d_out, call, call.heads, call.seq_q)) return status;
  if (int32_t status = check_tensor(call.dq, call.stride_dq, call, call.heads, call.seq_q)) return status;
  if (int32_t status = check_tensor(call.dk, call.stride_dk, call, call.heads_kv, call.seq_k)) return status;
  if (int32_t status = check_tensor(call.dv, call.stride_dv, call, call.heads_kv, call.seq_k)) return status;
  // TMA reads both where their rows allow it.
  if (call.seq_q % 4 == 0 && (reinterpret_cast<uintptr_t>(call.lse) % 16 || reinterpret_cast<uintptr_t>(call.delta) % 16))
    return kPointer;
  // The workspace's strides are of 32 bits, as the example's all are.
  int64_t const rows = call.heads * (call.seq_q > call.seq_k ? call.seq_q : call.seq_k);
  return rows > INT32_MAX / call.dim ? kExtent : kOk;
}

inline bool has_pointers(FmhaCall const& call) {
  return call.q && call.k && call.v && call.d_out && call.lse && call.delta && call.dq && call.dk && call.dv;
}

inline Stride stride_of(int64_t const (&stride)[3], FmhaCall const& call, int64_t heads, int64_t rows) {
  return cute::make_tuple(stride_of(stride[0], call.batch, call.dim), stride_of(stride[1], heads, call.dim),
                          stride_of(stride[2], rows, call.dim), cute::_1{});
}

// Strides of a dense tensor of all heads of Q.
inline Stride dense(FmhaCall const& call, int64_t rows) {
  return cute::make_tuple(int(call.heads * rows * call.dim), int(rows * call.dim), int(call.dim), cute::_1{});
}

// Where a gradient of K or V goes: to the workspace, if heads are still to be added up.
inline Target<Element> target_of(Element* part, void* whole, int64_t const (&stride)[3], FmhaCall const& call) {
  int64_t const row = call.dim, head = row * call.seq_k, batch = head * call.heads;
  if (part) return {part, {batch, head, row}, call.seq_k, int(call.dim)};
  return {static_cast<Element*>(whole), {stride[0], stride[1], stride[2]}, call.seq_k, int(call.dim)};
}

inline typename Kernel::Arguments arguments_of(FmhaCall const& call, Parts const& parts, int64_t heads) {
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = call.device;
  hardware.sm_count = call.sm_count;
  int const padded = int(padded_rows(call));
  auto const stride_lse = cute::make_tuple(int(call.heads) * padded, padded, cute::_1{});
  return {
      cute::make_tuple(int(call.batch), int(heads), int(call.seq_q), int(call.seq_k), int(call.dim)),
      {static_cast<Element const*>(call.q), stride_of(call.stride_q, call, call.heads, call.seq_q),
       static_cast<Element const*>(call.k), stride_of(call.stride_k, call, call.heads_kv, call.seq_k),
       static_cast<Element const*>(call.v), stride_of(call.stride_v, call, call.heads_kv, call.seq_k),
       static_cast<Element const*>(call.d_out), stride_of(call.stride_d_out, call, call.heads, call.seq_q),
       parts.lse ? parts.lse : call.lse, stride_lse, parts.lse ? parts.delta : call.delta, stride_lse,
       parts.dq, dense(call, call.seq_q)},
      {target_of(parts.dk, call.dk, call.stride_dk, call), target_of(parts.dv, call.dv, call.stride_dv, call)},
      hardware};
}

inline typename Kernel::Params initialize(FmhaCall const& call, Parts const& parts, cudaStream_t stream) {
  CUTLASS_TRACE_HOST("@symbol@ initialize, stream: " << stream);
  auto params = Kernel::to_underlying_arguments(arguments_of(call, parts, call.heads), nullptr);
  if (call.heads != call.heads_kv) {
    auto const shared = arguments_of(call, parts, call.heads_kv);
    auto const maps = Mainloop::to_underlying_arguments(shared.problem_size, shared.mainloop, nullptr);
    params.mainloop.tma_load_k = maps.tma_load_k;
    params.mainloop.tma_load_v = maps.tma_load_v;
  }
  params.mainloop.mask = mask_of(call);
  params.mainloop.group = int(call.heads / call.heads_kv);
  params.mainloop.scale_softmax = call.scale;
  params.mainloop.scale_softmax_log2 = call.scale * 1.4426950408889634f;
  return params;
}

inline int blocks_for(FmhaCall const& call, int64_t work) {
  int64_t const all = (work + 255) / 256, most = int64_t(call.sm_count) * 8;
  return int(all < most ? all : most);
}

template <class From>
inline void add_up(From const* from, int64_t const (&from_stride)[3], void* to, int64_t const (&to_stride)[3],
                   FmhaCall const& call, int64_t heads, int64_t rows, cudaStream_t stream) {
  Rows shape{call.batch, heads, rows, call.dim, {}, {}, call.heads / heads};
  for (int at = 0; at < 3; ++at) shape.from[at] = from_stride[at], shape.to[at] = to_stride[at];
  int64_t const work = call.batch * heads * rows * (call.dim / kAlign);
  @symbol@_sum<<<blocks_for(call, work), 256, 0, stream>>>(from, static_cast<Element*>(to), shape);
}

inline int32_t run_call(FmhaCall& call, cudaStream_t stream) {
  Parts const parts = parts_of(call);
  int64_t const heads = call.batch * call.heads, padded = padded_rows(call);
  auto const params = prepared<typename Kernel::Params>(call, [&] { return initialize(call, parts, stream); });
  CUTLASS_TRACE_HOST("@symbol@ run, stream: " << stream);
  if (parts.lse) {
    @symbol@_pad<<<blocks_for(call, heads * padded), 256, 0, stream>>>(
        call.lse, call.delta, parts.lse, parts.delta, heads, call.seq_q, padded);
  }
  if (cudaMemsetAsync(parts.dq, 0, parts.dq_bytes, stream) != cudaSuccess) return kStart;
  if (int32_t status = start<Kernel>(params, stream)) return status;
  int64_t const dense_q[3] = {call.heads * call.seq_q * call.dim, call.seq_q * call.dim, call.dim};
  int64_t const dense_k[3] = {call.heads * call.seq_k * call.dim, call.seq_k * call.dim, call.dim};
  add_up(parts.dq, dense_q, call.dq, call.stride_dq, call, call.heads, call.seq_q, stream);
  if (parts.dk) {
    add_up(parts.dk, dense_k, call.dk, call.stride_dk, call, call.heads_kv, call.seq_k, stream);
    add_up(parts.dv, dense_k, call.dv, call.stride_dv, call, call.heads_kv, call.seq_k, stream);
  }
  return cudaPeekAtLastError() == cudaSuccess ? kOk : kStart;
}
