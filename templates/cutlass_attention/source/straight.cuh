// V of two bytes an element is read where it lies.
using StrideV = cute::tuple<int, cute::_1, cute::tuple<int, int>>;

inline int32_t check_v(FmhaCall const&) { return kOk; }

inline uint64_t bytes_of_v(FmhaCall const&) { return 0; }

inline void const* pointer_of_v(FmhaCall const& call) { return call.v; }

inline StrideV stride_of_v(FmhaCall const& call) {
  return {stride_of(call.stride_v[2], call.seq_k, call.dim), cute::_1{},
          cute::make_tuple(stride_of(call.stride_v[0], call.batch, call.dim),
                           stride_of(call.stride_v[1], call.heads_kv, call.dim))};
}

inline int32_t prepare_v(FmhaCall const&, cudaStream_t) { return kOk; }
