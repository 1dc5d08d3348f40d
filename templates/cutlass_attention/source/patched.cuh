// What the patched headers below need besides their own text.
namespace patched {
using namespace cutlass::fmha::collective;
using cutlass::PipelineState;

// By how many powers of two weights are larger than softmax makes them.
constexpr float kWeightBits = @weight_bits@;

// Hides scores of pairs that are not kept; kQuery and kKey say which mode of a coordinate is which.
template <int kQuery, int kKey, class Scores, class Index>
CUTLASS_DEVICE void hide(Mask const& mask, Scores& scores, Index const& index) {
  CUTLASS_PRAGMA_UNROLL
  for (int at = 0; at < cute::size(scores); ++at) {
    auto const place = index(at);
    if (!mask.keeps(int(cute::get<kQuery>(place)), int(cute::get<kKey>(place)))) scores(at) = -INFINITY;
  }
}

// The coordinate of the head of K and V that a head of Q shares with others.
template <class Params, class Coord>
CUTLASS_DEVICE auto shared_head(Params const& params, Coord const& coord) {
  return cute::make_coord(cute::get<0>(coord), cute::get<1>(coord),
                          cute::make_coord(cute::get<2, 0>(coord), int(cute::get<2, 1>(coord)) / params.group));
}
}  // namespace patched
