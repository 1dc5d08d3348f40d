// V of one byte an element lies in the workspace as [batch, heads_kv, dim, keys], as Hopper's tensor cores read
// operands of 8 bits: along what is summed over, which are the keys.
using StrideV = cute::tuple<cute::_1, int, cute::tuple<int, int>>;

__global__ void __launch_bounds__(kTurnThreads) turned(FmhaCall const call) {
#if defined(__CUDA_ARCH__)
  __shared__ uint32_t words[kTurnSide][kTurnSide / 4 + 1];
  Turn const turn{call, blockIdx.x, blockIdx.y};
  turn.take(threadIdx.x, words);
  __syncthreads();
  turn.give(threadIdx.x, words);
#endif
}

inline int32_t check_v(FmhaCall const& call) {
  if (call.batch * call.heads_kv > INT32_MAX / turn_tiles(call.seq_k)) return kExtent;
  return call.heads_kv * call.dim > INT32_MAX / turned_line(call) ? kExtent : kOk;
}

inline uint64_t bytes_of_v(FmhaCall const& call) {
  return uint64_t(call.batch) * call.heads_kv * call.dim * turned_line(call);
}

inline void const* pointer_of_v(FmhaCall const& call) { return call.workspace; }

inline StrideV stride_of_v(FmhaCall const& call) {
  int64_t const line = turned_line(call);
  return {cute::_1{}, int(line), cute::make_tuple(int(line * call.dim * call.heads_kv), int(line * call.dim))};
}

inline int32_t prepare_v(FmhaCall const& call, cudaStream_t stream) {
  dim3 const grid(uint32_t(call.batch * call.heads_kv * turn_tiles(call.seq_k)), uint32_t(turn_tiles(call.dim)));
  turned<<<grid, kTurnThreads, 0, stream>>>(call);
  return cudaPeekAtLastError() == cudaSuccess ? kOk : kStart;
}
