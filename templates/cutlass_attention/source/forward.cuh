// Host side of the forward kernel: the example's kernel around the main loop and epilogue above.
using Element = @element@;
using Written = @written@;
using Stride = cute::tuple<int, cute::_1, cute::tuple<int, int>>;
using Options = cutlass::fmha::kernel::Option<cutlass::fmha::kernel::Tag::kStagesKV, cute::Int<@stages@>>;
using Persistent =
    cutlass::fmha::kernel::Option<cutlass::fmha::kernel::Tag::kIsPersistent, cute::@persistent@>;
using Separate =
    cutlass::fmha::kernel::Option<cutlass::fmha::kernel::Tag::kLoadsQSeparately, cute::@persistent@>;
using Mainloop = patched::FmhaMainloopTmaWarpSpecialized<
    Element, float, float, cute::Shape<cute::Int<@rows@>, cute::Int<@columns@>, cute::Int<@dim@>>, Stride, Stride,
    StrideV, cutlass::fmha::collective::DefaultFusion, Options, Persistent, Separate>;

// Writes the output, and the logarithms of the sums where they are asked for.
struct Epilogue {
  using TensorStorage = NoPipeline::SharedStorage;
  using PipelineStorage = NoPipeline::SharedStorage;
  using LoadPipeline = NoPipeline;
  static constexpr int TmaTransactionBytes = 0;

  struct Arguments {
    Target<Written> out;
    float* lse;
  };
  using Params = Arguments;

  template <class Problem>
  static Params to_underlying_arguments(Problem const&, Arguments const& arguments, void*) { return arguments; }

  template <class Tile, class Coord, class Result, class TiledMma, class Problem>
  CUTLASS_DEVICE void operator()(Tile const& tile, Coord const& coord, Result& result, TiledMma const& mma,
                                 Problem const& problem, Params const& params, NoPipeline, TensorStorage&) {
    int64_t const first = int64_t(cute::get<0>(coord)) * cute::get<0>(tile);
    int64_t const batch = cute::get<2, 0>(coord), head = cute::get<2, 1>(coord);
    auto& sums = cute::get<0>(result);
    auto const& logs = cute::get<1>(result);
    if (params.lse) {
      using namespace cutlass::fmha::collective;
      auto const thread = mma.get_thread_slice(threadIdx.x % cutlass::NumThreadsPerWarpGroup);
      auto const places_of = thread.partition_C(cute::make_identity_tensor(cute::take<0, 2>(tile)));
      auto const places = cute::make_tensor(places_of.data(), layout_acc_mn(mma, places_of.layout()));
      float* const lse = params.lse + (batch * cute::get<1>(problem) + head) * params.out.rows;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < cute::size<0>(places); ++i) {
        int64_t const row = first + cute::get<0>(places(i, 0));
        // Four lanes hold a row; the one with its first column writes.
        if (cute::get<1>(places(i, 0)) == 0 && row < params.out.rows) lse[row] = logs(i);
      }
    }
    store_rows(tile, sums, mma, params.out, first, batch, head);
  }
};
using Scheduler = cutlass::fmha::kernel::@scheduler@TileScheduler;

struct @kernel@ : cutlass::fmha::kernel::FmhaKernelTmaWarpSpecialized<
    Mainloop, Epilogue, Scheduler, Options, Persistent, Separate> {};
using Kernel = @kernel@;
constexpr int32_t kSharedBytes = Kernel::SharedStorageSize, kThreads = Kernel::MaxThreadsPerBlock;

inline int32_t check_call(FmhaCall const& call) {
  if (int32_t status = check_common(call, @dim@)) return status;
  if (int32_t status = check_v(call)) return status;
  return check_tensor(call.out, call.stride_out, call, call.heads, call.seq_q);
}

inline bool has_pointers(FmhaCall const& call) { return call.q && call.k && call.v && call.out; }

inline uint64_t workspace_of(FmhaCall const& call) { return bytes_of_v(call); }

inline Stride stride_of(int64_t const (&stride)[3], FmhaCall const& call, int64_t heads, int64_t rows) {
  return Stride{stride_of(stride[2], rows, call.dim), cute::_1{},
                cute::make_tuple(stride_of(stride[0], call.batch, call.dim), stride_of(stride[1], heads, call.dim))};
}

inline typename Kernel::Arguments arguments_of(FmhaCall const& call, int64_t heads) {
  cutlass::KernelHardwareInfo hardware;
  hardware.device_id = call.device;
  hardware.sm_count = call.sm_count;
  return {
      cute::make_tuple(int(call.batch), int(heads), int(call.seq_q), int(call.seq_k), int(call.dim)),
      {static_cast<Element const*>(call.q), stride_of(call.stride_q, call, call.heads, call.seq_q),
       static_cast<Element const*>(call.k), stride_of(call.stride_k, call, call.heads_kv, call.seq_k),
       static_cast<Element const*>(pointer_of_v(call)), stride_of_v(call)},
      {{static_cast<Written*>(call.out), {call.stride_out[0], call.stride_out[1], call.stride_out[2]}, call.seq_q,
        int(call.dim)},
       call.lse},
      hardware};
}

// Tensor maps and scalars of a call; K and V have heads of their own.
inline typename Kernel::Params initialize(FmhaCall const& call, cudaStream_t stream) {
  CUTLASS_TRACE_HOST("@symbol@ initialize, stream: " << stream);
  auto params = Kernel::to_underlying_arguments(arguments_of(call, call.heads), nullptr);
  if (call.heads != call.heads_kv) {
    auto const shared = arguments_of(call, call.heads_kv);
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

inline int32_t run_call(FmhaCall& call, cudaStream_t stream) {
  if (int32_t status = prepare_v(call, stream)) return status;
  auto const params = prepared<typename Kernel::Params>(call, [&] { return initialize(call, stream); });
  CUTLASS_TRACE_HOST("@symbol@ run, stream: " << stream);
  return start<Kernel>(params, stream);
}
