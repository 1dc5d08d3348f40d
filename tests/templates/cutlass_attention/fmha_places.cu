// Where the accumulators of a warp group lie in its tile, as store_rows walks over them; asked on the host.
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/kernel_hardware_info.h"

// An intrinsic of what is not asked for; the host's compiler wants its name.
static __host__ uint32_t __byte_perm(uint32_t, uint32_t, int) { return 0; }

// What says how accumulators lie is for the device alone; here the host asks.
#pragma push_macro("__device__")
#undef __device__
#define __device__ __attribute__((host)) __attribute__((device))
#include "../examples/88_hopper_fmha/collective/fmha_common.hpp"
#pragma pop_macro("__device__")

template <class Atom, int kDim>
void list(int* rows, int* columns) {
  using namespace cute;
  auto const mma = make_tiled_mma(Atom{});
  for (int thread = 0; thread < 128; ++thread) {
    auto const of_thread = mma.get_thread_slice(thread).partition_C(make_identity_tensor(Shape<_64, Int<kDim>>{}));
    auto const places =
        make_tensor(of_thread.data(), cutlass::fmha::collective::layout_acc_mn(mma, of_thread.layout()));
    for (int i = 0; i < size<0>(places); ++i) {
      for (int j = 0; j < size<1>(places); ++j) {
        *rows++ = get<0>(places(i, j));
        *columns++ = get<1>(places(i, j));
      }
    }
  }
}

// Lists row and column of every value: [128 threads][2][dim / 4].
extern "C" __attribute__((visibility("default"))) int fmha_places(int dim, int* rows, int* columns) {
  using namespace cute;
  constexpr auto kK = GMMA::Major::K, kN = GMMA::Major::MN;
  if (dim == 32) return list<SM90_64x32x16_F32BF16BF16_RS<kK, kN>, 32>(rows, columns), 0;
  if (dim == 128) return list<SM90_64x128x16_F32BF16BF16_RS<kK, kN>, 128>(rows, columns), 0;
  return 1;
}
