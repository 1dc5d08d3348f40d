// Writes accumulators straight from registers. The example's epilogue goes through shared memory and TMA, which
// costs the compiler several seconds a kernel and a persistent kernel 32 KB a block.
struct NoPipeline {
  enum class ThreadCategory { NonParticipant, Producer, Consumer, ProducerConsumer };
  struct SharedStorage {};
  struct Params {
    ThreadCategory role = ThreadCategory::NonParticipant;
    uint32_t dst_blockid = 0, producer_arv_count = 0, consumer_arv_count = 0, transaction_bytes = 0;
  };
  CUTLASS_DEVICE NoPipeline(SharedStorage&, Params const&) {}
};

// Where rows of (batch, head) begin, and what is inside.
template <class Element>
struct Target {
  Element* pointer;
  int64_t stride[3];  // of (batch, head, row)
  int64_t rows;
  int dim;
};

// A thread's columns 8 n + 2 t and one more, of four n and of lanes t = 0 .. 3, become columns 8 t to 8 t + 7.
CUTLASS_DEVICE uint4 gathered(uint32_t const (&pairs)[4]) {
  int const lane = threadIdx.x % 4;
  uint32_t taken[4];
  CUTLASS_PRAGMA_UNROLL
  for (int turn = 0; turn < 4; ++turn) {
    int const other = lane ^ turn;
    uint32_t const sent = other == 0 ? pairs[0] : other == 1 ? pairs[1] : other == 2 ? pairs[2] : pairs[3];
    taken[turn] = __shfl_xor_sync(0xffffffff, sent, turn);
  }
  // What came in a turn is of lane ``lane ^ turn``.
  auto const of = [&](int other) {
    int const turn = lane ^ other;
    return turn == 0 ? taken[0] : turn == 1 ? taken[1] : turn == 2 ? taken[2] : taken[3];
  };
  return {of(0), of(1), of(2), of(3)};
}

// Writes the tile of one warp group: rows from ``first`` on.
template <class Tile, class Accumulator, class TiledMma, class Element>
CUTLASS_DEVICE void store_rows(Tile const& tile, Accumulator& accumulator, TiledMma const& mma,
                               Target<Element> const& target, int64_t first, int64_t batch, int64_t head) {
  using namespace cutlass::fmha::collective;
  auto const thread = mma.get_thread_slice(threadIdx.x % cutlass::NumThreadsPerWarpGroup);
  auto const places_of = thread.partition_C(cute::make_identity_tensor(cute::take<0, 2>(tile)));
  auto const places = cute::make_tensor(places_of.data(), layout_acc_mn(mma, places_of.layout()));
  auto const values = cute::make_tensor(accumulator.data(), layout_acc_mn(mma, accumulator.layout()));
  static_assert(decltype(cute::size<1>(values))::value % 8 == 0);
  int const lane = threadIdx.x % 4;
  Element* const start = target.pointer + batch * target.stride[0] + head * target.stride[1];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < cute::size<0>(values); ++i) {
    int64_t const row = first + cute::get<0>(places(i, 0));
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < cute::size<1>(values); j += 8) {
      uint32_t pairs[4];
      CUTLASS_PRAGMA_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        Element const both[2] = {Element(values(i, j + 2 * pair)), Element(values(i, j + 2 * pair + 1))};
        pairs[pair] = uint32_t(both[0].raw()) | uint32_t(both[1].raw()) << 16;
      }
      uint4 const chunk = gathered(pairs);
      int const column = j * 4 + lane * 8;  // four lanes hold 32 columns of eight values each
      if (row < target.rows && column < target.dim) {
        *reinterpret_cast<uint4*>(start + row * target.stride[2] + column) = chunk;
      }
    }
  }
}
