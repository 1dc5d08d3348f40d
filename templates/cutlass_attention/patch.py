"""Edits of CUTLASS's Hopper attention example, applied to the text of the installed wheel.

    header of the wheel ─► edits, each matched exactly once ─► text in another namespace, or a reason

The edits replace a copy of some 800 lines of NVIDIA's. Everything else of the example (kernel, softmax,
loads, schedulers) is included unchanged. If an edit does not match the wheel's text, the wheel is refused
before anything is compiled; copied headers would only fail in the compiler, minutes later. The quoted
code is NVIDIA's, under BSD-3-Clause; the license's text stays in the generated source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = "../examples/88_hopper_fmha"
"""Path of the example, relative to CUTLASS's include folder."""

_NAMESPACE = "namespace cutlass::fmha::collective {"
_DIRECTIVE = re.compile(r"^#\s*(?:include|pragma once)\b.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """One change.

    Attributes:
        old: The replaced text.
        new: Its replacement.
        until: If set, everything up to this text is replaced, too; it must occur exactly once after
            ``old``, and stays.
        times: How often ``old`` must occur; each occurrence is replaced.
    """

    old: str
    new: str
    until: str = ""
    times: int = 1


@dataclass(frozen=True)
class Header:
    """A header of the example and its edits.

    Attributes:
        path: Relative to the example's folder.
        edits: The edits; independent of each other.
    """

    path: str
    edits: tuple[Edit, ...]


_KEY_TILES = (
    "params.mask.key_tiles(int(get<0>(blk_coord)) * int(get<0>(TileShape{})), "
    "int(get<0>(TileShape{})), int(get<1>(TileShape{})))"
)
_HIDE_KEYS = (
    "if (!params.mask.whole(first_query, int(get<0>(TileShapeQK{})), "
    "tile * int(get<1>(TileShapeQK{})), int(get<1>(TileShapeQK{})))) "
    "hide<0, 1>(params.mask, acc_qk, tPcP);\n        ++tile;\n        "
)

SOFTMAX = Header(
    "collective/fmha_collective_softmax.hpp",
    (
        # Weights are multiplied by a power of two before they are rounded to 8 bits, as in FlashAttention 3
        # (softmax.h, Max_offset): those down to 2^-17 of the largest are kept, not 2^-9. Sums have the same factor.
        Edit(
            "MaxType scale_max = scale * local_max;",
            "MaxType scale_max = scale * local_max - static_cast<MaxType>(kWeightBits);",
            times=2,
        ),
        Edit(
            "s_max(i) * params.scale_softmax + __logf(sum);",
            "s_max(i) * params.scale_softmax + __logf(sum) - kWeightBits * 0.6931471805599453f;",
        ),
    ),
)
"""Maximum, exponentials and sums of the forward."""

FORWARD = Header(
    "collective/fmha_collective_tma_warpspecialized.hpp",
    (
        Edit("cutlass::fmha::collective::CollectiveSoftmax<", "CollectiveSoftmax<"),
        # The mask, and how many heads of Q share one of K and V.
        Edit("    float rp_dropout;\n", "    float rp_dropout;\n    Mask mask;\n    int group;\n"),
        Edit(
            "    int fusion_tile_count = Fusion{}.get_trip_count("
            "blk_coord, TileShape{}, problem_size);\n",
            f"    Tiles const tiles = {_KEY_TILES};\n"
            "    int const fusion_tile_count = tiles.end - tiles.begin;\n"
            "    auto const kv_coord = shared_head(params, blk_coord);\n",
        ),
        Edit(
            "cute::make_coord_iterator(fusion_tile_count)",
            "cute::make_coord_iterator(tiles.begin, tiles.end)",
        ),
        Edit(
            "load_k.init_state(block_rank_in_cluster, problem_size, TileShapeQK{}, blk_coord,",
            "load_k.init_state(block_rank_in_cluster, problem_size, TileShapeQK{}, kv_coord,",
        ),
        Edit(
            "load_v.init_state(block_rank_in_cluster, problem_size, TileShapePV{}, blk_coord,",
            "load_v.init_state(block_rank_in_cluster, problem_size, TileShapePV{}, kv_coord,",
        ),
        Edit(
            "    int k_tile_count = Fusion{}.get_unmasked_trip_count("
            "blk_coord, TileShape{}, problem_size);\n",
            f"    Tiles const tiles = {_KEY_TILES};\n"
            "    int const first_query = int(get<0>(wg_coord)) * int(get<0>(TileShapeQK{}));\n"
            "    int tile = tiles.begin;\n"
            "    int k_tile_count = tiles.end - tiles.begin;\n",
        ),
        Edit(
            "    tPcP.data() = tPcP.data() + E<0>{} * m_block * get<0>(TileShapeQK{});\n",
            "    tPcP.data() = tPcP.data() + E<0>{} * m_block * get<0>(TileShapeQK{});\n"
            "    tPcP.data() = tPcP.data() + E<1>{} * tiles.begin * get<1>(TileShapeQK{});\n",
        ),
        Edit(
            "softmax.step(acc_qk, tiled_mma_qk, tPcP, softmax_state, problem_size);",
            _HIDE_KEYS + "softmax.step(acc_qk, tiled_mma_qk, tPcP, softmax_state, problem_size);",
        ),
        Edit(
            "softmax.template step<false>(acc_qk, tiled_mma_qk, tPcP, softmax_state, acc_pv,",
            _HIDE_KEYS
            + "softmax.template step<false>(acc_qk, tiled_mma_qk, tPcP, softmax_state, acc_pv,",
        ),
        # The loop over masked tiles: the loop before it masks on either side where needed.
        Edit(
            "    k_tile_count += Fusion{}.get_masked_trip_count(",
            "",
            until="    if (kIsPersistent) pipeline_q.consumer_release(smem_pipe_release_q);\n",
        ),
    ),
)
"""Q K^T, softmax and P V of the forward."""

_KEPT_QUERIES = (
    "if (!params.mask.whole(k_index * int(get<1>(TileShapeNM{})), int(get<1>(TileShapeNM{})), "
    "n_block * int(get<0>(TileShapeNM{})), int(get<0>(TileShapeNM{})))) "
    "hide<1, 0>(params.mask, acc_S, tScS);"
)

_QUERY_TILES = (
    "    Tiles const tiles = params.mask.query_tiles(int(get<1>(blk_coord)) * "
    "int(get<1>(TileShape{})), int(get<1>(TileShape{})), int(get<0>(TileShape{})));\n"
    "    int inner_tile_count = tiles.end - tiles.begin;\n"
)
_CONTRIBUTES = (
    "Fusion{{}}.is_contributing(make_coord({}, get<1>(blk_coord)), TileShape{{}}, problem_size)"
)

_RELEASED_AT_ONCE = (
    "      pipeline_inner.consumer_release(smem_pipe_release_inner);  \n      ++smem_pipe_release_inner;\n"
    * 2
)
_RELEASED_LATER = (
    "      if (k_index != tiles.begin) {\n"
    + "        pipeline_inner.consumer_release(smem_pipe_release_inner);\n        ++smem_pipe_release_inner;\n"
    * 2
    + "      }\n"
)

BACKWARD = Header(
    "collective/fmha_collective_bwd_tma_warpspecialized.hpp",
    (
        Edit(
            "    float scale_softmax;\n    float scale_softmax_log2;\n",
            "    float scale_softmax;\n    float scale_softmax_log2;\n    Mask mask;\n    int group;\n",
        ),
        # Tiles of queries that see no key are skipped; the example tests each tile.
        Edit(
            "  template<class BlkCoord, class ProblemSize>\n  CUTLASS_DEVICE\n  auto\n"
            "  get_inner_tile_count(",
            "",
            until="  CUTLASS_DEVICE\n  static void prefetch_tma_descriptors(",
        ),
        Edit(
            "    int inner_tile_count = get_inner_tile_count(blk_coord, problem_size);\n",
            _QUERY_TILES,
            times=2,
        ),
        Edit(
            "    int inner_tile_count = get_inner_tile_count(wg_coord, problem_size);\n",
            _QUERY_TILES,
        ),
        Edit(
            "cute::make_coord_iterator(inner_tile_count)",
            "cute::make_coord_iterator(tiles.begin, tiles.end)",
        ),
        Edit(_CONTRIBUTES.format("*inner_tile_iter"), "true", times=2),
        Edit(_CONTRIBUTES.format("g_index"), "true"),
        Edit(_CONTRIBUTES.format("k_index"), "true"),
        Edit("    int g_index = 0;\n", "    int g_index = tiles.begin;\n"),
        Edit("    int k_index = 0;\n", "    int k_index = tiles.begin;\n"),
        Edit(
            "    tScS.data() = tScS.data() + E<0>{} * n_block * get<0>(TileShapeNM{});\n",
            "    tScS.data() = tScS.data() + E<0>{} * n_block * get<0>(TileShapeNM{});\n"
            "    tScS.data() = tScS.data() + E<1>{} * tiles.begin * get<1>(TileShapeNM{});\n",
        ),
        Edit("Fusion{}.before_softmax(acc_S, tScS, problem_size);", _KEPT_QUERIES),
        Edit(
            "load_k.init_state(_0{}, problem_size, TileShapeNM{}, blk_coord, outer_tile_count)",
            "load_k.init_state("
            "_0{}, problem_size, TileShapeNM{}, shared_head(params, blk_coord), outer_tile_count)",
            times=2,
        ),
        Edit(
            "load_v.init_state(_0{}, problem_size, TileShapeNM{}, blk_coord, outer_tile_count)",
            "load_v.init_state("
            "_0{}, problem_size, TileShapeNM{}, shared_head(params, blk_coord), outer_tile_count)",
            times=2,
        ),
        # Read where they are used: if read before the products, as in the example, both are in local
        # memory (a loop over 32 of them is not unrolled) and 24 to 120 bytes a thread are spilled.
        Edit(
            "      Tensor reg_LSE = make_fragment_like<ElementAccumulator>(acc_S);\n",
            "",
            until="      warpgroup_wait<1>();\n      warpgroup_fence_operand(acc_S);\n",
        ),
        Edit(
            "acc_P(i) = ::exp2f(params.scale_softmax_log2 * acc_S(i) - reg_LSE(i));",
            "acc_P(i) = ::exp2f(params.scale_softmax_log2 * acc_S(i) - "
            "1.4426950408889634f * tSsLSE(_,_,_,smem_pipe_read_q.index())(i));",
        ),
        Edit(
            "      if constexpr (decltype(get<0>(TileShape{}) == _128{})::value) {\n",
            "",
            until="      warpgroup_wait<0>();\n      warpgroup_fence_operand(acc_DP);\n",
        ),
        # Before a tile of dQ is added to memory, the stage of the tile before it is released; with one group of
        # TMA reductions still allowed to be pending, that stage may still be read (docs/upstream/hopper_fmha_backward.md).
        Edit("tma_store_wait<1>();", "tma_store_wait<0>();"),
        # A tile of Q is released when the product that reads it last, dS.T @ Q, is complete: behind the next tile's
        # first wait. The example releases it with one group of products still allowed to be pending: that one.
        Edit(_RELEASED_AT_ONCE, ""),
        Edit(
            "      warpgroup_wait<1>();\n      warpgroup_fence_operand(acc_S);\n",
            "      warpgroup_wait<1>();\n      warpgroup_fence_operand(acc_S);\n" + _RELEASED_LATER,
        ),
        Edit(
            "    warpgroup_fence_operand(acc_DV);\n    \n    return make_tuple(acc_DK, acc_DV);\n",
            "    warpgroup_fence_operand(acc_DV);\n"
            + _RELEASED_LATER
            + "    return make_tuple(acc_DK, acc_DV);\n",
        ),
        # dS.T is written by the four warps of a group and read by products of the group; the second group's dS @ K reads
        # rows that other warps of it have written. The example has no barrier between; the order barrier is the other group's.
        Edit(
            "      cutlass::arch::fence_view_async_shared();\n"
            "      if (wg_idx == 0) math_wg_order_barrier.arrive();\n",
            "      cutlass::arch::fence_view_async_shared();\n"
            "      cutlass::arch::NamedBarrier::sync(cutlass::NumThreadsPerWarpGroup, wg_idx);\n"
            "      if (wg_idx == 0) math_wg_order_barrier.arrive();\n",
        ),
        # bfloat16 has no implicit conversion from float.
        Edit(
            "acc_DS(i) = acc_P(i) * params.scale_softmax * (acc_DP(i) - reg_ODO(i));",
            "acc_DS(i) = static_cast<Element>("
            "acc_P(i) * params.scale_softmax * "
            "(acc_DP(i) - tDPsODO(_,_,_,smem_pipe_read_do.index())(i)));",
        ),
    ),
)
"""The five products of the backward."""


def example_folder(include: Path) -> Path:
    """Return the example's folder, next to CUTLASS's include folder."""
    return include / EXAMPLE


def patched(header: Header, folder: Path) -> str:
    """Return a header's edited text, in namespace ``patched``.

    Args:
        header: The header.
        folder: The example's.

    Raises:
        OSError: The wheel has no such file.
        ValueError: An edit does not match its text.
    """
    text = (folder / header.path).read_text(encoding="utf-8")
    for edit in header.edits:
        text = _edited(text, edit, header.path)
    text = _edited(text, Edit(_NAMESPACE, "namespace patched {"), header.path)
    return _DIRECTIVE.sub("", text)


def _edited(text: str, edit: Edit, path: str) -> str:
    if text.count(edit.old) != edit.times:
        raise ValueError(f"{path} has not {edit.times} times {_short(edit.old)}")
    if not edit.until:
        return text.replace(edit.old, edit.new)
    before, _, after = text.partition(edit.old)
    if after.count(edit.until) != 1:
        raise ValueError(f"{path} has not once {_short(edit.until)}")
    return before + edit.new + edit.until + after.partition(edit.until)[2]


def _short(text: str) -> str:
    return repr(" ".join(text.split())[:60])
