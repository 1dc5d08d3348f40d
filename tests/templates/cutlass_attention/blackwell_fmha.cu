// Example 77 of CUTLASS, instantiated as it is: a causal forward that counts from the last key, for sm_100a.
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/kernel_hardware_info.h"
#include "device/fmha.hpp"
#include "collective/fmha_fusion.hpp"
#include "collective/sm100_fmha_fwd_mainloop_tma_warpspecialized.hpp"
#include "collective/sm100_fmha_fwd_epilogue_tma_warpspecialized.hpp"
#include "kernel/fmha_options.hpp"
#include "kernel/fmha_tile_scheduler.hpp"
#include "kernel/sm100_fmha_fwd_kernel_tma_warpspecialized.hpp"

using cute::_0;
using cute::_1;
using Element = cutlass::bfloat16_t;
using Heads = cute::tuple<cute::tuple<int, int>, int>;
using StrideQ = cute::tuple<int, _1, Heads>;
using StrideK = cute::tuple<int, _1, cute::tuple<cute::tuple<_0, int>, int>>;
using Mainloop = cutlass::fmha::collective::Sm100FmhaFwdMainloopTmaWarpspecialized<
    Element, float, float, cute::Shape<cute::_256, cute::_128, cute::_128>, StrideQ, StrideK, StrideK,
    cutlass::fmha::collective::CausalMask<false>>;
using Epilogue = cutlass::fmha::collective::Sm100FmhaFwdEpilogueTmaWarpspecialized<
    Element, float, typename Mainloop::TileShapePV, StrideQ, cute::tuple<_1, Heads>>;
using Operation = cutlass::fmha::device::FMHA<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<
    cute::tuple<int, int, int, Heads>, Mainloop, Epilogue, cutlass::fmha::kernel::PersistentTileScheduler>>;

extern "C" __attribute__((visibility("default"))) int blackwell_fmha(
    typename Operation::Arguments const* arguments, void* workspace, cudaStream_t stream) {
  Operation operation;
  if (operation.can_implement(*arguments) != cutlass::Status::kSuccess) return 1;
  if (operation.initialize(*arguments, workspace, stream) != cutlass::Status::kSuccess) return 2;
  return operation.run(stream) == cutlass::Status::kSuccess ? 0 : 3;
}
